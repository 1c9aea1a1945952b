"""How a network is trained, as plain values; what it can learn from; its own randomness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from hardcase.data.sources import check_labels
from hardcase.errors import Problem, choice
from hardcase.types import Images


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Where the training of `what` stands; `loss` is the mean since the last report."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float
    warning: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The mean loss of every epoch, the steps taken, what was odd."""

    loss: tuple[float, ...]
    steps: int
    seconds: float
    warnings: tuple[str, ...] = ()


UNSTATED: Mapping[str, Any] = {"unstated": True}
"""Marks a field that a card states only where it differs from its default, so that networks which
were kept before the field existed are found again.
"""


def stated(value: Any) -> Any:
    """Parameters as a card states them: as `dataclasses.asdict`, less unstated defaults."""
    if is_dataclass(value):
        return {
            one.name: stated(getattr(value, one.name))
            for one in fields(value)
            if not (one.metadata.get("unstated") and getattr(value, one.name) == one.default)
        }
    if isinstance(value, tuple):
        return [stated(one) for one in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How a network is trained, as plain values that fit into a table and into a card.

    Args:
        epochs: Passes over the data.
        batch: Images in each step.
        lr: The largest learning rate.
        steps: The fewest steps: small data sets are passed over more often.
        optimiser: A name of `OPTIMISERS`.
        schedule: A name of `SCHEDULES`.
        augment: A name of `AUGMENTS`.
        decay: Weight decay.
        half: Compute losses in bfloat16 on a GPU, and on a CPU that has instructions for it.
        smoothing: Share of a label that is spread over all classes.
        most: The most steps of an epoch, which then passes over a part of the images; 0: all.
        clip: The longest gradient of a step; a longer one is shortened. 0: as long as it is.
    """

    epochs: int
    batch: int
    lr: float
    steps: int = 0
    optimiser: str = "adam"
    schedule: str = "cosine"
    augment: str = "none"
    decay: float = 0.0
    half: bool = field(default=False, metadata=UNSTATED)
    smoothing: float = field(default=0.0, metadata=UNSTATED)
    most: int = field(default=0, metadata=UNSTATED)
    clip: float = field(default=0.0, metadata=UNSTATED)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not self.lr > 0:
            seen = f"epochs {self.epochs}, batch {self.batch}, lr {self.lr}"
            raise Problem(
                "training needs at least one epoch, a batch of one and a positive rate; "
                f"given: {seen}."
            )

    def rounds(self, count: int) -> tuple[int, int]:
        """Epochs, and steps in each, for `count` images; a smaller last batch is left out."""
        inside = max(count // self.batch, 1)
        inside = min(inside, self.most or inside)
        return max(self.epochs, math.ceil(self.steps / inside)), inside


Optimiser = Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer]
"""Makes an optimiser of parameters, learning rate and weight decay."""
Schedule = Callable[[float], float]
"""The share of the training that is done (0 to 1) gives the factor of the learning rate."""
_Row = TypeVar("_Row")


def pick(kind: str, name: str, table: Mapping[str, _Row]) -> _Row:
    """The row called `name`, or an error that lists the names there are."""
    if name not in table:
        raise choice(kind, name, list(table))
    return table[name]


OPTIMISERS: dict[str, Optimiser] = {
    "adam": lambda parameters, lr, decay: torch.optim.AdamW(
        parameters, lr=lr, weight_decay=decay, fused=True
    ),
    "sgd": lambda parameters, lr, decay: torch.optim.SGD(
        parameters, lr=lr, weight_decay=decay, momentum=0.9, nesterov=True, fused=True
    ),
}


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _warm(done: float, rise: float = 0.1) -> float:
    """Up in the first tenth, then down along a cosine."""
    if done < rise:
        return (done + 0.01) / (rise + 0.01)
    return _cosine((done - rise) / (1 - rise))


SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "cosine": _cosine,
    "warm": _warm,
    # a tenth after two and after four fifths, as ARGUS's every 20 of 50 epochs
    "stairs": lambda done: 0.1 ** int(done / 0.4 + 1e-9),
}


patience: ContextVar[float] = ContextVar("patience", default=math.inf)
"""Seconds that a training may take."""
PATIENCE = 1800.0
"""Seconds that the training of a network may take that nobody asked for by name."""


@contextmanager
def patient_for(seconds: float) -> Iterator[None]:
    """Refuse trainings that would take longer than this, as soon as their pace is known."""
    before = patience.set(seconds)
    try:
        yield
    finally:
        patience.reset(before)


def geometry(train: Images, test: Images) -> tuple[int, int, int]:
    """Channels, size and classes of a data set, once it is known to be fit for training."""
    _, channels, height, width = train.x.shape
    if height != width or train.x.shape[1:] != test.x.shape[1:]:
        seen = f"{tuple(train.x.shape[1:])} for training, {tuple(test.x.shape[1:])} for measuring"
        raise Problem(
            f"images must be square and alike; {train.name} has {seen} (channels, height, width)."
        )
    if train.classes != test.classes:
        raise Problem(
            f"{train.name} names {len(train.classes)} classes for training, {len(test.classes)}"
            " others for measuring."
        )
    for part in (train, test):
        check_labels(part, f"the {part.split} split of {part.name}")
    if bool((train.y == train.y[0]).all()):
        raise Problem(
            f"the {train.split} split of {train.name} holds a single class.",
            "There is nothing to tell apart.",
        )
    return channels, height, len(train.classes)
