"""Do the intervals that runs print hold what they say, and how often is a gate wrong?

``hardcase reproduce intervals`` draws images from populations whose failure rate is known, as a run measures them (four samples an
image), and asks the same functions that a run and a gate ask. Five laws say how failures are spread over images: alike for all, all or
nothing, a few images that carry most, skewed, and one class that is worse than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hardcase.statistics import (
    Bounds,
    binomial_interval,
    bounded_mean_interval,
    decide,
    mean_interval,
    newcombe_paired,
    wilson_interval,
)
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase_studies.bench import Bench

Rng = np.random.Generator
Vector = NDArray[np.float64]
SAMPLES = 4
"""Samples of the conditions per image, as a run draws them."""
COUNTS = (60, 1000, 10_000)
TRUTHS = (1e-4, 1e-3, 0.01, 0.1)
HALF_WIDTHS = 3
"""How far from the limit, in half-widths of the interval, a gate must decide."""
MARGIN = 0.01
"""By how much a new version may be worse, as the gate has it by default."""
BETWEEN_NETWORKS = (
    (911, 33, 9, 2, 0),
    (8, 8, 3, 3, 0),
    (1, 1, 3, 4, 1),
    (0, 0, 1, 1, 2),
    (2, 0, 3, 0, 4),
)
"""Of 1,000 digits under the scanner's conditions, how many have so many failing samples of four for LeNet-5 (row) and for LeNet-1
(column): two networks of which one is worse by 1.2 points."""


def alike(rng: Rng, count: int, truth: float) -> Vector:
    """Every image fails as often."""
    return np.full(count, truth)


def all_or_nothing(rng: Rng, count: int, truth: float) -> Vector:
    """An image fails always or never."""
    return (rng.random(count) < truth).astype(float)


def few_carry_most(rng: Rng, count: int, truth: float) -> Vector:
    """Nine tenths of all failures are of few images that fail in about two of three samples."""
    heavy = 0.9 * truth / 0.65
    light = 0.1 * truth / (1 - heavy)
    chosen = rng.random(count) < heavy
    return np.where(chosen, rng.uniform(0.3, 1, count), light)


def skewed(rng: Rng, count: int, truth: float) -> Vector:
    """A beta law: most images nearly never, some often."""
    return rng.beta(0.3, 0.3 * (1 - truth) / truth, count)


def one_class(rng: Rng, count: int, truth: float) -> Vector:
    """A tenth of the images, a class, holds half of all failures; within a class a beta law."""
    mean = np.where(rng.random(count) < 0.1, 5 * truth, truth * 5 / 9)
    return rng.beta(2 * mean, 2 * (1 - mean))


LAWS: dict[str, Callable[[Rng, int, float], Vector]] = {
    "alike": alike,
    "all or nothing": all_or_nothing,
    "few carry most": few_carry_most,
    "skewed": skewed,
    "one class": one_class,
}


def measured(rng: Rng, chance: Vector) -> Vector:
    """The share of samples that fail, per image."""
    return rng.binomial(SAMPLES, chance) / SAMPLES


@dataclass(frozen=True, slots=True)
class Figure:
    """A printed figure: draws a sample from a law and returns the interval and the truth."""

    name: str
    interval: Callable[[Rng, str, int, float], tuple[Bounds, float]]


def failure_rate(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """The rate under declared conditions."""
    return bounded_mean_interval(measured(rng, LAWS[law](rng, count, truth))), truth


def unmodified_error(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """The error on unmodified images: one answer each."""
    wrong = rng.random(count) < LAWS[law](rng, count, truth)
    return binomial_interval(int(wrong.sum()), count), truth


def robustness_gap(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """The failure rate less the error on unmodified images, of which a third is wrong as often."""
    chance = LAWS[law](rng, count, truth)
    gap = measured(rng, chance) - (rng.random(count) < chance / 3)
    return bounded_mean_interval(gap, -1.0), truth * 2 / 3


def difference(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """One model less another that fails on the same images in seven of ten, at the same rate."""
    chance = LAWS[law](rng, count, truth)
    other = np.where(rng.random(count) < 0.7, chance, LAWS[law](rng, count, truth))
    return bounded_mean_interval(measured(rng, chance) - measured(rng, other), -1.0), 0.0


def claims_rate(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """The rate of claims of which an image has one to five; those of one image fail together."""
    sizes = rng.integers(1, 6, count)
    image = np.repeat(np.arange(count), sizes)
    chance = LAWS[law](rng, count, truth)[image]
    shares = measured(rng, chance)
    return bounded_mean_interval(shares, clusters=image.tolist()), truth


def search_difference(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """Two searches of the same images: the difference of the shares that they broke."""
    chance = LAWS[law](rng, count, truth)
    one, two = ((rng.random(count) < chance).astype(float) for _ in range(2))
    return bounded_mean_interval(one - two, -1.0), 0.0


def newcombe(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """For comparison: Newcombe's interval of that difference; runs do not print it."""
    chance = LAWS[law](rng, count, truth)
    one, two = (torch.from_numpy(rng.random(count) < chance) for _ in range(2))
    found = newcombe_paired(one, two)
    return Bounds(found.low, found.high), 0.0


