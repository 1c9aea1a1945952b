"""A blind sheet: findings, real images and images that lost their label, shuffled; the key is another file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hardcase import tensors
from hardcase.randomness import stream
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images
from hardcase_studies import figures
from hardcase_studies.witness_world import SeedOutcomes
from hardcase_study import bundle
from hardcase_study.assignment import Sizes, assign
from hardcase_study.bundle import Study, opaque
from hardcase_study.forms import Item, Stimulus

EACH = 60
"""Images of each kind."""
ACROSS = 20


@dataclass(frozen=True, slots=True)
class Shown:
    """One image of the sheet and what the key says of it."""

    image: Tensor
    kind: str
    seed: str
    expected: int


def blind_sheet(folder: Path, found: Mapping[str, SeedOutcomes], *, seed: int) -> Study | None:
    """``blind-sheet.png`` with numbers, ``blind-key.csv``, and the same as a study that ``hardcase study serve`` shows.

    Real images are the seeds; images that lost their label are two seeds of different classes laid over each other.
    """
    parts = list(found.values())
    seeds = parts[0].seeds
    shown = [one for name, part in found.items() for one in _findings(name, part)]
    shown += _real(seeds) + _lost(seeds)
    order = torch.randperm(len(shown), generator=stream(seed, "blind sheet")).tolist()
    shown = [shown[i] for i in order]
    if not shown or (folder / "blind").exists():
        return None
    rows = {
        str(first + 1): torch.stack([one.image for one in shown[first : first + ACROSS]])
        for first in range(0, len(shown), ACROSS)
    }
    figures.images(folder / "blind-sheet.png", rows)
    lines = ["number,kind,seed,expected"]
    lines += [
        f"{number},{one.kind},{one.seed},{seeds.classes[one.expected]}"
        for number, one in enumerate(shown, 1)
    ]
    (folder / "blind-key.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return _study(folder / "blind", shown, seeds.classes, seed)


def _findings(name: str, part: SeedOutcomes) -> list[Shown]:
    rows = range(min(EACH, len(part.found)))
    seeds = part.found.seed.tolist()
    return [
        Shown(
            part.found.x[i],
            name.replace(",", ";"),
            part.seeds.id[seeds[i]],
            int(part.found.expected[i]),
        )
        for i in rows
    ]


def _real(seeds: Images) -> list[Shown]:
    return [
        Shown(seeds.x[i], "real", seeds.id[i], int(seeds.y[i]))
        for i in range(min(EACH, len(seeds)))
    ]


def _lost(seeds: Images) -> list[Shown]:
    """The mean of a seed and the next one of another class."""
    made = []
    for i in range(min(EACH, len(seeds))):
        others = (seeds.y != seeds.y[i]).nonzero().squeeze(1)
        if not len(others):
            break
        other = int(others[i % len(others)])
        mixed = to_bytes((from_bytes(seeds.x[i]) + from_bytes(seeds.x[other])) / 2)
        made.append(Shown(mixed, "label lost", seeds.id[i], int(seeds.y[i])))
    return made


def _study(folder: Path, shown: list[Shown], classes: tuple[str, ...], seed: int) -> Study:
    stimuli = []
    items = []
    pictures = {}
    for number, one in enumerate(shown):
        name = opaque(seed, "blind", "image", number)
        pictures[name] = tensors.encode(one.image)
        role = "real" if one.kind == "real" else "test"
        stimuli.append(
            Stimulus(name, role, one.seed, one.expected, method="" if role == "real" else one.kind)
        )
        items.append(
            Item(
                opaque(seed, "blind", "item", number),
                "label",
                (name,),
                labels=classes,
                unit=one.seed,
                quota=one.kind,
            )
        )
    sizes = Sizes(raters=3, per_rater=min(120, len(items)), checks=0)
    settings = {
        "id": opaque(seed, "blind", len(shown)),
        "design": "label",
        "title": "What does each picture show?",
        "language": "en",
        "classes": classes,
        "raters": sizes.raters,
        "per_rater": sizes.per_rater,
        "checks": 0,
        "repeats": 0,
        "votes": sizes.raters,
        "stop": False,
        "seed": seed,
        "runs": {},
        "main_items": len(items),
    }
    lists = assign(items, sizes, np.random.default_rng(seed), lists=2 * sizes.raters)
    return bundle.write(
        folder, settings, items, sorted(stimuli, key=lambda one: one.id), pictures, lists
    )
