"""Every method beside each other: the same seeds, the same number of network passes, one judge that none was tuned on.

The cost of a search is counted in forward passes of the subject: every network that is asked about a candidate (subject, peers,
witnesses, a generator's decoder) counts by its floating-point operations, a backward pass as two. Each method may choose among
three settings on other seeds at the smallest budget; then the seeds are searched once at every budget. One outcome counts per seed,
the nearest failing image. The null is random draws of declared conditions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from scipy.stats import binomtest
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hardcase.analysis.maps import cells_of, grid_of
from hardcase.campaign.in_memory import search_campaign
from hardcase.campaign.record import Campaign, parse_keep
from hardcase.context import Context
from hardcase.data.sources import load
from hardcase.judges import panel
from hardcase.judges.grouping import groups
from hardcase.models.witnesses import SEEDS, default_witnesses
from hardcase.randomness import Rng, keys_of, stream
from hardcase.statistics import Interval, holm, wilson_interval as wilson
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import digest, from_bytes
from hardcase.types import KINDS, Budget, Images, Model, Seeds
from hardcase_studies import rivals
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.blind_study import blind_study
from hardcase_studies.lab import Lab, accuracy, read_by_all, read_rightly
from hardcase_studies.parts import Parts, limited
from hardcase_studies.stored import commit
from hardcase_studies.witness_world import (
    SMALLEST,
    SeedOutcomes,
    WitnessWorld,
    accepted_unchanged,
    gain,
    median,
    percent,
    points,
    rate,
    scored,
    together,
)
from hardcase_studies.yardstick_table import NULL, Share, YardstickRow, YardstickTable, write

__all__ = ["ROWS", "Entry", "entry_of", "measure", "rows_of", "run", "tables"]

RIVALS = Path(rivals.__file__)
RETRAINED = 1000
"""Between the random seeds of a subject and of its retraining."""
BACKWARD = 2
"""Forward passes that a backward pass counts as."""
CLIMBED = 0.9
"""Share of a budget that goes into gradients; the rest is for the way back toward the seed."""
READ = 40
"""Images of each method that people are asked to name."""
EXAMPLE = 16
"""Rows on which operations are counted."""
GREY = ("feature-perturbation", "style-mixing")
"""Methods that paint images of a class, for which there is a small generator of grey images only."""
MAPS = {1: "stroke,slant", 3: "brightness,contrast"}
"""Features whose cells are counted, by the number of channels."""


RADII = (8 / 255, 4 / 255, 16 / 255)
"""Radii of attacks on colour images that articles use; digits stand much more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A row of the table: a method and the three settings it may choose from.

    Args:
        name: What the table calls it.
        method: As ``--method`` takes it.
        option: The option that the three settings differ in; empty: there is nothing to choose.
        trials: Its values; the first is the default.
        colour: Its values for colour, where they are others.
        steps: The option that is given how many steps the budget buys.
        fixed: Options of all settings.
        values: Further keys of a configuration, for grey images.
        fresh: It paints its own seeds, so no seed can be compared with another method's.
    """

    name: str
    method: str
    option: str = ""
    trials: tuple[Any, ...] = ()
    colour: tuple[Any, ...] = ()
    steps: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False

    @property
    def settings(self) -> list[dict[str, Any]]:
        """What tuning may choose from."""
        return [{self.option: value} for value in self.trials] or [{}]


ROWS: tuple[Entry, ...] = (
    Entry(name=NULL, method=f"{RIVALS}:random_conditions", steps="queries"),
    Entry(name="sinvad@paper", method="sinvad@paper", option="spread", trials=(1.0, 0.7, 1.5)),
    Entry(name="sinvad@code", method="sinvad@code", option="spread", trials=(0.7, 0.4, 1.2)),
    Entry(name="sinvad", method="sinvad", option="classes", trials=(4, 2, 8)),
    Entry(name="argus", method="argus", option="mix", trials=(0.3, 0.4, 0.5), steps="queries"),
    Entry(name="argus-adaptive", method="argus-adaptive", option="rounds", trials=(3, 1, 5)),
    Entry(
        name="feature-perturbation", method="feature-perturbation", option="step_size",
        trials=(0.005, 0.02, 0.05), steps="gradients", values={"generator": "vae:conditional"}, fresh=True,
    ),
    Entry(
        name="deepxplore", method="deepxplore", option="step_size", trials=(0.02, 0.05, 0.1), steps="gradients"
    ),
    Entry(name="dlfuzz", method="dlfuzz", option="step_size", trials=(0.02, 0.05, 0.1), steps="gradients"),
    Entry(
        name="maxplore one", method="maxplore", option="step_size", trials=(0.05, 0.1, 0.2),
        fixed={"form": "one", "steps": 10},
    ),
    Entry(
        name="maxplore topk", method="maxplore", option="step_size", trials=(0.05, 0.1, 0.2),
        fixed={"form": "topk", "steps": 10},
    ),
    Entry(name="maxplore multi", method="maxplore", option="step_size", trials=(0.03, 0.06, 0.12)),
    Entry(name="adapt", method="adapt", option="neurons", trials=(10, 3, 30)),
    Entry(name="deephunter", method="deephunter", option="beta", trials=(0.2, 0.1, 0.4)),
    Entry(name="tensorfuzz", method="tensorfuzz", option="sigma", trials=(0.1, 0.05, 0.2), steps="queries"),
    Entry(name="diffchaser", method="diffchaser", option="reach", trials=(32 / 255, 16 / 255, 64 / 255)),
    Entry(
        name="pgd", method="pgd", option="epsilon", trials=(0.3, 0.1, 0.2), colour=RADII, steps="gradients"
    ),
    Entry(name="cw", method="cw", option="step_size", trials=(0.02, 0.05, 0.1), fixed={"rounds": 3}),
    Entry(
        name="square", method=f"{RIVALS}:square", option="epsilon", trials=(0.3, 0.1, 0.2), colour=RADII,
        steps="queries",
    ),
    Entry(name="natural", method="natural", option="step_size", trials=(0.1, 0.05, 0.2), steps="gradients"),
    Entry(
        name="natural-blackbox", method="natural-blackbox", option="spread", trials=(0.4, 0.2, 0.8),
        steps="queries", fixed={"search": "evolution"},
    ),
    Entry(name="latte", method="latte", option="step_sizes", trials=((0.2, 0.4, 0.6), (0.4,), (0.6,)), steps="anchors"),
    Entry(
        name="style-mixing", method="style-mixing", option="steps", trials=(4, 2, 8), values={"generator": "gan"},
        fresh=True,
    ),
)  # fmt: skip
"""The null and twenty-two forms of nineteen methods."""


def run(bench: Bench) -> Outcome:
    """``--set passes=[100,1000] seeds=N trainings=N tuned_on=N methods=[…] seconds=S minutes=M add=file.py:name``.

    ``seconds=S`` gives every method as many passes as it can make in S seconds per seed; measure it on a machine that does nothing else.
    ``witnesses=N`` asks the first N of the default witnesses instead of all.
    ``retrained=false`` trains no second subject, and nothing is said of what one would fail on.
    ``model=NAME epochs=N train_images=N`` make a small form of a large data set.
    """
    bench = limited(bench)
    entries = chosen(bench)
    grid = [int(one) for one in bench.options.get("passes", [100, 1000] if bench.full else [100])]
    settings = settings_of(bench)
    found = measure(bench, settings, entries, grid)
    limit = bench.options.get("seconds")
    notes = notes_of(settings)
    if limit is not None:
        notes.append(
            f"each method may spend the passes that {limit} s per seed bought on the tuning seeds"
        )
    write(bench.out / "yardstick.json", YardstickTable(schema=1, rows=tuple(rows_of(bench, found))))
    first = {name: one.outcomes[0] for (name, passes), one in found.items() if passes == min(grid)}
    blind_study(bench.out / "blind", first, seed=bench.seed, each=READ)
    return Outcome("yardstick", tables(found, grid, entries, notes, limit))


def notes_of(settings: Sequence[Setting]) -> list[str]:
    """What subjects, witnesses and judge read rightly of the test images, and what their training took."""
    first = settings[0]
    test = first.lab.test
    right = [accuracy(one.world.subject, test) for one in settings]
    judge = first.world.judges["accepted"].card
    return [
        f"{len(first.lab.train)} training images; of {len(test)} test images subjects read {min(right):.1%} to {max(right):.1%} "
        f"rightly, the judge {judge['accuracy']:.1%}",
        f"of the {len(first.seeds)} seeds themselves, unchanged, the judge accepts "
        f"{accepted_unchanged(first.world.judges['accepted'], first.seeds):.1%}",
        f"trained apart: a subject in {first.seconds:.0f} s, the judge in {judge['seconds']:.0f} s",
    ]


def chosen(bench: Bench) -> list[Entry]:
    """The null and the methods that were asked for, and those of others."""
    colour = len(load(bench.data, split="test").x[0]) > 1
    usual = [row.name for row in ROWS if not (colour and row.name in GREY)]
    wanted = bench.names("methods", usual)
    own = [entry_of(spec) for spec in bench.names("add", ())]
    rows = [row for row in ROWS if row.name in (NULL, *wanted)]
    if colour:
        rows = [replace(row, trials=row.colour or row.trials) for row in rows]
    return rows + own


def entry_of(spec: str) -> Entry:
    """A method of somebody else's as a row: nothing is tuned but what its author has set."""
    return Entry(name=spec.rpartition(":")[2], method=spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One training: networks, seeds, what everybody is judged by, and the seconds that the subject's training took."""

    world: WitnessWorld
    seeds: Images
    other: Images
    lab: Lab
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one method did at one budget, training by training.

    Args:
        entry: The method.
        setting: The options that tuning chose on the first training.
        outcomes: One per training.
        weight: Forward passes of the subject that one candidate costs.
        seconds: Of the search, per seed.
        drawn: Hash of the seeds of all trainings.
        subject: Name of the network under test.
        allowed: Passes that a seed may cost.
    """

    entry: Entry
    setting: Mapping[str, Any]
    outcomes: list[SeedOutcomes]
    weight: float
    seconds: float
    drawn: str
    subject: str
    allowed: int


def measure(
    bench: Bench, settings: Sequence[Setting], entries: Sequence[Entry], grid: Sequence[int]
) -> dict[tuple[str, int], Measured]:
    """Tune every method on the first training at the smallest budget and search at each; what is stored is not searched again."""
    found: dict[tuple[str, int], Measured] = {}
    for entry in entries:
        options = _tuned(bench, settings[0], entry, min(grid))
        for passes in grid:
            allowed = _bought(bench, settings[0], entry, options, passes)
            cells = [_cell(bench, one, one.seeds, entry, options, allowed) for one in settings]
            found[entry.name, passes] = Measured(
                entry=entry,
                setting=options,
                outcomes=cells,
                weight=float(cells[0].columns["weight"][0]),
                seconds=float(torch.stack([one.columns["seconds"][0] for one in cells]).mean()),
                drawn=digest([one.seeds.hash for one in settings]),
                subject=settings[0].world.subject.name,
                allowed=allowed,
            )
    return found


def _bought(
    bench: Bench, one: Setting, entry: Entry, options: Mapping[str, Any], passes: int
) -> int:
    """The passes of a budget; with ``seconds=S`` as many as S seconds per seed bought on the seeds that settings were chosen on."""
    if "seconds" not in bench.options:
        return passes
    took = float(_cell(bench, one, one.other, entry, options, passes).columns["seconds"][0])
    return max(2, int(passes * float(bench.options["seconds"]) / max(took, 1e-6)))


def settings_of(bench: Bench) -> list[Setting]:
    """Every training with the same seeds, which all subjects read rightly; generators, witnesses and judge are shared."""
    lab = Lab(bench)
    judge = panel.trained(
        lab.train, lab.test, config=bench.options.get("judge_training"), device=bench.device
    )
    trainings = range(bench.seed, bench.seed + bench.size("trainings", 1, 8))
    subjects, cards = zip(*(lab.network(seed=number) for number in trainings), strict=True)
    retrained: list[tuple[Model, ...]] = [() for _ in trainings]
    if bench.options.get("retrained", True):
        retrained = [(lab.network(seed=number + RETRAINED)[0],) for number in trainings]
    count = bench.size("seeds", 60, 200)
    drawn = read_by_all(subjects, lab.test).sample(
        count=count + bench.size("tuned_on", 20, 40), seed=bench.seed
    )
    rows = torch.arange(len(drawn))
    return [
        Setting(
            world=WitnessWorld(subject, (), again, {"accepted": judge}),
            seeds=drawn.take(rows[:count]),
            other=drawn.take(rows[count:]),
            lab=Lab(bench, splits=(lab.train, lab.test), subject=subject),
            seconds=float(card["seconds"]),
        )
        for subject, again, card in zip(subjects, retrained, cards, strict=True)
    ]


def _tuned(bench: Bench, one: Setting, entry: Entry, passes: int) -> dict[str, Any]:
    """The setting with most accepted seeds among others' seeds; the first of equals, which is the default."""
    if len(entry.settings) == 1:
        return entry.settings[0]

    def share_accepted(options: dict[str, Any]) -> float:
        told = _cell(bench, one, one.other, entry, options, passes).columns["accepted"]
        return float(told.nan_to_num(0).sum())

    return max(entry.settings, key=share_accepted)


def _cell(
    bench: Bench, one: Setting, seeds: Images, entry: Entry, options: Mapping[str, Any], passes: int
) -> SeedOutcomes:
    parts = Parts.of(bench, "yardstick", seeds)
    asked = {
        **asdict(entry),
        "method": entry.method.removeprefix(str(RIVALS.parent)),
        "trials": None,
        "colour": None,
    }
    if count := _witnesses(bench, entry):
        asked["witnesses"] = count
    known = digest([json.dumps([asked, dict(options), passes], sort_keys=True)])
    name = f"{entry.name} {dict(options)}, {passes} passes ({known})"
    return parts.outcomes(
        one.world, name, seeds, lambda: _searched(bench, one, seeds, entry, options, passes)
    )


def _witnesses(bench: Bench, entry: Entry) -> int | None:
    """How many of the default witnesses a method that asks them is given; None: all."""
    if not entry.method.startswith("natural"):
        return None
    count = bench.options.get("witnesses")
    return None if count is None else int(count)


def _searched(
    bench: Bench,
    one: Setting,
    seeds: Images,
    entry: Entry,
    options: Mapping[str, Any],
    passes: int,
) -> SeedOutcomes:
    """One method at one budget on one sample of seeds, each scored by its nearest failing image."""

    def made(**more: Any) -> Context:
        given = {**entry.fixed, **options, **more}
        settings: dict[str, Any] = {"seed": bench.seed, "data": bench.data}
        if seeds.x.shape[1] == 1:  # colour has one generator for all
            settings |= entry.values
        if count := _witnesses(bench, entry):
            settings["witnesses"] = default_witnesses(
                one.lab.train, one.lab.test, seeds=SEEDS[:count], device=bench.device
            )
        return Context.of(
            one.world.subject, seeds, entry.method, options=given, train=one.lab.train, **settings
        )

    first = made()
    images = first.seeds.images()
    weight = _weight(first.campaign, images)
    graded = first.method.needs == "gradients"
    calls = max(2, int(passes / weight))  # forward passes of all that is asked about a candidate
    steps = max(1, int(CLIMBED * calls / (1 + BACKWARD))) if graded else calls - 1
    ready = made(**{entry.steps: steps}) if entry.steps else first
    budget = Budget(queries=calls)
    if graded:
        budget = Budget(queries=calls - BACKWARD * steps, gradients=steps)
    campaign = replace(ready.campaign, keep=parse_keep("best"))
    right = read_rightly(one.world.subject, images).nonzero().squeeze(1)
    bench.say(f"{entry.name} {dict(options)}: {passes} passes, {steps} steps, {len(right)} seeds")
    done = search_campaign(campaign, images.take(right), budget, shard=64)
    left = (done.findings.kind == KINDS.index("label")).nonzero().squeeze(1)
    found = done.findings.take(left)
    found = replace(found, seed=right[found.seed])
    spent = weight * (done.queries + BACKWARD * done.gradients).double()
    outcome = scored(one.world, found, images, right[done.attempted], spent[done.attempted])
    more = {"weight": weight, "seconds": done.seconds / max(len(right), 1)}
    same = {
        key: torch.full((len(images),), value, dtype=torch.float64) for key, value in more.items()
    }
    return replace(outcome, columns={**outcome.columns, **same})


@torch.no_grad()
def _weight(campaign: Campaign, images: Images) -> float:
    """Operations per candidate, in forward passes of the subject: decoder, subject, peers and witnesses."""
    some = images.take(torch.arange(min(EXAMPLE, len(images))))
    x = from_bytes(some.x).to(campaign.subject.device)
    rng = Rng(0, "yardstick", keys_of(some.id))
    space = campaign.method.space
    z, context = space.encode(x, some.y, rng)
    origin = Seeds(z, x, some.y, torch.arange(len(x)), {**some.context, **context})
    decoder = _operations(lambda: space.decode(z, origin))
    asked = (campaign.subject, *campaign.peers, *campaign.witnesses)
    networks = [_operations(partial(model, x)) for model in asked]
    return (decoder + sum(networks)) / max(networks[0], 1)


def _operations(call: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops())


# The tables.


def rows_of(bench: Bench, found: Mapping[tuple[str, int], Measured]) -> list[YardstickRow]:
    """What was measured, as rows that others' can stand beside."""
    adjusted: dict[tuple[str, int], float] = {}
    for passes in {passes for _, passes in found}:
        adjusted |= {(name, passes): p for name, p in _adjusted(found, passes).items()}
    return [
        _as_row(bench, one, adjusted.get((name, passes))) for (name, passes), one in found.items()
    ]


def _as_row(bench: Bench, one: Measured, p: float | None) -> YardstickRow:
    parts = one.outcomes
    failing, accepted = together(parts, "failing"), together(parts, "accepted")
    again = torch.where(accepted > 0, 1 - together(parts, "all"), torch.nan)
    return YardstickRow(
        method=one.entry.name,
        data=bench.data,
        subject=one.subject.removeprefix("zoo:"),
        passes=one.allowed,
        seconds=bench.options.get("seconds"),
        trainings=len(parts),
        attempted=int(failing.isfinite().sum()),
        failing=_share(failing),
        accepted=_share(accepted),
        again=_share(again),
        l2=_known(median(together(parts, "l2"))),
        lpips=_known(median(together(parts, "lpips"))),
        groups=sum(_groups(part) for part in parts),
        cells=_cells(parts),
        spent=float(together(parts, "passes").nanmean()),
        milliseconds=1000 * one.seconds,
        p=p,
        seeds=one.drawn,
        commit=commit(),
    )


def seed_rate(table: Float[Tensor, "n t"]) -> Interval:
    """A share of seeds: crossed over seeds and trainings; where all cells are equal Wilson's for as many seeds as there are."""
    known = table[table.isfinite()]
    if len(known) and known.min() == known.max():
        seeds = int(table.isfinite().any(1).sum())
        return Interval(float(known[0]), *wilson(seeds * int(known[0]), seeds))
    found = rate(table)
    return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))


