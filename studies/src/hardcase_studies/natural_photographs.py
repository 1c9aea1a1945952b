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
from hardcase.errors import HardcaseError
from hardcase.methods.appearance_search import natural, natural_blackbox
from hardcase.models.names import COUNT
from hardcase.models.subject import Subject
from hardcase.models.witnesses import augmentation_for, even_half
from hardcase.suite.tables import Cell, Outcome, Table
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images, Method, Model
from hardcase_studies import figures
from hardcase_studies.bench import Bench, table_of
from hardcase_studies.lab import Lab, accuracy, read_rightly
from hardcase_studies.mixer import RECIPE, trained_mixer
from hardcase_studies.parts import Parts, limited
from hardcase_studies.witness_controls import ControlledSearch, controlled
from hardcase_studies.witness_world import (
    APART,
    SeedOutcomes,
    WitnessWorld,
    gain,
    half,
    median,
    percent,
    points,
    rate,
    rows_at_once,
    shape_of,
    share_of,
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
        raise HardcaseError("nothing was measured in that time.", fix="the same command again")
    notes = _notes(bench, worlds[0], seeds, lab.test, len(worlds))
    names = [one.name for one in worlds[0].scorers]
    line: dict[str, Cell] = {"search": "natural", **_cells(worlds, found, names)}
    table = table_of("Natural failures of CIFAR-10", [line], notes)
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
    odd = half(lab.train, "test")

    def network(train: Images, seed: int, augment: str | None, role: str) -> Subject:
        begun = perf_counter()
        passes = "epochs" if seed == 0 or "half_epochs" not in bench.options else "half_epochs"
        subject, card = lab.network(
            name, train=train, seed=APART * number + seed, epochs=passes, augment=augment, role=role
        )
        right = f"{card['accuracy']:.1%} right"
        bench.say(f"training {number + 1}, {role}: {right}, {perf_counter() - begun:.0f} s")
        return subject

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
    given = {"model": f"zoo:{IMAGENET[0]}", "data": bench.data, "device": bench.device}
    context = Context(parse({**given, "method": {"name": "natural"}}))
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
    names = [scorer.name, f"{sibling.name} (sibling)"]
    table = table_of(
        "Natural failures of photographs",
        [{"search": name, **_cells([world], [row], names)} for name, row in measured.items()],
        _notes(bench, world, seeds, images, 1),
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


def _cells(
    worlds: Sequence[WitnessWorld], rows: Sequence[ControlledSearch], scorers: Sequence[str]
) -> dict[str, Cell]:
    """One line: the same search in every world. `scorers` are the names of their columns."""
    found = [row.found for row in rows]
    right = torch.stack([_all_right(one, row.found.seeds) for one, row in zip(worlds, rows)], 1)
    own = together(found, "all")
    offered = together([row.filtered for row in rows], "all")
    apart = median(together(found, "lpips"))

    def around(name: str) -> str | None:
        shares = torch.cat([row.around[name] for row in rows])
        return f"{float(shares.mean()):.1%}" if len(shares) else None

    return {
        "found": share_of(found, "failing"),
        "witnessed": share_of(found, "witnessed"),
        "most scorers keep the label": share_of(found, "most"),
        "all scorers": percent(rate(own)),
        "of seeds that all scorers get right": percent(rate(torch.where(right, own, torch.nan))),
        "median L2": median(together(found, "l2")),
        "median LPIPS": None if math.isnan(apart) else apart,
        "median code size": median(together(found, "size")),
        "seconds of the search": round(float(found[0].columns["seconds"][0]), 1),
        **{name: share_of(found, f"scorer {i}") for i, name in enumerate(scorers, 1)},
        "all scorers, no witness": share_of([row.alone for row in rows], "all"),
        "a. all scorers, filter": percent(rate(offered)),
        "credited to witnesses, points": points(gain(own, offered)),
        "b. wrong label said by all scorers": share_of([row.wrong for row in rows], "all"),
        "c. random codes fail": around("random, subject"),
        **{name: around(name) for name in ("at 5 %", "at 10 %", "JPEG 90", "one pixel")},
    }


def _all_right(world: WitnessWorld, seeds: Images) -> Bool[Tensor, " n"]:
    """Which photographs all scorers of a world get right."""
    return torch.stack([read_rightly(one, seeds) for one in world.scorers]).all(0)


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
            shares = [row.found.share(hit) for hit in (level, level & kept)]
            table.append([search, name, *(percent(rate(share[:, None])) for share in shares)])
    return Table(
        "Failing at two levels, of photographs that the subject classifies correctly",
        ["search", "level", "found", "and ResNet-50 keeps the label"],
        table,
    )


@torch.no_grad()
def _logits(model: Model, x: Tensor) -> Float[Tensor, "t k"]:
    parts = [model(from_bytes(x[cut].to(model.device))).logits.cpu() for cut in chunks(len(x), 64)]
    return torch.cat(parts) if parts else torch.zeros(0, COUNT)


def _notes(
    bench: Bench, world: WitnessWorld, seeds: Images, test: Images, trainings: int
) -> list[str]:
    right = {one.name: accuracy(one, test) for one in world.networks}
    return [
        f"data {bench.data}, {len(seeds)} photographs, device {bench.device}, {trainings} training(s)",
        "rates are of photographs that the subject classifies correctly; a scorer that is wrong on the photograph itself counts as not keeping it",
        "brackets: 95 %, Wilson's; differences are paired by photograph (Newcombe); with several trainings t over photographs and trainings",
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
