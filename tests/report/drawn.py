"""Runs made of digits drawn by code, stored the way a campaign stores them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardcase.runs.results import Run
from hardcase.tensors import from_bytes, to_bytes
from tiny import put_verdicts, stored_run

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
WHERE = {
    "a": (slice(5, 8), slice(9, 19)), "g": (slice(13, 16), slice(9, 19)), "d": (slice(21, 24), slice(9, 19)),
    "f": (slice(6, 15), slice(8, 11)), "e": (slice(14, 23), slice(8, 11)), "b": (slice(6, 15), slice(17, 20)),
    "c": (slice(14, 23), slice(17, 20)),
}  # fmt: skip
DIGITS = tuple("0123456789")


def digits(labels: Tensor, rng: torch.Generator, *, channels: int = 1, side: int = 28) -> Tensor:
    """8-bit pictures of seven-segment digits, each moved a little, blurred and made uneven."""
    ideal = torch.zeros(10, 1, 28, 28)
    for digit, names in enumerate(SEGMENTS):
        for name in names:
            ideal[digit, 0][WHERE[name]] = 1.0
    x = ideal[labels]
    shift = torch.randint(-2, 3, (len(labels), 2), generator=rng).tolist()
    x = torch.stack([one.roll(tuple(move), (1, 2)) for one, move in zip(x, shift)]) if len(x) else x
    x = torch.nn.functional.avg_pool2d(x, 3, stride=1, padding=1)
    x = x * (0.75 + 0.25 * torch.rand(len(labels), 1, 1, 1, generator=rng))
    x = torch.nn.functional.interpolate(x, size=(side, side), mode="bilinear") if side != 28 else x
    strength = 0.03 if channels == 1 else 0.3
    noise = strength * torch.rand(len(labels), channels, side, side, generator=rng)
    return to_bytes(x.expand(-1, channels, -1, -1) * 0.9 + noise)


def record(classes: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    about = {
        "schema": 1, "hardcase": "0.1.0", "versions": {"python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6", "pyarrow": "26.0.1"},
        "argv": ["/somewhere/bin/hardcase", "run", "--data", "drawn", "--method", "sinvad", "--out", "runs/a b"],
        "created": "2026-03-01T10:00:00+00:00", "finished": "2026-03-01T10:01:13+00:00", "complete": True, "elapsed": 73.4,
        "method": "sinvad", "model": "zoo:lenet5", "data": "drawn", "split": "test", "classes": list(classes),
        "shape": [1, 28, 28], "seed": 7, "budget": {"queries": 2000}, "keep": "best", "device": "cpu", "threads": 2,
        "bitwise": True, "deterministic": True,
        "hashes": {"subject": "5f3c1a", "peers": ["9d2e77"], "generator": "b01dfa", "guides": {}, "data": "77aa01"},
        "generator": {"kind": "vae", "name": "linear", "reconstruction_accuracy": 0.964, "measured_images": 500, "ssim": 0.871},
        "accuracy": {"value": 0.95, "images": 100}, "notes": [], "citations": ["kang2020sinvad"],
        "totals": {"queries": 151_234, "gradients": 0, "peer_queries": 0},
    }  # fmt: skip
    return {**about, **changes}


def drawn_run(
    folder, *, seeds=100, per_seed=1, failing=0.9, classes=DIGITS, channels=1, side=28, seed=0,
    history=True, names=None, **changes,
):  # fmt: skip
    """A finished run: some seeds misclassified, some lost in reconstruction, the others failing with this probability."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.arange(seeds) % min(10, len(classes))
    x = digits(y, rng, channels=channels, side=side)
    ids = names or [f"drawn/{i}" for i in range(seeds)]
    status = ["skipped: misclassified" if i % 20 == 3 else "skipped: reconstruction" if i % 25 == 7 else "done" for i in range(seeds)]  # fmt: skip
    done = torch.tensor([word == "done" for word in status])
    fails = done & (torch.rand(seeds, generator=rng) < failing)
    rows = fails.nonzero().squeeze(1).repeat_interleave(per_seed)
    spent = torch.randint(900, 2000, (seeds,), generator=rng) * done
    found = torch.bincount(rows, minlength=seeds)
    columns = {
        "id": ids, "status": status, "evaluated": spent.tolist(), "failing": (found * 3).tolist(),
        "confidence": (0.9 + 0.1 * torch.rand(seeds, generator=rng)).tolist(), "queries": spent.tolist(),
    }  # fmt: skip
    hop = torch.tensor([1, 1, 1, 5, 5, 3])[torch.randint(0, 6, (len(rows),), generator=rng)]
    other = (y[rows] + hop) % min(10, len(classes))
    share = torch.rand(len(rows), 1, 1, 1, generator=rng)
    mix = 0.25 + 0.35 * share  # of the way to a digit of another class
    aim = from_bytes(digits(other, rng, channels=channels, side=side))
    count = len(rows)
    findings = {
        "predicted": other, "confidence": 0.5 + 0.4 * torch.rand(count, generator=rng), "score": torch.rand(count, generator=rng),
        "distance": 10 + 9 * torch.rand(count, generator=rng), "queries": torch.randint(40, 1900, (count,), generator=rng),
    }  # fmt: skip
    tests = to_bytes((1 - mix) * from_bytes(x[rows]) + mix * aim)
    about = record(classes, **{"images": seeds, "shape": [channels, side, side], **changes})
    config = '[run]\ndata = "drawn"\nmethod = "sinvad"\nseed = 7\n'
    given = {"seeds": columns, "findings": findings, "record": about, "config": config}
    run = stored_run(folder, x, y, rows, tests, **given)
    if history:
        run.store.write("history.csv", _history(count, run.record["elapsed"]).encode())
    return run


