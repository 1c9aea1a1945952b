"""Better than what: models of the same data beside whose risk that of a subject stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hardcase.analysis.conditions import Reference, ReferenceModel, ReferenceRun
from hardcase.cache import named_path
from hardcase.config import is_run
from hardcase.errors import Problem
from hardcase.models.load import is_stated
from hardcase.models.names import COUNT as IMAGENET
from hardcase.models.pretrained.fetching import fetched_classifiers
from hardcase.models.subject import Subject
from hardcase.models.witnesses import LARGEST
from hardcase.models.zoo import cached_classifiers, trained_classifier
from hardcase.runs.results import Run
from hardcase.types import Images, Model

MOST = 2
"""References that nobody named: each is asked a quarter as much as the subject."""


def named_references(
    baseline: str | None, names: Sequence[str], load: Callable[[str], Model]
) -> list[Reference]:
    """Return the models that a user named, the version before first."""
    found = list[Reference]()
    if baseline is not None:
        found.append(ReferenceModel(load(baseline), "the version before"))
    for name in names:
        if is_run(name):
            found.append(ReferenceRun(Run(named_path(name)), "measured before"))
            continue
        own = name.startswith("zoo:") and not is_stated(name)
        found.append(ReferenceModel(load(name), "trained here by its recipe" if own else ""))
    return found


def usual_references(
    subject: Model,
    shape: Sequence[int],
    classes: int,
    images: Callable[[str], Images],
    load: Callable[[str], Model],
) -> list[ReferenceModel]:
    """Return plain networks of the same data that are at hand: nothing is trained or fetched.

    Witnesses are none: they learned half of the data, and to read it bent."""
    if classes == IMAGENET:
        named = fetched_classifiers()[: MOST + 1]
        training = "trained by others on ImageNet"
        models = [load(f"zoo:{name}") for name in named]
    elif max(shape[1:]) <= LARGEST:
        try:
            train, test = images("train"), images("test")
            named = cached_classifiers(train, test)[: MOST + 1]
        except Problem:  # images without a training split have no such networks
            return []
        training = f"trained on all {len(train):,} training images"
        models = [_plain(name, train, test, subject.device) for name in named]
    else:
        return []
    others = [ReferenceModel(one, training) for one in models if one.hash != subject.hash]
    return others[:MOST]


def _plain(name: str, train: Images, test: Images, device: torch.device) -> Model:
    """A network of the zoo as its recipe trains it: it wants its images as they are."""
    net, _ = trained_classifier(name, train, test, device=device)
    return Subject(net, classes=test.classes, name=f"zoo:{name}", device=device)