def _share(table: Tensor) -> Share | None:
    """None where nothing was attempted, or too little for an interval."""
    if not bool(table.isfinite().any()):
        return None
    found = seed_rate(table)
    if isnan(found.low):
        return Share(value=found.value, low=0.0, high=1.0)
    return Share(value=found.value, low=found.low, high=found.high)


def _known(value: float) -> float | None:
    return None if isnan(value) else value


def _adjusted(found: Mapping[tuple[str, int], Measured], passes: int) -> dict[str, float]:
    """p-values of all methods against the null at one budget, corrected by Holm."""
    null = together(found[NULL, passes].outcomes, "accepted")
    names = [
        name
        for name, budget in found
        if budget == passes and name != NULL and not found[name, budget].entry.fresh
    ]
    accepted = {name: together(found[name, passes].outcomes, "accepted") for name in names}
    corrected = holm([_pvalue(accepted[name], null) for name in names])
    return dict(zip(names, corrected, strict=True))


def tables(
    found: Mapping[tuple[str, int], Measured],
    grid: Sequence[int],
    entries: Sequence[Entry],
    notes: Sequence[str] = (),
    seconds: float | None = None,
) -> list[Table]:
    """A table per budget: what each method reaches, and what it adds to random conditions."""
    names = {passes: f"{passes} passes per seed" for passes in grid}
    if seconds is not None:
        names = dict.fromkeys(grid, f"{seconds} s per seed")
    return [_table(found, passes, entries, names[passes], notes) for passes in grid]


