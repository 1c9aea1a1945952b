"""What a method pushes beside its main objective: a criterion's uncovered targets, random neurons, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hardcase.criteria.objectives import toward
from hardcase.criteria.units import select
from hardcase.guides.strategies import Facts, Strategies
from hardcase.methods.neurons import Neurons
from hardcase.methods.watching import Profiles
from hardcase.objectives import Pushed
from hardcase.types import Guide, Model, Objective

CONTROLS = ("none", "random")
"""Instead of a criterion: no coverage term at all, or units drawn evenly whether covered or not."""


@dataclass(frozen=True, slots=True)
class Push:
    """Guides that choose what to push, and the score that pushes it, one for each model."""

    guides: tuple[Guide, ...]
    scores: tuple[Objective, ...]


def push(profile: Profiles, criterion: str, subject: Model, peers: tuple[Model, ...] = ()) -> Push:
    """`criterion` (or one of `CONTROLS`) on the subject and on each peer, with its own gradient."""
    if criterion == "none":
        return Push((), ())
    if criterion == "random":
        prefixes = ["", *(f"peer{i}/" for i in range(len(peers)))]
        return _joined([_random(profile, model, prefix) for model, prefix in zip((subject, *peers), prefixes)])
    criteria = profile.criteria(criterion, subject, peers, convention="default")
    return Push(criteria, tuple(toward(one) for one in criteria))


def _random(profile: Profiles, model: Model, prefix: str) -> Push:
    """One channel of a convolution or dense layer, drawn evenly: what neuron coverage pushes, without its memory."""
    units = Neurons(select(profile.anatomy(model, prefix), "conv-linear", "channel"))
    nothing = torch.zeros(units.count, dtype=torch.bool)
    name = f"random@{prefix.rstrip('/')}" if prefix else "random"
    guide = Strategies(name, units, Facts(heavy=nothing, crossing=nothing), ("anything",), 1)
    return Push((guide,), (Pushed(units.read, name),))


def _joined(parts: list[Push]) -> Push:
    return Push(tuple(g for part in parts for g in part.guides), tuple(s for part in parts for s in part.scores))
