"""The attack on a network before and after its repair: the same for both, and more than one kind.

A repaired network may only hide its failures from the search that it was trained with. So random
draws, gradients from several starts and a search by queries are joined, and what breaks one network
is tried on the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.conditions import ConditionBox, measure_risk, measure_worst
from hardcase.conditions.worst import WorstCase
from hardcase.types import Images, Model

__all__ = ["AttackResult", "AttackSize", "attack_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSize:
    """How hard networks are attacked.

    Args:
        seeds: Images, at most.
        restarts: Searches, each with other random numbers; an even number.
        gradients: Gradients per image and box of each search.
        queries: Queries per image and box of the search without gradients.
        draws: Random draws per image.
    """

    seeds: int = 100
    restarts: int = 2
    gradients: int = 20
    queries: int = 40
    draws: int = 64


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What the union of all searches found for each image.

    Args:
        least: The smallest scale at which a failure is known; infinite where none is.
        half: Which images the first half of the searches had broken.
    """

    least: Float[Tensor, " n"]
    half: Bool[Tensor, " n"]

    @property
    def failing(self) -> Bool[Tensor, " n"]:
        """Which images fail somewhere in the box."""
        return self.least <= 1

    @property
    def added(self) -> float:
        """The share of images that only the second half of the searches broke."""
        return float((self.failing & ~self.half).double().mean())


def attack_all(
    models: Mapping[str, Model],
    images: Images,
    box: ConditionBox,
    size: AttackSize,
    *,
    seed: int,
) -> dict[str, AttackResult]:
    """Attack several networks on the same images, and each with what breaks the others.

    Args:
        models: The networks by name.
        images: Images that none of them was trained, chosen or searched with.
        box: The declared conditions.
        size: How hard.
        seed: Everything random follows from it.
    """
    tables = {
        name: measure_risk(model, images, box, draws=size.draws, seed=seed + 1, costs=False)
        for name, model in models.items()
    }
    least = {name: torch.full((len(images),), torch.inf) for name in models}
    known = dict[str, WorstCase]()

    def search(name: str, number: int, gradients: int, queries: int) -> None:
        """One search, which is given the last failures of all networks."""
        found = measure_worst(
            models[name],
            images,
            box,
            table=tables[name],
            others=list(known.values()),
            seed=seed + number,
            gradients=gradients,
            queries=queries,
            alone=False,
        )
        known[name] = found
        least[name] = torch.minimum(least[name], found.least_scale.float())

    half = dict[str, Tensor]()
    for number in range(max(size.restarts, 2)):
        if number == max(size.restarts, 2) // 2:
            half = {name: one <= 1 for name, one in least.items()}
        for name in models:
            search(name, number, size.gradients, size.queries)
    for name in models:  # what the last search found in the networks after it
        search(name, 0, 1, 0)
    return {name: AttackResult(least[name], half[name]) for name in models}