def _table(
    found: Mapping[tuple[str, int], Measured],
    passes: int,
    entries: Sequence[Entry],
    name: str,
    more: Sequence[str],
) -> Table:
    null = found[NULL, passes]
    adjusted = _adjusted(found, passes)
    rows = [_row(found[entry.name, passes], null, adjusted.get(entry.name)) for entry in entries]
    trainings = len(null.outcomes)
    notes = [
        *more,
        f"{name} at most; trainings of the subject: {trainings}; intervals over seeds and, where there are several, trainings",
        "settings were chosen on other seeds of the first training; all trainings have the same seeds, generators, witnesses and judge",
        "accepted: by one judge (networks), fixed before and asked by no search; of attempted seeds",
        "groups: of accepted findings; cells: of a 10 x 10 map with an accepted finding, over all trainings (digits: stroke, slant; colour: brightness, contrast)",
        "to an accepted failure: what all seeds cost over the number of seeds that are accepted",
        f"LPIPS on AlexNet, of images enlarged where they are smaller than {SMALLEST} pixels",
        f"training of generators, witnesses and the judge is not counted; up to {READ} images per method stand ready for "
        "`hardcase study serve OUT/blind`, which nobody has answered",
        "feature-perturbation and style-mixing paint their own seeds and are compared with nobody",
    ]
    return table_of(name, rows, notes)


