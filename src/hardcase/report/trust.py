"""What stands behind the numbers: how far findings lie from their seeds beside how far real images
lie from each other, what the search cost, and how to repeat it.
"""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from hardcase.catalogue import bibtex, citations
from hardcase.judges.judge import WEAK
from hardcase.registry import rows as listed
from hardcase.report.words import Sheet, number, plural, rate
from hardcase.runs.files import read_plain
from hardcase.runs.results import Run
from hardcase.tensors import flat, from_bytes

SEEDS = 1_000
VALUES = 60_000_000
"""At most so many seeds, and so many pixel values, are compared with each other."""
LONGEST = 1_000_000
"""Bytes of a configuration that is shown."""
POINTS = 160
"""A curve is drawn through at most so many points."""
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
    y = torch.from_numpy(table.take(rows)["label"].to_numpy().copy())
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


def cost(run: Run, sheet: Sheet, failing: int) -> dict[str, Any]:
    totals = run.record.get("totals") or {}
    queries = totals.get("queries")
    elapsed = run.record.get("elapsed")
    history = read_history(run.folder / "history.csv")
    nothing = {"seconds": 0.0, "findings": 0.0}
    grown = [
        now["seconds"]
        for before, now in pairwise([nothing, *history])
        if now["findings"] > before["findings"]
    ]
    return {
        "totals": totals,
        "elapsed": elapsed,
        "queries_per_failing": queries / failing if queries and failing else None,
        "queries_per_second": queries / elapsed if queries and elapsed else None,
        "by_queries": _by_queries(sheet),
        "over_time": _thin(history),
        "last_new": grown[-1] if grown else None,
        "coverage": run.record.get("coverage"),
    }


def _by_queries(sheet: Sheet) -> list[dict[str, int]]:
    """Failing seeds so far, at the queries that the earliest kept finding of each had cost."""
    first: dict[str, int] = {}
    for row in np.flatnonzero(sheet.label).tolist():
        spent = int(sheet.queries[row])
        first[sheet.seed[row]] = min(spent, first.get(sheet.seed[row], spent))
    costs, count = np.unique(np.array(list(first.values()), dtype=np.int64), return_counts=True)
    steps = zip(costs.tolist(), count.cumsum().tolist())
    return _thin([{"queries": at, "seeds": seeds} for at, seeds in steps])


def read_history(path: Path) -> list[dict[str, float]]:
    """The rows of history.csv; a line that is cut off or is not a number is left out."""
    names = ("seconds", "queries", "findings", "failing_seeds")
    rows = []
    try:
        text = read_plain(path).decode(errors="replace")
        for row in csv.DictReader(io.StringIO(text, newline="")):
            with suppress(KeyError, ValueError, TypeError):
                values = {name: float(row[name] or "nan") for name in names}
                if all(map(math.isfinite, values.values())):
                    whole = {name: int(values[name]) for name in names[1:]}
                    rows.append({"seconds": values["seconds"], **whole})
    except (OSError, csv.Error):
        return []
    return rows


def _thin(rows: list[Any]) -> list[Any]:
    if len(rows) <= POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, POINTS).round().astype(int).tolist()]


_SKIPPED = {
    "misclassified": "the model already gets {them} wrong",
    "non_finite": "the model’s answer to {them} is not a number",
    "target": "{they} already of the class that the search must reach",
    "reconstruction": "the model gets {them} wrong once the method’s generator has redrawn {them}",
    "out_of_time": "the time ran out before the search from {them} ended",
    "waiting": "the search never reached {them}",
}
_SETTINGS = ("seed", "device", "threads", "keep", "bitwise", "deterministic", "created", "finished")


def reproduce(run: Run, skipped: Mapping[str, int | None], sheet: Sheet) -> dict[str, Any]:
    record = run.record
    keys = list(record.get("citations") or [])
    known = citations()
    argv = list(record.get("argv") or [])
    if argv and Path(argv[0]).name in ("hardcase", "__main__.py"):
        argv[0] = "hardcase"  # the path of the program does not matter
    config = None
    with suppress(OSError, ValueError):
        config = read_plain(run.folder / "config.toml", most=LONGEST).decode()
    return {
        "command": shlex.join(argv) or None,
        "again": (
            f"hardcase run {shlex.quote(str(Path(run.folder.name) / 'config.toml'))} --out ANOTHER"
        ),
        "config": config,
        "hashes": _flat(record.get("hashes") or {}),
        "versions": {"hardcase": record.get("hardcase"), **(record.get("versions") or {})},
        "settings": {name: record[name] for name in _SETTINGS if record.get(name) is not None},
        "not_tested": _not_tested(run, skipped, sheet),
        "citations": bibtex(key for key in keys if key in known),
        "citations_unknown": [key for key in keys if key not in known],
    }


def _flat(hashes: Mapping[str, Any]) -> dict[str, str]:
    """Every network and the data with its hash, in one level."""
    named: dict[str, str] = {}
    for name, value in hashes.items():
        if isinstance(value, str):
            named[name] = value
        elif isinstance(value, Mapping | list):
            inner = value if isinstance(value, Mapping) else dict(enumerate(value, 1))
            named |= {f"{name.removesuffix('s')} {key}": str(one) for key, one in inner.items()}
    return named


def _not_tested(run: Run, skipped: Mapping[str, int | None], sheet: Sheet) -> list[str]:
    lines = []
    for reason, why in _SKIPPED.items():
        count = skipped.get(reason) or 0
        them, they = ("it", "it is") if count == 1 else ("them", "they are")
        if count:
            given = f"{plural(count, 'seed')} of {number(len(sheet.seeds))}"
            lines.append(f"{given}: {why.format(them=them, they=they)}.")
    rows = [row for row in sheet.seeds.values() if row["status"] in ("done", "out of time")]
    searched = {row["label"] for row in rows}
    missing = [name for label, name in enumerate(run.classes) if label not in searched]
    if missing:
        named = ", ".join([*missing[:10], *["…"] * (len(missing) > 10)])
        counts = f"{number(len(missing))} of {number(len(run.classes))} classes"
        lines.append(f"{counts}, no seed of which was searched from: {named}.")
    method = str(run.record.get("method"))
    names = [row["name"] for row in listed("methods")]
    others = ", ".join(name for name in names if name != method.partition("@")[0])
    split = f"the {run.record.get('split')} split of {run.record.get('data')}"
    return [
        *lines,
        f"Other methods: {others}. A model that withstands {method} may not withstand them.",
        f"Other data than {split}.",
    ]
