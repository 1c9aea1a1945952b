"""Are the effects of conditions and the worst region what they say they are?

``hardcase reproduce effects`` simulates laws whose truth is known: how often the intervals of all conditions of a run hold together, how
often an effect or a region is told where there is none, and how often one is found where there is. Then both are computed for a network
of the zoo, beside the effects from evaluating every sample again.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardcase.conditions import Conditions, condition_box
from hardcase.conditions.box import ConditionBox, samples_of
from hardcase.conditions.effects import (
    Effect,
    EffectTable,
    differences,
    effects,
    effects_of_shard,
    weights_of_samples,
)
from hardcase.conditions.region import (
    RegionTable,
    WorstRegion,
    choose_region,
    region_of_shard,
    samples_inside,
    worst_region,
)
from hardcase.conditions.risk import answered, logits_under_conditions, seeds_of
from hardcase.conditions.wider import wider, wider_of_shard
from hardcase.data.sources import load
from hardcase.models.load import Loading, load_model
from hardcase.randomness import reserved
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import margin
from hardcase.types import Images, Model
from hardcase_studies.bench import Bench

SAMPLES = 4
CONDITIONS = 9
"""As many as the scanner profile has."""
MANY = 400_000
"""Images of the population that a truth is computed from."""
Law = Callable[[np.random.Generator, int], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""For so many images: by how much another class leads the label, as sampled and with a condition at neutral."""