def wilson(rng: Rng, law: str, count: int, truth: float) -> tuple[Bounds, float]:
    """For comparison: Wilson's interval of the error on unmodified images; runs do not print it."""
    wrong = rng.random(count) < LAWS[law](rng, count, truth)
    return wilson_interval(int(wrong.sum()), count), truth


FIGURES = (
    Figure("failure rate", failure_rate),
    Figure("error on unmodified images", unmodified_error),
    Figure("robustness gap", robustness_gap),
    Figure("difference from a baseline", difference),
    Figure("failure rate of claims", claims_rate),
    Figure("difference of two searches, each image once", search_difference),
    Figure("Wilson's interval, not printed", wilson),
    Figure("Newcombe's interval, not printed", newcombe),
)
PRINTED = tuple(figure for figure in FIGURES if "not printed" not in figure.name)
AGAIN = 10
"""How many times as often a cell below 95 % is drawn again, with other random numbers."""


def run(bench: Bench) -> Outcome:
    """``--set repeats=4000`` is the size; ``counts=[60]`` and ``truths=[0.01]`` are a part of it."""
    repeats = bench.size("repeats", 400, 4000)
    counts = _numbers(bench, "counts", COUNTS, int)
    truths = _numbers(bench, "truths", TRUTHS, float)
    tables = [
        coverage(bench, repeats, counts, truths),
        second_look(bench, repeats, counts, truths),
        wrong_decisions(bench, repeats, counts, truths),
        power(bench, repeats),
        few_units(bench, repeats),
    ]
    return Outcome("intervals and decisions", tables)


def _numbers(bench: Bench, name: str, usual: tuple[Any, ...], kind: type) -> tuple[Any, ...]:
    chosen = bench.options.get(name, usual)
    return tuple(map(kind, chosen if isinstance(chosen, list | tuple) else [chosen]))


def _rng(bench: Bench, *names: Any) -> Rng:
    return np.random.default_rng([bench.seed, *(ord(one) for name in names for one in str(name))])


def coverage(
    bench: Bench, repeats: int, counts: tuple[int, ...], truths: tuple[float, ...]
) -> Table:
    """How often each printed interval holds the truth: the lowest of the five laws."""
    rows = list[list[Cell]]()
    for figure in FIGURES:
        for count in counts:
            row: list[Cell] = [f"{figure.name}, {count:,} images"]
            for truth in truths:
                shares = {}
                for law in LAWS:
                    name = f"coverage {figure.name} {count} {truth} {law}"
                    shares[law] = bench.cell(
                        f"{name} x{repeats}",
                        lambda f=figure, c=count, t=truth, w=law, n=name: [  # type: ignore[misc]
                            _covered(f, _rng(bench, n), w, c, t, repeats)
                        ],
                    )[0]
                worst = min(shares, key=lambda law: shares[law])
                row += [shares[worst], worst]
            bench.say(f"coverage: {row[0]}")
            rows.append(row)
    columns = ["figure"]
    for truth in truths:
        columns += [f"at {truth:g}", f"law at {truth:g}"]
    noise = 100 * 1.96 * (0.95 * 0.05 / repeats) ** 0.5
    notes = [
        f"share of {repeats} runs whose 95 % interval holds the truth, at the law where it is lowest; by chance ± {noise:.1f} points",
        f"{SAMPLES} samples per image; a difference has the truth 0, a gap two thirds of the column's",
    ]
    return Table("Coverage of printed intervals", columns, rows, notes)


