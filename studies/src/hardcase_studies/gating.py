"""Does the gate tell networks apart that differ, and how many images does that take?

``hardcase reproduce decides --set gate=true``: networks of the zoo are measured by ``hardcase run --method none`` and held against each
other by ``hardcase gate NEW --baseline OLD``: another architecture, and another training of the same recipe. Then fewer images are
drawn from the paired differences, again and again: how often is the difference seen?
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import hardcase as hc
from hardcase.analysis.references import paired_differences, rate_difference
from hardcase.data.sources import load
from hardcase.models.subject import Subject
from hardcase.models.zoo import trained_classifier
from hardcase.runs.results import Run
from hardcase.statistics import POWER, bounded_mean_interval, needed_images
from hardcase.suite.gate import GateLimits, gate, outcome
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase_studies.bench import Bench

SMALLER = "zoo:lenet1"
LARGER = "zoo:lenet5"
AGAIN = "zoo:lenet5?seed=1000"
"""The same recipe as `LARGER`, trained from another seed."""
WEAK = "LeNet-5, a tenth of the images"
MARGINS = (0.0, 0.01)
"""By how much a new version may be worse; the second is the default of the gate."""
COUNTS = (50, 100, 200, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3000, 5000)


def run(bench: Bench) -> Outcome:
    """``--set seeds=200`` and ``resamples=500`` are the sizes."""
    seeds = bench.size("seeds", 1000, 10_000)
    runs = {name: _measured(bench, name, seeds) for name in (SMALLER, LARGER, AGAIN, WEAK)}
    pairs = [pair for pair in permutations(runs, 2) if LARGER in pair]
    rows = [
        _held(runs[new], runs[old], f"{new} held against {old}", margin)
        for margin in MARGINS
        for new, old in pairs
    ]
    notes = [
        f"risk over {seeds} images of {bench.data}, 64 draws of the scanner profile each",
        f"{AGAIN} is another training of the recipe of {LARGER}; {WEAK}: {LARGER} with a tenth of the training images",
    ]
    columns = [
        "new, held against old",
        "risk",
        "old",
        "difference",
        "low",
        "high",
        "verdict",
        "exit code",
    ]
    tables = [Table("The gate on real trainings", columns, rows, notes)]
    tables += [_power(bench, runs[SMALLER], runs[LARGER], "LeNet-1 less LeNet-5")]
    return Outcome("a gate on real trainings", tables)


def _measured(bench: Bench, name: str, seeds: int) -> Run:
    """The risk of a network of the zoo, as a run keeps it."""
    bench.say(f"the risk of {name}")
    folder = bench.out / "runs" / re.sub(r"\W+", "-", name)
    if (folder / "run.json").is_file() and Run(folder).record.get("risk"):
        return Run(folder)
    return hc.run(
        _weak(bench) if name == WEAK else name,
        load(bench.data, split="test") if name == WEAK else bench.data,
        method="none",
        images=seeds,
        seed=bench.seed,
        out=Path(folder),
        judge=False,
        device=bench.device,
    )


def _weak(bench: Bench) -> Subject:
    """The larger network, trained on every tenth image."""
    train, test = (load(bench.data, split=split) for split in ("train", "test"))
    few = train.take(torch.arange(0, len(train), 10))
    net, _ = trained_classifier("lenet5", few, test, device=torch.device(bench.device))
    return Subject(net, classes=test.classes, name=WEAK, device=bench.device)


def _held(new: Run, old: Run, name: str, margin: float) -> list[Cell]:
    """What the gate says of a new version beside an old one."""
    seen = rate_difference(new, old)
    said = outcome(gate(new, GateLimits(margin=margin), old))
    risks = [one.record["risk"]["value"] for one in (new, old)]
    code = {"pass": 0, "fail": 1, "inconclusive": 4}[said]
    return [
        f"{name}, margin {margin:g}",
        *risks,
        seen["value"],
        seen["low"],
        seen["high"],
        said,
        code,
    ]


def seen_share(
    differences: NDArray[np.float64], count: int, resamples: int, rng: np.random.Generator
) -> float:
    """Return how often the interval of `count` images, drawn anew with replacement, excludes 0 on the right side.

    Args:
        differences: Paired differences of two risks, one per image.
        count: Images in each draw.
        resamples: How often.
        rng: What is drawn from.
    """
    sign = 1.0 if differences.mean() > 0 else -1.0
    drawn = rng.choice(sign * differences, (resamples, count))
    return float(np.mean([bounded_mean_interval(row, -1.0, 1.0).low > 0 for row in drawn]))


def _power(bench: Bench, first: Run, second: Run, name: str) -> Table:
    """How many images show that two networks differ."""
    differences = paired_differences(first, second)
    effect = abs(float(differences.mean()))
    rng = np.random.default_rng(bench.seed)
    resamples = bench.size("resamples", 300, 2000)
    rows = list[list[Cell]]()
    counts = [count for count in COUNTS if count <= len(differences)]
    shares = list[float]()
    for count in counts:
        bench.say(f"{name}: draws of {count} images")
        shares.append(seen_share(differences, count, resamples, rng))
        rows.append([f"{count} images", shares[-1]])
        if shares[-1] > 0.995:
            break
    told = needed_images(differences, effect) if effect else 0
    measured = crossing(counts, shares, POWER)
    rows.append([f"needed for {POWER:.0%}, by these draws", measured or f"more than {counts[-1]}"])
    rows.append([f"needed for {POWER:.0%}, as a run tells it", told])
    notes = [
        f"{name}: {100 * effect:.2f} points over {len(differences)} images, standard deviation {100 * differences.std(ddof=1):.1f} points",
        f"share of {resamples} draws of so many of these images, with replacement, whose 95 % interval excludes 0",
    ]
    return Table("Images that show the difference", ["images", "share of draws"], rows, notes)


def crossing(counts: Sequence[int], shares: Sequence[float], wanted: float) -> int | None:
    """Return the number of images at which a rising share reaches `wanted`, linear in between; None if it does not.

    Args:
        counts: Numbers of images, rising.
        shares: How often each saw the difference.
        wanted: The share that is looked for.
    """
    before = (0, 0.0)
    for count, share in zip(counts, shares):
        if share >= wanted:
            part = (wanted - before[1]) / (share - before[1])
            return round(before[0] + part * (count - before[0]))
        before = (count, share)
    return None