def no_effect(
    rng: np.random.Generator, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """As many samples are repaired as are broken: about 0.7 of 100 each."""
    level = rng.normal(-6, 2, (count, 1))
    return level + rng.normal(0, 2, (count, SAMPLES)), level + rng.normal(0, 2, (count, SAMPLES))


def few_images(
    rng: np.random.Generator, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One image in a hundred carries all failures; no effect."""
    hard = rng.random((count, 1)) < 0.01
    level = np.where(hard, rng.normal(0, 1, (count, 1)), -20.0)
    return level + rng.normal(0, 2, (count, SAMPLES)), level + rng.normal(0, 2, (count, SAMPLES))


def misleading(
    rng: np.random.Generator, count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What newly fails has nothing to do with the margin; neutral is worse by two points."""
    first = rng.normal(-6, 2, (count, 1)) + rng.normal(0, 1, (count, SAMPLES))
    return first, np.where(rng.random((count, SAMPLES)) < 0.02, 1.0, -1.0)


def rare(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The condition breaks three samples in ten thousand and repairs none."""
    first = np.where(
        rng.random((count, SAMPLES)) < 3e-4, 1.0, -5 + rng.normal(0, 1, (count, SAMPLES))
    )
    return first, np.full((count, SAMPLES), -5.0)


def costly(rng: np.random.Generator, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The condition costs about eleven points, somewhat more than a turn does under large moves."""
    level = rng.normal(-6, 2, (count, 1))
    own = level + rng.normal(0, 1.5, (count, SAMPLES))
    return own + np.abs(rng.normal(0, 3, (count, SAMPLES))), level + rng.normal(
        0, 1.5, (count, SAMPLES)
    )


LAWS: tuple[Law, ...] = (no_effect, few_images, misleading, rare, costly)


def run(bench: Bench) -> Outcome:
    """``--set repeats=1000`` and ``region=200`` are the sizes."""
    return Outcome("effects", [_effects(bench), _regions(bench), *_on_data(bench)])


def estimate(rng: np.random.Generator, law: Law, count: int) -> tuple[Tensor, float, float]:
    """Return the estimated effect on each image, the truth of these images, and the share of samples asked again."""
    first, again = (torch.from_numpy(one) for one in law(rng, count))
    failed = first > 0
    neutral = again > 0
    weight = weights_of_samples(failed, first, torch.from_numpy(rng.random(first.shape)))
    value = differences(failed, weight, neutral[weight > 0])
    full = failed.double() - neutral.double()
    return value, float(full.mean()), float((weight > 0).double().mean())


def _effects(bench: Bench) -> Table:
    """Coverage of all intervals of a run together, and how often an effect is shown."""
    repeats = bench.size("repeats", 400, 2000)
    rows = list[list[Cell]]()
    for law in LAWS:
        _, truth, share = estimate(np.random.default_rng(bench.seed + 1), law, MANY)
        if law in (no_effect, few_images):
            truth = 0.0
        for count in (60, 1000):
            bench.say(f"effects: {law.__name__}, {count} images")
            rng = np.random.default_rng([bench.seed, count])
            found = [_one_run(rng, law, count) for _ in range(repeats)]
            held = sum(all(one.low <= truth <= one.high for one in each) for each in found)
            shown = sum(any(one.shown for one in each) for each in found)
            every = sum(all(one.shown for one in each) for each in found)
            rows.append(
                [
                    f"{law.__name__.replace('_', ' ')}, {count} images",
                    f"{100 * truth:.2f}",
                    f"{held} of {repeats}",
                    f"{shown} of {repeats}",
                    f"{every} of {repeats}",
                    f"{share:.0%}",
                ]
            )
    notes = [
        f"{CONDITIONS} conditions of one law in each run, {SAMPLES} samples per image, 95 % intervals that hold together",
        *(f"{law.__name__.replace('_', ' ')}: {law.__doc__}" for law in LAWS),
    ]
    columns = ["law", "true effect, points", "all intervals hold", "some effect shown"]
    return Table(
        "Effects of conditions", [*columns, "all effects shown", "samples asked again"], rows, notes
    )


def _one_run(rng: np.random.Generator, law: Law, count: int) -> list[Effect]:
    """What one run says of its conditions."""
    found = {f"condition {i}": estimate(rng, law, count)[0] for i in range(CONDITIONS)}
    none = torch.zeros(count, dtype=torch.int64)
    return effects([EffectTable(("",) * count, (), found, none)])


def chance(z: Tensor, hard: Tensor, corner: float) -> Tensor:
    """Return how likely each sample fails: a few hard images, and a corner of two conditions."""
    inside = (z[..., 0] > 0.5) & (z[..., 1] > 0.5)
    return 0.01 + 0.4 * (hard < 0.03) + corner * inside


def _regions(bench: Bench) -> Table:
    """How often a region is told, and how often its bound holds."""
    repeats = bench.size("region", 100, 400)
    rows = list[list[Cell]]()
    for corner in (0.0, 0.05, 0.1, 0.3):
        for count in (200, 1000):
            bench.say(f"regions: a corner of {corner:.0%}, {count} images")
            rng = np.random.default_rng([bench.seed, count])
            found = [_one_region(rng, corner, count, number) for number in range(repeats)]
            told = [(one, truth) for one, truth in found if one is not None]
            wrong = sum(one.low > truth for one, truth in told)
            bounds = [one.low for one, _ in told]
            truths = [truth for _, truth in told]
            name = f"{corner:.0%} more in a corner" if corner else "nothing stands out"
            rows.append(
                [
                    f"{name}, {count} images",
                    f"{len(told)} of {repeats}",
                    f"{wrong} of {repeats}",
                    *(f"{100 * median(each):.1f}" if told else "" for each in (bounds, truths)),
                ]
            )
    notes = [
        "eight conditions; 2.2 % of all samples fail without the corner, in which two of them are in their upper quarter each",
        "chosen on the open half, measured on fresh samples of the reserved half; the truth is that of the region that was chosen",
    ]
    columns = [
        "law",
        "a region is told",
        "its bound is too high",
        "median bound, %",
        "median truth, %",
    ]
    return Table("The worst region", columns, rows, notes)


def _cube() -> ConditionBox:
    """Eight conditions of one number each."""
    ranges = ("fading", "noise", "defocus", "fog")
    declared = dict.fromkeys(ranges, "0..40 %")
    declared |= {"noise": "0..10 levels", "defocus": "0..5 %", "exposure": "±1 stops"}
    declared |= {"rotation": "±8 deg", "shear": "±10 %", "scale": "±10 %"}
    return condition_box(Conditions(declared), (1, 16, 16))


def _one_region(
    rng: np.random.Generator, corner: float, count: int, number: int
) -> tuple[WorstRegion | None, float]:
    """What one run tells of its worst region, and the true rate there."""
    box = _cube()
    names = [f"{number}/{i}" for i in range(count)]
    hard = torch.from_numpy(rng.random((count, 1)))
    z = samples_of(box, names, SAMPLES, seed=number).z
    failed = torch.from_numpy(rng.random((count, SAMPLES))) < chance(z, hard, corner)
    region = choose_region(box, names, failed, seed=number)
    if region is None:
        return None, 0.0
    held = reserved(names)
    own = [name for name, is_held in zip(names, held.tolist()) if is_held]
    inside, _, _ = samples_inside(box, own, region, SAMPLES, seed=number)
    fails = torch.from_numpy(rng.random(inside.shape[:2])) < chance(inside, hard[held], corner)
    table = RegionTable(tuple(own), (), fails.double().mean(1), failed[held].double().mean(1))
    many, _, _ = samples_inside(box, list(map(str, range(2000))), region, SAMPLES, seed=1)
    expected = chance(many, torch.ones(1), corner) + 0.4 * 0.03
    return worst_region(region, [table]), float(expected.mean())


PHONE = {"rotation": "±30 deg", "shift": "±12 %", "scale": "±25 %"}


def _on_data(bench: Bench) -> list[Table]:
    """The figures of a network of the zoo, beside those from evaluating every sample again."""
    train, test = (load(bench.data, split=split) for split in ("train", "test"))
    how = Loading(train=train, test=test, device=bench.device, seed=bench.seed)
    model = load_model("zoo:lenet5", how)
    net = list[list[Cell]]()
    others = list[list[Cell]]()
    for declared in (Conditions.load("scanner"), Conditions(PHONE, name="large moves")):
        bench.say(f"zoo:lenet5 under {declared.name}")
        box = condition_box(declared, test.shape)
        failed, margins = _measured(model, test, box, bench.seed)
        began = process_time()
        table = effects_of_shard(model, test, box, seed=bench.seed, failed=failed, margins=margins)
        found = effects([table])
        rows: list[list[Cell]] = [
            ["failure rate, %", f"{100 * float(failed.double().mean()):.2f}"],
            *_region_rows(model, test, box, failed, margins, bench.seed),
            *_wider_rows(model, test, box, bench.seed),
            ["samples asked again per condition", int(table.queries.sum())],
            ["seconds of processor time", f"{process_time() - began:.1f}"],
        ]
        others += [[f"{declared.name}: {row[0]}", row[1]] for row in rows]
        full = effects(
            [effects_of_shard(model, test, box, seed=bench.seed, failed=failed, margins=None)]
        )
        every = {one.condition: f"{100 * one.value:.2f}" for one in full}
        for one in found:
            name = f"{declared.name}: {one.condition}"
            shown = "yes" if one.shown else "no"
            net.append([name, _points(one.value, one.low, one.high), every[one.condition], shown])
    columns = ["condition", "effect, points", "from every sample", "shown"]
    return [
        Table("Effects, zoo:lenet5", columns, net),
        Table("Worst region and wider ranges, zoo:lenet5", ["", "value"], others),
    ]


def _measured(model: Model, images: Images, box: ConditionBox, seed: int) -> tuple[Tensor, Tensor]:
    """Which samples of every image fail, and their margins."""
    seeds = seeds_of(images, box, model.device)
    drawn = samples_of(box, images.id, SAMPLES, seed=seed, device=model.device)
    of = torch.arange(len(images), device=model.device).repeat_interleave(SAMPLES)
    logits = logits_under_conditions(
        model, box, seeds, of, drawn.z.flatten(0, 1), drawn.pattern.flatten()
    )
    failed = answered(logits, seeds.y[of]).failed
    lead = margin(logits, seeds.y[of])
    return failed.reshape(-1, SAMPLES).cpu(), lead.reshape(-1, SAMPLES).cpu()


def _region_rows(
    model: Model, images: Images, box: ConditionBox, failed: Tensor, margins: Tensor, seed: int
) -> list[list[Cell]]:
    """The region that was chosen, and the least rate in it."""
    region = choose_region(box, images.id, failed, seed=seed, margins=margins)
    told = None
    if region is not None:
        told = worst_region(
            region, [region_of_shard(model, images, box, region, seed=seed, failed=failed)]
        )
    least = "not above the overall rate" if told is None else f"{100 * told.low:.1f}"
    return [["region that was chosen", str(region)], ["rate there at least, %", least]]


def _wider_rows(model: Model, images: Images, box: ConditionBox, seed: int) -> list[list[Cell]]:
    """The failure rates under wider ranges."""
    rates = wider([wider_of_shard(model, images, box, seed=seed)])
    return [
        [f"{one.scale:g} times the ranges, %", _points(one.value, one.low, one.high)]
        for one in rates
    ]


def _points(value: float, low: float, high: float) -> str:
    """A share with its interval, in points."""
    return f"{100 * value:.2f} [{100 * low:.2f}, {100 * high:.2f}]"