def _history(tests: int, elapsed: float, lines: int = 30) -> str:
    rows = ["seconds,queries,gradients,seeds_done,failing_seeds,findings"]
    for i in range(1, lines + 1):
        found = round(tests * (1 - (1 - i / lines) ** 2))
        rows.append(f"{elapsed * i / lines:.3f},{5000 * i},0,{3 * i},{found},{found}")
    return "\n".join(rows) + "\n"


def judge(run: Run, *, card: dict[str, Any] | None = None) -> Run:
    """The same run with made-up verdicts: by the number of the seed, in groups by class."""
    rows = run.findings.select(["id", "original", "expected"]).to_pylist()
    said = []
    for row in rows:
        i = int(row["original"].removeprefix("drawn/"))
        verdict = "unsure" if i % 9 == 2 else "lost" if i % 4 == 2 else "kept"
        about = {"id": row["id"], "group": row["expected"] % 5, "by": "panel"}
        measured = {"p_kept": 0.5, "noise": 0.1, "saturated": 0.2}
        said.append({**about, **measured, "verdict": verdict})
    return put_verdicts(run, said, judge=card)


def drawn_curves(**changes: Any) -> dict[str, Any]:
    """What `hardcase curve` leaves in a run folder: one change that hurts and one that does not."""
    point = {"total": 10, "low": 0.0, "high": 1.0}
    points = [{"severity": i, "failing": i, "share": i / 10, **point} for i in range(1, 6)]
    crossing = {"quartiles": [1.0, 2.5, None], "crossed": 7, "queries": 8}
    row = {"most": 5, "curve": points, "crossing": crossing, "non_monotone": {"share": 0.1}}
    calm = {**row, "curve": [{**p, "failing": 0, "share": 0.0} for p in points], "most": 1}
    both = {"corruptions": [{**row, "corruption": "zoom_blur"}]}
    both |= {"conditions": [{**calm, "condition": "tilted <11° clockwise"}]}
    error = {"plain": 0.25, "relative_to": None}
    return {"model": "m", "correctly_classified": 10, **both, "corruption_error": error, **changes}
