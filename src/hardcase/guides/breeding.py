"""How ADAPT makes new strategy vectors from those that covered most together: greedy cover, crossover, mutation.

All functions work on `g` groups at once: one group if seeds share their strategies, one for every seed otherwise.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LIMIT = 5.0
"""Entries of a strategy vector lie between minus and plus this."""


def uniform(groups: int, count: int, genes: int, rng: torch.Generator) -> Float[Tensor, "g p f"]:
    return (torch.rand(groups, count, genes, generator=rng, device=rng.device) * 2 - 1) * LIMIT


def greedy_cover(covered: Bool[Tensor, "g r u"], known: Bool[Tensor, "g r"], count: int) -> Int[Tensor, "g c"]:
    """`count` records of each group: those that together cover most, taken greedily (ties to the earlier), then, once nothing
    is left to add, those that cover most alone, in order; these may repeat."""
    alone = covered.sum(2).masked_fill(~known, -1)
    order = alone.argsort(dim=1, descending=True, stable=True)
    left = covered & known[..., None]
    filled = torch.zeros(len(covered), dtype=torch.int64, device=covered.device)
    picks = []
    for _ in range(count):
        adds, best = _first_max(left.sum(2))
        spare = order.gather(1, filled[:, None]).squeeze(1)
        pick = torch.where(adds > 0, best, spare)
        filled = (filled + (adds == 0).long()) % known.sum(1).clamp_min(1)
        left = left & ~covered.gather(1, pick[:, None, None].expand(-1, 1, covered.shape[2]))
        picks.append(pick)
    return torch.stack(picks, 1)


def breed(parents: Float[Tensor, "g c f"], rng: torch.Generator) -> Float[Tensor, "g p f"]:
    """Two children of each pair of two random orders of the parents: each gene from either, plus normal noise, clipped."""
    one, two = (_shuffled(parents, rng).repeat_interleave(2, 1) for _ in range(2))
    mask = torch.rand(one.shape, generator=rng, device=rng.device).to(one.device) < 0.5
    noise = torch.randn(one.shape, generator=rng, device=rng.device).to(one.device)
    return (torch.where(mask, one, two) + noise).clamp(-LIMIT, LIMIT)


def _shuffled(parents: Float[Tensor, "g c f"], rng: torch.Generator) -> Float[Tensor, "g c f"]:
    order = (
        torch.rand(parents.shape[:2], generator=rng, device=rng.device).to(parents.device).argsort(dim=1, stable=True)
    )
    return parents.gather(1, order[..., None].expand_as(parents))


def _first_max(values: Int[Tensor, "g r"]) -> tuple[Int[Tensor, " g"], Int[Tensor, " g"]]:
    """The greatest value and the first place that has it."""
    most = values.amax(1)
    return most, (values == most[:, None]).int().argmax(1)