def _row(one: Measured, null: Measured, adjusted: float | None) -> dict[str, Cell]:
    parts = one.outcomes
    accepted = together(parts, "accepted")
    failing = together(parts, "failing")
    of_failing = torch.where(failing > 0, accepted, torch.nan)
    again = torch.where(accepted > 0, 1 - together(parts, "all"), torch.nan)
    compared = ""
    if one is not null and not one.entry.fresh:
        compared = points(gain(accepted, together(null.outcomes, "accepted")))
    spent = float(together(parts, "passes").nanmean())
    return {
        "method": one.entry.name,
        "searched": int(failing.isfinite().sum()),
        "failing": _percent(failing),
        "accepted": _percent(accepted),
        "accepted, by training": _by_training(accepted),
        "accepted of failing": _percent(of_failing),
        "points above random conditions": compared,
        "p, Holm": "" if adjusted is None else f"{adjusted:.3g}",
        "median L2": _number(median(together(parts, "l2")), ".2f"),
        "median LPIPS": _number(median(together(parts, "lpips")), ".3f"),
        "groups": sum(_groups(part) for part in parts),
        "cells": _cells(parts),
        "a retraining fails too": _percent(again),
        "passes per seed": f"{spent:.0f}",
        "ms per seed": f"{1000 * one.seconds:.1f}",
        "passes to an accepted failure": _each(spent, accepted, ".0f"),
        "seconds to an accepted failure": _each(one.seconds, accepted, ".2f"),
        "passes per candidate": f"{one.weight:.2f}",
        "setting": json.dumps(dict(one.setting)) if one.setting else "",
    }


