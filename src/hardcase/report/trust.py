"""Can I trust these: how far findings lie from their seeds, beside how far real images lie from
each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.judges.judge import WEAK
from hardcase.report.words import Sheet, rate
from hardcase.runs.results import Run
from hardcase.tensors import flat, from_bytes

SEEDS = 1_000
VALUES = 60_000_000
"""At most so many seeds, and so many pixel values, are compared with each other."""

_QUANTILES = (5, 25, 50, 75, 95)


def trust(run: Run, sheet: Sheet, counts: Mapping[str, Any]) -> dict[str, Any]:
    """Distances, the generator's quality and the judge's error rates; `counts` is what the funnel
    counted."""
    judge = run.record.get("judge") or {}
    accuracy = judge.get("accuracy")
    lost = counts["skipped"]["reconstruction"]
    tests = sheet.l2[sheet.label]
    pairs = real_pairs(run)
    typical = float(np.median(pairs)) if len(pairs) else None
    nearer = None if typical is None else rate(int((tests < typical).sum()), len(tests))
    return {
        "judge": judge or None,
        "weak": accuracy if accuracy is not None and accuracy < WEAK else None,
        "errors": errors(judge),
        "tests": quantiles(tests),
        "pairs": quantiles(pairs),
        "nearer": nearer,
        "own_space": quantiles(sheet.distance[sheet.label]),
        "largest_change": quantiles(sheet.linf[sheet.label]),
        "generator": _generator(run.record.get("generator")),
        "reconstruction": rate(lost, lost + counts["funnel"]["attempted"]),
    }


def errors(judge: Mapping[str, Any]) -> dict[str, Any] | None:
    """How often the judge is wrong, by question: measured on rated images of this data (`own`), or
    else of other data."""
    own = judge.get("calibration")
    measured = own or judge.get("elsewhere")
    if not measured:
        return None
    rows = [
        {"question": name.replace("_", " "), **measured[name]} for name in ("valid", "label_kept")
    ]
    return {
        "own": bool(own),
        "rows": rows,
        "confirmed": measured["confirmed"],
        "images": measured["images"],
    }


def real_pairs(run: Run) -> Float[np.ndarray, " p"]:
    """L2 distances of seeds to the nearest other seed of their class; of an even sample if there
    are many."""
    table = run.seeds.select(["label"])
    if not len(table):
        return np.zeros(0)
    size = int(np.prod(run.record.get("image") or [1]))
    count = min(len(table), SEEDS, max(2, VALUES // size))
    rows = np.linspace(0, len(table) - 1, count).round().astype(np.int64)
    x = flat(from_bytes(run.seed_images(rows.tolist())))
    return _nearest(x, torch.from_numpy(table.take(rows)["label"].to_numpy().copy()))


def _nearest(x: Float[Tensor, "n d"], y: Int[Tensor, " n"]) -> Float[np.ndarray, " p"]:
    found = [np.zeros(0)]
    for label in torch.unique(y):
        own = x[y == label]
        if len(own) > 1:
            gaps = torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist")
            found.append(gaps.fill_diagonal_(torch.inf).amin(1).numpy())
    return np.concatenate(found)


def quantiles(values: Float[np.ndarray, " v"]) -> dict[str, Any] | None:
    """Count and quantiles of what is finite; None if nothing is."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None
    named = {f"q{q}": float(np.quantile(finite, q / 100)) for q in _QUANTILES}
    return {"count": len(finite), **named, "largest": float(finite.max())}


def _generator(card: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a generator's card says of how well it gives back what it is shown."""
    if card is None:
        return None
    count = card.get("measured_images")
    accuracy = card.get("reconstruction_accuracy")
    return {
        "kind": card.get("kind", ""),
        "name": card.get("name", ""),
        "reconstruction": rate(accuracy and round(accuracy * (count or 0)), count),
        "reconstruction_accuracy": accuracy,
        "measured_images": count,
        "ssim": card.get("ssim"),
    }
