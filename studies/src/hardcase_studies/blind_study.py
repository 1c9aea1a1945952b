"""A blind study: findings, real images and images that lost their label, shuffled, for people to name."""

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
from hardcase_studies.witness_world import SeedOutcomes
from hardcase_study import bundle
from hardcase_study.assignment import Sizes, assign
from hardcase_study.bundle import Study, opaque
from hardcase_study.forms import Item, Stimulus


@dataclass(frozen=True, slots=True)
class Shown:
    """One image of the study and what it is."""

    image: Tensor
    kind: str
    seed: str
    expected: int


def blind_study(
    folder: Path, found: Mapping[str, SeedOutcomes], *, seed: int, each: int = 60
) -> Study | None:
    """Set up what ``hardcase study serve FOLDER`` shows; nothing where there is nothing to show, or it is there already."""
    seeds = next(iter(found.values())).seeds
    shown = [one for name, part in found.items() for one in _findings(name, part, each)]
    shown += _real(seeds, each) + _lost(seeds, each)
    if not shown or folder.exists():
        return None
    order = torch.randperm(len(shown), generator=stream(seed, "blind sheet")).tolist()
    return _study(folder, [shown[i] for i in order], seeds.classes, seed)


def _findings(name: str, part: SeedOutcomes, each: int) -> list[Shown]:
    found = part.found
    return [
        Shown(found.x[i], name, part.seeds.id[int(found.seed[i])], int(found.expected[i]))
        for i in range(min(each, len(found)))
    ]


def _real(seeds: Images, each: int) -> list[Shown]:
    return [
        Shown(seeds.x[i], "real", seeds.id[i], int(seeds.y[i]))
        for i in range(min(each, len(seeds)))
    ]


def _lost(seeds: Images, each: int) -> list[Shown]:
    """The mean of a seed and the next one of another class."""
    made = []
    for i in range(min(each, len(seeds))):
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
        item = opaque(seed, "blind", "item", number)
        items.append(Item(item, "label", (name,), labels=classes, unit=one.seed, quota=one.kind))
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
