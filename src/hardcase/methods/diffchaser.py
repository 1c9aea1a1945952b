"""DiffChaser: a genetic search for images on which a network and its quantised copy disagree."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.methods.parts import method
from hardcase.oracles import Disagree
from hardcase.searches.genetic import PixelGenetic
from hardcase.spaces.pixel import Linf, Pixels
from hardcase.types import Budget, Method, Model, Objective, Probe

__all__ = ["TowardClass", "Uncertainty", "diffchaser"]


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """How close the `k`-th best probability is to the best, in the model that hesitates most."""

    k: int = 2

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        count = min(self.k, probe.logits.shape[1])
        best = _answers(probe).topk(count, dim=2).values
        return (best[:, :, -1] - best[:, :, 0]).amax(0)


@dataclass(frozen=True, slots=True)
class TowardClass:
    """How close the probability of class `target` is to the best, in the model that is closest."""

    target: int

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        answers = _answers(probe)
        return (answers[:, :, self.target] - answers.amax(2)).amax(0)


def _answers(probe: Probe) -> Float[Tensor, "p m k"]:
    """The probabilities that the subject and every peer give."""
    return torch.stack([logits.softmax(1) for logits in (probe.logits, *probe.peers)])


@method(
    "diffchaser",
    paper="Xie, Ma, Wang, Li, Liu and Li, IJCAI 2019",
    cite="xie2019diffchaser",
    differences="population, rates and limits are ours; 8-bit images; our own static 8-bit copy; "
    "the perturbation can be capped",
    peers="quantised",
)
def diffchaser(
    peers: tuple[Model, ...],
    target: int | None = None,
    *,
    k: int = 2,
    drift: float = math.inf,
    population: int = 50,
    generations: int = 40,
    rate: float = 0.05,
    reach: float = 32 / 255,
) -> Method:
    """Genetic search over small pixel perturbations until a network and its 8-bit copy disagree.

    The fitness leads to where a model is uncertain; there it and its quantised copy differ.

    Xiaofei Xie, Lei Ma, Haijun Wang, Yuekang Li, Yang Liu, Xiaohong Li. DiffChaser: Detecting
    Disagreements for Deep Neural Networks. IJCAI 2019. Its fitness is k-uncertainty (`k`), or
    targeted where a `target` is given. `drift` caps how far any pixel may move from its seed (L∞).
    Where no peer is named, the subject's 8-bit copy is one.

    Differences from the paper: population, rates and limits are ours, since we know only its
    pseudo-code; all seeds are bred at once, images are rounded to 8 bits, the 8-bit copy is our own
    static rounding. A known third-party version only brightens pixels
    and bounds the change against the parent; here changes go both ways and the bound, if any, is
    against the seed. A finding is a disagreement; it counts as a label failure only where the
    subject itself has left the seed's label.

    Args:
        k: The `k`-th best probability is driven toward the best.
        drift: Largest change of a pixel from its seed, in units of [0, 1].
        population: Individuals per seed.
        generations: Most generations per seed.
        rate: Share of the pixels that a mutation changes.
        reach: Largest change of a pixel, in units of [0, 1].
    """
    if not peers:
        raise Problem(
            "diffchaser compares with a second model, and there is none.", fix="--peer MODEL"
        )
    if k < 2 or not drift > 0:
        raise Problem(
            f"k is {k} and drift {drift}; k-uncertainty needs k of 2 or more, a drift lies above 0."
        )
    objective: Objective = Uncertainty(k)
    if target is not None:
        objective = TowardClass(target)
    breed = PixelGenetic(population=population, generations=generations, rate=rate, reach=reach)
    return Method(
        space=Pixels(Linf(min(drift, 1.0))),
        search=breed,
        objective=objective,
        oracle=Disagree(),
        until="first",
        needs="scores",
        keep="first",
        budget=Budget(queries=population + (generations - 1) * (population - 1)),
    )