def second_look(
    bench: Bench, repeats: int, counts: tuple[int, ...], truths: tuple[float, ...]
) -> Table:
    """The cells that were below 95 %, drawn again more often: the lowest of many is low by chance."""
    rows = list[list[Cell]]()
    for figure in PRINTED:
        for count in counts:
            for truth in truths:
                shares = {}
                for law in LAWS:
                    name = f"coverage {figure.name} {count} {truth} {law}"
                    shares[law] = bench.cell(f"{name} x{repeats}", list)[0]
                worst = min(shares, key=lambda law: shares[law])
                if shares[worst] >= 0.95:
                    continue
                name = f"again {figure.name} {count} {truth} {worst}"
                again = bench.cell(
                    f"{name} x{AGAIN * repeats}",
                    lambda f=figure, c=count, t=truth, w=worst, n=name: [  # type: ignore[misc]
                        _covered(f, _rng(bench, n), w, c, t, AGAIN * repeats)
                    ],
                )[0]
                label = f"{figure.name}, {count:,} images, {truth:g}, {worst}"
                rows.append([label, shares[worst], again])
                bench.say(f"again: {label}")
    noise = 100 * 1.96 * (0.95 * 0.05 / (AGAIN * repeats)) ** 0.5
    notes = [f"share of {AGAIN * repeats} new runs; by chance ± {noise:.1f} points"]
    return Table("Cells below 95 %, drawn again", ["figure", "first", "again"], rows, notes)


def _covered(figure: Figure, rng: Rng, law: str, count: int, truth: float, repeats: int) -> float:
    held = 0
    for _ in range(repeats):
        bounds, mean = figure.interval(rng, law, count, truth)
        held += bounds.low <= mean <= bounds.high
    return held / repeats


def wrong_decisions(
    bench: Bench, repeats: int, counts: tuple[int, ...], truths: tuple[float, ...]
) -> Table:
    """How often a gate is wrong at its limit, and decides away from it: the worst law."""
    rows = list[list[Cell]]()
    for limits in (1, 5):
        for count in counts:
            for truth in truths:
                name = f"gate {limits} {count} {truth}"
                found = bench.cell(
                    f"{name} x{repeats}",
                    lambda m=limits, c=count, t=truth, n=name: _gates(  # type: ignore[misc]
                        _rng(bench, n), m, c, t, repeats
                    ),
                )
                cells = [None if np.isnan(one) else one for one in found]
                word = "limit" if limits == 1 else "limits"
                rows.append([f"{limits} {word}, {count:,} images, rate {truth:g}", *cells])
        bench.say(f"gates of {limits} limits")
    notes = [
        "every failure rate is equal to its limit; wrong fail: at least one of them fails; wrong pass: a certain one of them passes",
        f"passes below, fails above: the rate lies {HALF_WIDTHS} half-widths of its interval below or above the limit; not run: no limit lies so far below",
        f"worst of five laws, {repeats} runs each",
    ]
    columns = ["gate", "wrong fail", "wrong pass", "passes below", "fails above"]
    return Table("Gates", columns, rows, notes)


def _gates(rng: Rng, limits: int, count: int, truth: float, repeats: int) -> list[float]:
    """The worst law: wrong fails, wrong passes, passes below the limit, fails above it."""
    shares = []
    for law in LAWS:
        drawn = [_drawn_gate(rng, law, limits, count, truth) for _ in range(repeats)]
        wrong_fail = np.mean([any(one == "fail" for one in gate) for gate in drawn])
        wrong_pass = np.mean([gate[0] == "pass" for gate in drawn])
        half = _half_width(rng, law, count, truth)
        below = above = float("nan")
        if limits == 1:
            below, above = (
                _decided(rng, law, count, truth, truth + side * HALF_WIDTHS * half, repeats)
                for side in (1, -1)
            )
        shares.append((wrong_fail, wrong_pass, below, above))
    table = np.array(shares)
    with np.errstate(all="ignore"):
        return [
            float(table[:, 0].max()),
            float(table[:, 1].max()),
            *np.min(table[:, 2:], 0).tolist(),
        ]