def _by_training(accepted: Float[Tensor, "n t"]) -> str | None:
    """The least and the greatest share of a training."""
    each = accepted.nanmean(0)
    return f"{float(each.min()):.1%} to {float(each.max()):.1%}" if len(each) > 1 else None


def _each(spent: float, accepted: Float[Tensor, "n t"], form: str) -> str:
    """What was spent per seed, over the share of seeds that are accepted."""
    share = float(accepted.nanmean())
    return format(spent / share, form) if share > 0 else "none"


def _number(value: float, form: str) -> str | None:
    return None if isnan(value) else format(value, form)


def _percent(table: Tensor) -> str | None:
    return percent(seed_rate(table)) if bool(table.isfinite().any()) else None


def _accepted(part: SeedOutcomes) -> Tensor:
    """Rows of the findings that are accepted."""
    return (part.columns["accepted"][part.found.seed] > 0).nonzero().squeeze(1)


def _groups(part: SeedOutcomes) -> int:
    """Groups of accepted findings by the pixels of what was found, within pairs of classes."""
    found = part.found.take(_accepted(part))
    if not len(found):
        return 0
    features = from_bytes(found.x).flatten(1)
    return len(
        groups(features, found.expected, found.predicted, found.distance, stream(0, "groups"))
    )


def _cells(parts: Sequence[SeedOutcomes]) -> int:
    seeds = parts[0].seeds
    grid = grid_of(MAPS[seeds.x.shape[1]], seeds)
    shown = [part.found.x[_accepted(part)] for part in parts]
    return len(set(cells_of(grid, torch.cat(shown))) - {-1}) if any(map(len, shown)) else 0


def _pvalue(mine: Float[Tensor, "n t"], null: Float[Tensor, "n t"]) -> float:
    """McNemar's exact test over seeds, a seed counting by the sign of its sum over trainings."""
    difference = (mine.nan_to_num(0) - null.nan_to_num(0)).sum(1)
    more, less = int((difference > 0).sum()), int((difference < 0).sum())
    return float(binomtest(more, more + less).pvalue) if more + less else 1.0
