"""What the coverage matrix records, and its tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hardcase import statistics
from hardcase.experiments import figures
from hardcase.experiments.bench import Bench, Cell, Table
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
    counted: tuple[str, ...] = ()

    @property
    def all_measured(self) -> tuple[str, ...]:
        return (*self.measured, *self.counted)


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of one generator under one guide. `found`: seeds with a finding, of whatever kind; `failing`: seeds whose label
    the subject left, in `adversarial` candidates together."""

    seeds: int
    failing: int
    adversarial: int
    found: int
    seconds: float
    gradients: int
    distance: float
    gained: Mapping[str, float]


def found(
    generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes, about: Sequence[str]
) -> Table:
    """Number of adversarial inputs and what each costs; `about` are notes on the networks."""
    rows = [[named(guide), *_found(done, trials["none"])] for guide, done in trials.items()]
    columns = [
        "guide", "seeds found", "seeds failing", "adversarial inputs a run", "delta", "ms each", "delta", "gradients each", "L2"
    ]  # fmt: skip
    kind = (
        "found: the models disagree, and the seed ends"
        if generator == "deepxplore"
        else "a seed goes on after a failure"
    )
    notes = [
        f"{sizes.repeats} runs of {trials['none'][0].seeds} seeds, at most {sizes.gradients} gradients of the subject a seed, weight {sizes.cover:g}; means with 95 % bootstrap intervals",
        f"an adversarial input (failing) is a candidate on which the subject leaves its seed's label; {kind}",
        "delta: Cliff's delta to the control without coverage; ms: processor time of the search; L2: median distance of what was kept",
        "the weight is the same for all guides; how large a criterion's gradient is beside the main one is its own",
        "PGD has its usual L∞ ball of 0.3 and asks no peers: read it beside its L2",
        *about,
    ]
    return Table(f"{generator}: adversarial inputs", columns, rows, notes)


def _found(done: Sequence[Trial], control: Sequence[Trial]) -> list[Cell]:
    seeds, made, each = sum(trial.seeds for trial in done), _made(done), _each(done)
    far = [trial.distance for trial in done if trial.distance == trial.distance]
    return [
        f"{sum(trial.found for trial in done) / seeds:.1%}",
        f"{sum(trial.failing for trial in done) / seeds:.1%}",
        _interval(made, 1),
        _delta(made, _made(control)),
        _interval(each, 1000),
        _delta(each, _each(control)),
        sum(trial.gradients for trial in done) / max(sum(made), 1),
        sum(far) / len(far) if far else None,
    ]


def _made(done: Sequence[Trial]) -> list[int]:
    return [trial.adversarial for trial in done]


def _each(done: Sequence[Trial]) -> list[float]:
    return [trial.seconds / max(trial.adversarial, 1) for trial in done]


def gained(generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes) -> list[Table]:
    """Coverage improvement, guide by measured criterion: shares in percentage points, other measures in their own units."""
    notes = [
        "what the seeds with up to ten found inputs of each cover, less what the seeds cover alone: who finds more inputs covers more",
        "in round brackets Cliff's delta to the control without coverage; the diagonal is a guide's own yardstick",
    ]
    parts = [
        ("percentage points", 100, sizes.measured),
        ("in the measure's own units", 1, sizes.counted),
    ]
    return [
        Table(
            f"{generator}: coverage improvement ({unit}) by guide and measured criterion",
            ["guide", *map(named, names)],
            [
                [named(guide), *(_gain(done, trials["none"], name, scale) for name in names)]
                for guide, done in trials.items()
            ],
            notes,
        )
        for unit, scale, names in parts
        if names
    ]


def _gain(done: Sequence[Trial], control: Sequence[Trial], name: str, scale: float) -> str:
    gained, other = ([trial.gained[name] for trial in some] for some in (done, control))
    return f"{_interval(gained, scale)} ({statistics.cliffs_delta(gained, other):+.2f})"


def _delta(values: Sequence[float], control: Sequence[float]) -> str:
    size = statistics.cliffs_delta(values, control)
    return f"{size:+.2f} {statistics.magnitude(size)}"


def pictures_of(
    bench: Bench, generator: str, trials: Mapping[str, Sequence[Trial]], sizes: Sizes
) -> list[str]:
    counts = {named(guide): [float(t.adversarial) for t in done] for guide, done in trials.items()}
    gained = [
        [sum(t.gained[name] for t in done) / len(done) for name in sizes.all_measured]
        for done in trials.values()
    ]
    scale = torch.tensor([100.0] * len(sizes.measured) + [1.0] * len(sizes.counted))
    spent = {
        named(guide): [1000 * value for value in _each(done)] for guide, done in trials.items()
    }
    return [
        figures.boxes(bench.out / f"{generator}-adversarial.png", {generator: counts}, y="adversarial inputs a run"),
        figures.boxes(bench.out / f"{generator}-time.png", {generator: spent}, y="processor ms an adversarial input", log=True),
        figures.heat(
            bench.out / f"{generator}-coverage.png", scale * torch.tensor(gained), rows=[*map(named, trials)], columns=[*map(named, sizes.all_measured)],
            title=f"{generator}: coverage improvement (shares in percentage points)",
        ),
    ]  # fmt: skip


def _interval(values: Sequence[float], scale: float) -> str:
    found = statistics.mean(values, rng=stream(0, "bootstrap"))
    return f"{scale * found.value:.3g} [{scale * found.low:.3g}, {scale * found.high:.3g}]"


def named(guide: str) -> str:
    return _NAMES.get(guide, guide.replace(":channels=true", ""))
