"""What the coverage matrix records, and its tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hardcase import statistics
from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Table
from hardcase.experiments.trio import Trio
from hardcase.randomness import stream

_NAMES = {"random": "random neuron", "none": "no coverage", "pgd": "PGD"}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is run. `cover` is the weight of the coverage term."""

    seeds: int
    gradients: int
    repeats: int
    cover: float
    guides: tuple[str, ...]
    measured: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one generator under one guide."""

    seeds: int
    failing: int
    adversarial: int
    seconds: float
    gradients: int
    distance: float
    gained: Mapping[str, float]


def found(generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes, here: Trio) -> Table:
    """Number of adversarial inputs and what each costs."""
    control = [trial.adversarial for trial in trials["none"]]
    rows = list[list[Cell]]()
    for guide, done in trials.items():
        made = [trial.adversarial for trial in done]
        each = [trial.seconds / max(trial.adversarial, 1) for trial in done]
        spent = sum(trial.gradients for trial in done) / max(sum(made), 1)
        delta = statistics.cliffs_delta(made, control)
        share = sum(trial.failing for trial in done) / sum(trial.seeds for trial in done)
        far = sum(trial.distance for trial in done) / len(done)
        rows.append(
            [named(guide), f"{share:.1%}", _interval(made, 1), f"{delta:+.2f} {statistics.magnitude(delta)}",
             _interval(each, 1000), spent, far]
        )  # fmt: skip
    return Table(
        f"{generator}: adversarial inputs",
        [
            "guide",
            "failing seeds",
            "adversarial inputs a run",
            "Cliff's delta to no coverage",
            "ms each",
            "gradients each",
            "L2",
        ],
        rows,
        [
            f"{sizes.repeats} runs of {trials['none'][0].seeds} seeds, at most {sizes.gradients} gradients a seed, weight {sizes.cover:g}; means with 95 % bootstrap intervals",
            "an adversarial input is a candidate on which the subject leaves its seed's label"
            + ("; a seed ends with its first" if generator == "deepxplore" else "; a seed goes on after it"),
            *here.notes,
        ],
    )


def gained(generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes) -> Table:
    """Coverage improvement, guide by measured criterion."""
    rows = list[list[Cell]]()
    for guide, done in trials.items():
        cells = list[Cell]()
        for name in sizes.measured:
            gained, control = ([trial.gained[name] for trial in some] for some in (done, trials["none"]))
            cells.append(f"{_interval(gained, 100)} ({statistics.cliffs_delta(gained, control):+.2f})")
        rows.append([named(guide), *cells])
    return Table(
        f"{generator}: coverage improvement (percentage points) by guide and measured criterion",
        ["guide", *sizes.measured],
        rows,
        [
            "coverage of the seeds with up to ten found inputs of each, minus that of the seeds alone",
            "in round brackets Cliff's delta to the control without coverage; the diagonal is a guide's own yardstick",
        ],
    )


def pictures_of(bench: Bench, generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes) -> list[str]:
    counts = {named(guide): [float(t.adversarial) for t in done] for guide, done in trials.items()}
    gained = torch.tensor(
        [[100 * sum(t.gained[name] for t in done) / len(done) for name in sizes.measured] for done in trials.values()]
    )
    bench.out.mkdir(parents=True, exist_ok=True)
    return [
        figures.boxes(bench.out / f"{generator}-adversarial.png", {generator: counts}, y="adversarial inputs a run"),
        figures.heat(
            bench.out / f"{generator}-coverage.png", gained, rows=[*map(named, trials)], columns=sizes.measured,
            title=f"{generator}: coverage improvement, percentage points",
        ),
    ]  # fmt: skip


def _interval(values: Sequence[float], scale: float) -> str:
    found = statistics.mean(values, rng=stream(0, "bootstrap"))
    return f"{scale * found.value:.3g} [{scale * found.low:.3g}, {scale * found.high:.3g}]"


def named(guide: str) -> str:
    return _NAMES.get(guide, guide)