def _drawn_gate(rng: Rng, law: str, limits: int, count: int, truth: float) -> list[str]:
    """What a gate says of so many rates, each equal to its limit."""
    return [
        decide(measured(rng, LAWS[law](rng, count, truth)), truth, limits=limits).outcome
        for _ in range(limits)
    ]


def _half_width(rng: Rng, law: str, count: int, truth: float) -> float:
    """The usual half-width of the interval of a rate."""
    drawn = [bounded_mean_interval(measured(rng, LAWS[law](rng, count, truth))) for _ in range(25)]
    return float(np.median([(high - low) / 2 for low, high in drawn]))


def _decided(rng: Rng, law: str, count: int, truth: float, limit: float, repeats: int) -> float:
    """How often a limit is decided as it should be; not a number where there is no such limit."""
    if not 0 < limit < 1:
        return float("nan")
    wanted = "pass" if limit > truth else "fail"
    tries = max(repeats // 10, 20)
    found = [
        decide(measured(rng, LAWS[law](rng, count, truth)), limit).outcome for _ in range(tries)
    ]
    return float(np.mean([one == wanted for one in found]))


def power(bench: Bench, repeats: int) -> Table:
    """How many images tell LeNet-5 from LeNet-1, and two copies of a network from a worse one."""
    joint = np.array(BETWEEN_NETWORKS)
    chance = joint.flatten() / joint.sum()
    rows = list[list[Cell]]()
    for count in (250, 500, 1000, 2000, 5000):
        rng = _rng(bench, f"power {count}")
        seen = alike_passed = worse_failed = 0
        for _ in range(repeats):
            cells = rng.choice(len(chance), count, p=chance)
            better, worse = (part / SAMPLES for part in np.divmod(cells, joint.shape[1]))
            seen += bounded_mean_interval(better - worse, -1.0).high < 0
            alike_passed += decide(better - worse, MARGIN, -1.0).outcome == "pass"
            worse_failed += decide(worse - better, 0.0, -1.0).outcome == "fail"
        rows.append(
            [f"{count:,} images", *(one / repeats for one in (seen, alike_passed, worse_failed))]
        )
        bench.say(f"power: {rows[-1][0]}")
    effect = float((np.arange(5) * (joint.sum(1) - joint.sum(0))).sum() / SAMPLES / joint.sum())
    columns = [
        "images",
        "difference is seen",
        "PASS of the better, margin 1 point",
        "FAIL of the worse, margin 0",
    ]
    notes = [
        f"images drawn with replacement from 1,000 digits on which LeNet-5 and LeNet-1 were measured (four samples, scanner): {100 * effect:+.2f} points",
        f"share of {repeats} runs",
    ]
    return Table("Two networks told apart", columns, rows, notes)


UNITS = (3, 4, 5, 6, 8, 12, 16, 30)
FEW: dict[str, tuple[Callable[[Rng, int], Vector], float]] = {
    "normal": (lambda rng, n: rng.normal(0, 1, n), 0.0),
    "uniform share": (lambda rng, n: rng.uniform(0, 1, n), 0.5),
    "skewed share, Beta(0.5, 5)": (lambda rng, n: rng.beta(0.5, 5, n), 0.5 / 5.5),
    "exponential": (lambda rng, n: rng.exponential(1, n), 1.0),
}


def few_units(bench: Bench, repeats: int) -> Table:
    """Coverage of the mean of a few runs or trainings."""
    rows = list[list[Cell]]()
    for name, (draw, truth) in FEW.items():
        row: list[Cell] = [name]
        for units in UNITS:
            cell = f"few {name} {units} x{repeats}"
            row += bench.cell(
                cell,
                lambda d=draw, t=truth, u=units, c=cell: [  # type: ignore[misc]
                    _few_covered(_rng(bench, c), d, t, u, repeats)
                ],
            )
        rows.append(row)
        bench.say(f"few units: {name}")
    notes = [f"share of {repeats} samples whose interval holds the mean"]
    return Table("Means of a few units", ["law", *(f"{n} units" for n in UNITS)], rows, notes)


def _few_covered(
    rng: Rng, draw: Callable[[Rng, int], Vector], truth: float, units: int, repeats: int
) -> float:
    held = 0
    for _ in range(repeats):
        found = mean_interval(torch.from_numpy(draw(rng, units)))
        held += found.low <= truth <= found.high
    return held / repeats
