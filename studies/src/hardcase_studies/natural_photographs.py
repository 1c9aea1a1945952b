"""Natural failures of photographs: is the label kept by networks that no search asked?

`cifar10`: a ResNet-18, two witnesses from half of the training images, three scorers from the other half that
are mixers and were never taught bending. `imagenet`: EfficientNet-Lite0, its sibling Lite1 as witness, ResNet-50 (another family) as
scorer and Lite2 apart, since it is a sibling. The denominator is every photograph that the subject classifies correctly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter, time

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.config import parse
from hardcase.context import Context
from hardcase.errors import Problem
from hardcase.methods.appearance_search import natural, natural_blackbox
from hardcase.models.health import answers
from hardcase.models.names import COUNT
from hardcase.models.subject import Subject
from hardcase.models.witnesses import augmentation_for, even_half
from hardcase.models.zoo import trained_classifier
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, fingerprints, from_bytes
from hardcase.types import Images, Method, Model
from hardcase_studies import figures
from hardcase_studies.bench import Bench
from hardcase_studies.lab import Lab
from hardcase_studies.mixer import RECIPE, trained_mixer
from hardcase_studies.parts import Parts, limited
from hardcase_studies.witness_controls import ControlledSearch, controlled
from hardcase_studies.witness_world import (
    APART,
    SeedOutcomes,
    WitnessWorld,
    accuracy,
    gain,
    half,
    median,
    percent,
    points,
    rate,
    rows_at_once,
    shape_of,
    together,
)

NETWORK = "resnet18"
IMAGENET = ("efficientnet-lite0", "efficientnet-lite1", "resnet50-imagenet", "efficientnet-lite2")
"""Subject, witness, scorer of another family, sibling."""
TOP = 5


def cifar10(bench: Bench) -> Outcome:
    """``--data cifar10`` or ``npz:FILE``, ``--set seeds=N half=development|test|all trainings=T precision=tf32 minutes=M``.

    Every network is kept in the cache and every search in its part: the same command goes on where it was stopped, and
    ``--set half_epochs=E`` shortens the training of witnesses and scorers, which learn from half of the images.
    """
    bench = limited(bench)
    lab = Lab(bench)
    pool = half(lab.test, str(bench.options.get("half", "test")))
    seeds = pool.sample(count=min(len(pool), bench.size("seeds", 20, 1000)), seed=bench.seed)
    parts = Parts.of(bench, "natural-cifar10", seeds)
    count = bench.size("trainings", 1, 5)
    worlds = list[WitnessWorld]()
    found = list[ControlledSearch]()
    for number in range(count):
        if found and time() >= parts.until:
            break
        here = _small_world(bench, lab, number)
        row = _photographed(bench, parts, here, seeds, natural(shape_of(seeds)))
        if row is None:
            break
        worlds.append(here)
        found.append(row)
    if not found:
        raise Problem("nothing was measured in that time.", fix="the same command again")
    notes = _notes(bench, worlds[0], seeds, lab.test, len(worlds))
    names = [one.name for one in worlds[0].scorers]
    columns = ["search", *_COLUMNS, *names, *_CONTROLS]
    line = ["natural", *_cells(worlds, found)]
    table = Table("Natural failures of CIFAR-10", columns, [line], notes)
    return Outcome("natural-cifar10", [table], _pictures(bench, found[0].found))


def _small_world(bench: Bench, lab: Lab, number: int) -> WitnessWorld:
    """One training of a subject from all images, two witnesses from half of them, three scorers from the other half.

    The scorers are mixers, another family of networks, and none of them is trained with the witnesses' augmentation: what
    follows the witnesses' gradients need not lead them astray too.
    """
    name = str(bench.options.get("model", NETWORK))
    epochs = bench.options.get("epochs")
    bent = augmentation_for(lab.train)
    crop = "crop-flip"
    even = even_half(lab.train)
    odd = lab.train.take((fingerprints(lab.train.x) % 2 == 1).nonzero().squeeze(1))

    def network(train: Images, seed: int, augment: str | None, role: str) -> Subject:
        begun = perf_counter()
        passes = epochs if seed == 0 else bench.options.get("half_epochs", epochs)
        net, card = trained_classifier(
            name,
            train,
            lab.test,
            seed=APART * number + seed,
            epochs=passes,
            augment=augment,
            device=bench.device,
        )
        right = f"{card['accuracy']:.1%} right"
        bench.say(f"training {number + 1}, {role}: {right}, {perf_counter() - begun:.0f} s")
        return Subject(net, classes=lab.test.classes, name=role, device=bench.device)

    def scorer(seed: int, augment: str) -> Subject:
        recipe = replace(RECIPE, augment=augment)
        passes = bench.options.get("half_epochs", epochs)
        if passes is not None:
            recipe = replace(recipe, epochs=passes)
        net, card = trained_mixer(
            odd, lab.test, seed=APART * number + seed, recipe=recipe, device=bench.device
        )
        role = f"scorer {seed - 2}, mixer, {augment}"
        bench.say(f"training {number + 1}, {role}: {card['accuracy']:.1%} right")
        return Subject(net, classes=lab.test.classes, name=role, device=bench.device)

    return WitnessWorld(
        network(lab.train, 0, None, f"{name}, the subject"),
        tuple(network(even, seed, bent, f"witness {seed}") for seed in (1, 2)),
        tuple(scorer(seed, augment) for seed, augment in ((3, crop), (4, crop), (5, "none"))),
        precision=str(bench.options.get("precision", "strict")),
    )


def imagenet(bench: Bench) -> Outcome:
    """``--data 'folder:PHOTOS?labels=prefix&split=all'``, ``--set seeds=N blackbox=N``: fetched networks, nothing is trained."""
    context = Context(
        parse(
            {
                "model": f"zoo:{IMAGENET[0]}",
                "data": bench.data,
                "device": bench.device,
                "method": {"name": "natural"},
            }
        )
    )
    subject, witness, scorer, sibling = (
        context.model(f"zoo:{name}", label_only=False) for name in IMAGENET
    )
    world = WitnessWorld(subject, (witness,), (scorer, sibling))
    images = context.images("test")
    seeds = images.sample(count=min(len(images), bench.size("seeds", 20, 1000)), seed=bench.seed)
    bench = limited(bench)
    parts = Parts.of(bench, "natural-imagenet", seeds)
    few = seeds.take(torch.arange(min(bench.size("blackbox", 0, 100), len(seeds))))
    trials = [(natural(shape_of(seeds)), seeds)]
    if len(few):
        trials.append((natural_blackbox(shape_of(seeds), queries=2000), few))
    found = {
        _name(method): _photographed(bench, parts, world, some, method) for method, some in trials
    }
    measured = {name: row for name, row in found.items() if row is not None}
    columns = ["search", *_COLUMNS, scorer.name, f"{sibling.name} (sibling)", *_CONTROLS]
    notes = _notes(bench, world, seeds, images, 1)
    table = Table(
        "Natural failures of photographs",
        columns,
        [[name, *_cells([world], [row])] for name, row in measured.items()],
        notes,
    )
    return Outcome(
        "natural-imagenet",
        [table, _levels(subject, measured)],
        _pictures(bench, next(iter(measured.values())).found) if measured else [],
    )


# Rows with their controls.


def _photographed(
    bench: Bench, parts: Parts, world: WitnessWorld, seeds: Images, method: Method
) -> ControlledSearch | None:
    draws = bench.size("draws", 2, 10)
    return controlled(bench, parts, world, method, seeds, name=_name(method), draws=draws)


def _name(method: Method) -> str:
    return "natural-blackbox" if method.needs == "label" else "natural"


_COLUMNS = (
    "found",
    "witnessed",
    "most scorers keep the label",
    "all scorers",
    "of seeds that all scorers get right",
    "median L2",
    "median LPIPS",
    "median code size",
    "seconds of the search",
)
_CONTROLS = (
    "all scorers, no witness",
    "a. all scorers, filter",
    "credited to witnesses, points",
    "b. wrong label said by all scorers",
    "c. random codes fail",
    "at 5 %",
    "at 10 %",
    "JPEG 90",
    "one pixel",
)


def _cells(worlds: Sequence[WitnessWorld], rows: Sequence[ControlledSearch]) -> list[Cell]:
    """One line: the same search in every world."""
    found = [row.found for row in rows]
    right = torch.stack([_all_right(one, row.found.seeds) for one, row in zip(worlds, rows)], 1)
    own = together(found, "all")
    offered = together([row.filtered for row in rows], "all")
    shares = {
        name: torch.cat([row.around[name] for row in rows])
        for name in ("random, subject", "at 5 %", "at 10 %", "JPEG 90", "one pixel")
    }
    return [
        *(percent(rate(together(found, name))) for name in ("failing", "witnessed", "most", "all")),
        percent(rate(torch.where(right, own, torch.nan))),
        median(together(found, "l2")),
        _measured(median(together(found, "lpips"))),
        median(together(found, "size")),
        round(float(found[0].columns["seconds"][0]), 1),
        *(
            percent(rate(together(found, f"scorer {i}")))
            for i in range(1, len(worlds[0].scorers) + 1)
        ),
        percent(rate(together([row.alone for row in rows], "all"))),
        percent(rate(offered)),
        points(gain(own, offered)),
        percent(rate(together([row.wrong for row in rows], "all"))),
        *(f"{float(value.mean()):.1%}" if len(value) else None for value in shares.values()),
    ]


def _measured(value: float) -> float | None:
    return None if math.isnan(value) else value


def _all_right(world: WitnessWorld, seeds: Images) -> Bool[Tensor, " n"]:
    """Which photographs all scorers of a world get right."""
    said = [answers(one, seeds).argmax(1).cpu() == seeds.y for one in world.scorers]
    return torch.stack(said).all(0)


def _levels(subject: Model, rows: Mapping[str, ControlledSearch]) -> Table:
    """How wrong the subject is: another first answer, or outside the first five; synonyms are no failures."""
    table: list[list[Cell]] = []
    for search, row in rows.items():
        found = row.found.found
        outside = ~(_logits(subject, found.x).topk(TOP, 1).indices == found.expected[:, None]).any(
            1
        )
        kept = row.found.columns["scorer 1"][found.seed] > 0
        levels = {"top-1": torch.ones_like(outside), f"outside top-{TOP}": outside}
        for name, level in levels.items():
            table.append([search, name, *_shares(row.found, [level, level & kept])])
    return Table(
        "Failing at two levels, of photographs that the subject classifies correctly",
        ["search", "level", "found", "and ResNet-50 keeps the label"],
        table,
    )


def _shares(found: SeedOutcomes, levels: Sequence[Bool[Tensor, " t"]]) -> list[str]:
    shares = []
    for level in levels:
        column = torch.where(found.columns["failing"].isfinite(), 0.0, torch.nan)
        column[found.found.seed] = level.double().to(column.dtype)
        shares.append(percent(rate(column[:, None])))
    return shares


@torch.no_grad()
def _logits(model: Model, x: Tensor) -> Float[Tensor, "t k"]:
    parts = [model(from_bytes(x[cut].to(model.device))).logits.cpu() for cut in chunks(len(x), 64)]
    return torch.cat(parts) if parts else torch.zeros(0, COUNT)


def _notes(
    bench: Bench, world: WitnessWorld, seeds: Images, test: Images, trainings: int
) -> list[str]:
    networks: Mapping[str, Model] = {
        one.name: one for one in (world.subject, *world.witnesses, *world.scorers)
    }
    right = {name: accuracy(one, test) for name, one in networks.items()}
    return [
        f"data {bench.data}, {len(seeds)} photographs, device {bench.device}, {trainings} training(s)",
        "rates are of photographs that the subject classifies correctly; a scorer that is wrong on the photograph itself counts as not keeping it",
        "brackets: 95 %, Wilson's; differences are paired by photograph (Newcombe); with several trainings t over photographs and trainings"
        " over photographs and trainings",
        *(f"{name}: {share:.1%} of {len(test)} right" for name, share in right.items()),
        f"{rows_at_once(seeds, world.subject)} photographs in one call at most",
    ]


def _pictures(bench: Bench, part: SeedOutcomes) -> list[str]:
    found = part.found
    if not len(found):
        return []
    some = found.seed[:10]
    return [
        figures.images(
            bench.out / "pairs.png", {"photograph": part.seeds.x[some], "finding": found.x[:10]}
        )
    ]
