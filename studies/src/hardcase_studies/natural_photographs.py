"""Natural failures of photographs: is the label kept by networks that no search asked?

`cifar10`: a ResNet-18, two witnesses from half of the training images, three scorers from the other half, with and without
bending in their lessons. `imagenet`: EfficientNet-Lite0, its sibling Lite1 as witness, ResNet-50 (another family) as
scorer and Lite2 apart, since it is a sibling. The denominator is every photograph that the subject classifies correctly.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.config import parse
from hardcase.context import Context
from hardcase.methods.natural import natural, natural_blackbox
from hardcase.models.health import answers
from hardcase.models.pretrained.synsets import COUNT
from hardcase.models.pretrained.synsets import imagenet as imagenet_classes
from hardcase.models.subject import Subject
from hardcase.models.witnesses import augmentation_for, even_half
from hardcase.models.zoo import trained_classifier
from hardcase.randomness import stream
from hardcase.suite import figures
from hardcase.suite.tables import Bench, Cell, Outcome, Table
from hardcase.tensors import chunks, fingerprints, from_bytes
from hardcase.types import Images, Method, Model
from hardcase_studies.lab import Lab
from hardcase_studies.witness_controls import around_findings, filtered, wrong_label
from hardcase_studies.witness_world import (
    SeedOutcomes,
    WitnessWorld,
    gain,
    half,
    median,
    percent,
    points,
    rate,
    rows_at_once,
    searched,
    together,
)

NETWORK = "resnet18"
IMAGENET = ("efficientnet-lite0", "efficientnet-lite1", "resnet50-imagenet", "efficientnet-lite2")
"""Subject, witness, scorer of another family, sibling."""
TOP = 5


def cifar10(bench: Bench) -> Outcome:
    """``--data cifar10`` or ``npz:FILE``, ``--set seeds=N half=development|test|all``: one training of each network."""
    lab = Lab(bench)
    name = str(bench.options.get("model", NETWORK))
    here = partial(
        trained_classifier,
        name,
        images_test=lab.test,
        epochs=bench.options.get("epochs"),
        device=bench.device,
    )
    bent = augmentation_for(lab.train)
    odd = lab.train.take((fingerprints(lab.train.x) % 2 == 1).nonzero().squeeze(1))

    def network(train: Images, seed: int, augment: str | None, role: str) -> Subject:
        bench.say(role)
        net, _ = here(train, seed=seed, augment=augment)
        return Subject(net, classes=lab.test.classes, name=role, device=bench.device)

    subject = network(lab.train, 0, None, f"{name}, the subject")
    even = even_half(lab.train)
    witnesses = tuple(network(even, seed, bent, f"witness {seed}") for seed in (1, 2))
    scorers = tuple(
        network(odd, seed, augment, f"scorer {seed - 2}, {'bent' if augment else 'not bent'}")
        for seed, augment in ((3, bent), (4, bent), (5, None))
    )
    world = WitnessWorld(subject, witnesses, scorers)
    pool = half(lab.test, str(bench.options.get("half", "test")))
    seeds = pool.sample(count=min(len(pool), bench.size("seeds", 20, 1000)), seed=bench.seed)
    rows = [PhotographRow(bench, world, seeds, natural(_shape(seeds)))]
    notes = _notes(bench, world, seeds, lab.test)
    columns = ["search", *_COLUMNS, *(one.name for one in scorers), *_CONTROLS]
    table = Table(
        "Natural failures of CIFAR-10", columns, [_cells(world, row) for row in rows], notes
    )
    return Outcome("natural-cifar10", [table], _pictures(bench, rows[0].found))


def imagenet(bench: Bench) -> Outcome:
    """``--data 'folder:PHOTOS?labels=prefix&split=all'``, ``--set seeds=N blackbox=N parents=FILE``: fetched networks, nothing is trained."""
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
    rows = [PhotographRow(bench, world, seeds, natural(_shape(seeds)))]
    few = bench.size("blackbox", 0, 100)
    if few:
        some = seeds.take(torch.arange(min(few, len(seeds))))
        slow = natural_blackbox(_shape(seeds), queries=2000)
        rows.append(PhotographRow(bench, world, some, slow))
    columns = ["search", *_COLUMNS, scorer.name, f"{sibling.name} (sibling)", *_CONTROLS]
    notes = _notes(bench, world, seeds, images)
    table = Table(
        "Natural failures of photographs", columns, [_cells(world, row) for row in rows], notes
    )
    return Outcome(
        "natural-imagenet",
        [table, _levels(bench, subject, rows)],
        _pictures(bench, rows[0].found),
    )


# Rows with their controls.


class PhotographRow:
    """A search with its controls on one sample of photographs."""

    def __init__(self, bench: Bench, world: WitnessWorld, seeds: Images, method: Method) -> None:
        self.seeds = seeds
        self.name = "natural-blackbox" if method.needs == "label" else "natural"
        bench.say(f"{self.name} with witnesses")
        begun = perf_counter()
        self.found = searched(world, method, seeds, witnesses=world.witnesses)
        self.seconds = perf_counter() - begun
        bench.say(f"{self.name} without witnesses")
        self.alone = searched(world, method, seeds)
        bench.say(f"{self.name}, filter instead of search")
        self.filtered = filtered(world, method, seeds)
        bench.say(f"{self.name}, wrong label")
        self.wrong = wrong_label(world, method, seeds, stream(bench.seed, "wrong"))
        bench.say(f"{self.name}, neighbourhood")
        draws = bench.size("draws", 2, 10)
        self.around = around_findings(world, method, self.found, draws, bench.seed)


_COLUMNS = (
    "found",
    "witnessed",
    "most scorers keep the label",
    "all scorers",
    "of seeds that all scorers get right",
    "median L2",
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


def _cells(world: WitnessWorld, row: PhotographRow) -> list[Cell]:
    own = together([row.found], "all")
    right = torch.stack(
        [answers(one, row.seeds).argmax(1).cpu() == row.seeds.y for one in world.scorers]
    ).all(0)
    sure = torch.where(right[:, None], own, torch.nan)
    shares = {
        name: float(value.mean()) if len(value) else None for name, value in row.around.items()
    }
    return [
        row.name,
        *(
            percent(rate(together([row.found], name)))
            for name in ("failing", "witnessed", "most", "all")
        ),
        percent(rate(sure)),
        median(together([row.found], "l2")),
        median(together([row.found], "size")),
        round(row.seconds, 1),
        *(
            percent(rate(together([row.found], f"scorer {i}")))
            for i in range(1, len(world.scorers) + 1)
        ),
        percent(rate(together([row.alone], "all"))),
        percent(rate(together([row.filtered], "all"))),
        points(gain(own, together([row.filtered], "all"))),
        percent(rate(together([row.wrong], "all"))),
        *(
            None if shares[name] is None else f"{shares[name]:.1%}"
            for name in ("random, subject", "at 5 %", "at 10 %", "JPEG 90", "one pixel")
        ),
    ]


def _levels(bench: Bench, subject: Model, rows: Sequence[PhotographRow]) -> Table:
    """How wrong the subject is: another first answer, outside the first five, another parent in WordNet."""
    parents = _parents(bench)
    table: list[list[Cell]] = []
    for row in rows:
        found = row.found.found
        logits = _logits(subject, found.x)
        outside = ~(logits.topk(TOP, 1).indices == found.expected[:, None]).any(1)
        kept = row.found.columns["scorer 1"][found.seed] > 0
        levels: dict[str, Bool[Tensor, " t"] | None] = {
            "top-1": torch.ones(len(found), dtype=torch.bool),
            f"outside top-{TOP}": outside,
            "other WordNet parent": None,
        }
        if parents is not None:
            levels["other WordNet parent"] = parents[found.expected] != parents[logits.argmax(1)]
        for name, level in levels.items():
            if level is None:
                table.append([row.name, name, None, None])
                continue
            table.append([row.name, name, *_shares(row.found, [level, level & kept])])
    return Table(
        "Failing at three levels, of photographs that the subject classifies correctly",
        ["search", "level", "found", "and ResNet-50 keeps the label"],
        table,
        ["the parent needs --set parents=FILE, a CSV with the columns synset and parent"],
    )


def _shares(found: SeedOutcomes, levels: Sequence[Bool[Tensor, " t"]]) -> list[str]:
    shares = []
    for level in levels:
        column = torch.where(found.columns["failing"].isfinite(), 0.0, torch.nan)
        column[found.found.seed] = level.double().to(column.dtype)
        shares.append(percent(rate(column[:, None])))
    return shares


def _parents(bench: Bench) -> Tensor | None:
    """The number of each class's parent, read from a table of synsets."""
    file = bench.options.get("parents")
    if file is None:
        return None
    with Path(str(file)).open(newline="", encoding="utf-8") as lines:
        known = {row["synset"]: row["parent"] for row in csv.DictReader(lines)}
    names = [known.get(one.synset, one.synset) for one in imagenet_classes(offline=True)]
    order = {name: i for i, name in enumerate(sorted(set(names)))}
    return torch.tensor([order[name] for name in names])


@torch.no_grad()
def _logits(model: Model, x: Tensor) -> Float[Tensor, "t k"]:
    parts = [model(from_bytes(x[cut].to(model.device))).logits.cpu() for cut in chunks(len(x), 64)]
    return torch.cat(parts) if parts else torch.zeros(0, COUNT)


def _notes(bench: Bench, world: WitnessWorld, seeds: Images, test: Images) -> list[str]:
    networks: Mapping[str, Model] = {
        one.name: one for one in (world.subject, *world.witnesses, *world.scorers)
    }
    right = {
        name: float((answers(one, test).argmax(1).cpu() == test.y).double().mean())
        for name, one in networks.items()
    }
    return [
        f"data {bench.data}, {len(seeds)} photographs, device {bench.device}, one training",
        "rates are of photographs that the subject classifies correctly; a scorer that is wrong on the photograph itself counts as not keeping it",
        "brackets: Wilson's 95 %; differences are paired by photograph (Newcombe)",
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


def _shape(images: Images) -> tuple[int, int, int]:
    channels, height, width = images.x.shape[1:]
    return int(channels), int(height), int(width)
