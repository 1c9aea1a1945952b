"""Which way other classes lie: directions taken from codes of known label near a seed."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.tensors import chunks, flat
from hardcase.types import Seeds


@runtime_checkable
class Codes(Protocol):
    """Codes of labelled images; `take` copies the rows asked for, `mean` averages each line of rows without copying them."""

    @property
    def label(self) -> Tensor: ...

    def take(self, rows: Tensor) -> Tensor: ...

    def mean(self, rows: Tensor) -> Tensor: ...


LIMIT = 10_000
"""How many codes are looked at: the first, so a library should begin with every class."""


class Directions(NamedTuple):
    """For each seed and goal: the goal's class (-1: none), the step between the classes, the step to its nearest code."""

    goal: Int[Tensor, "n c"]
    step: Float[Tensor, "n c d"]
    nearest: Float[Tensor, "n c d"]


def directions(codes: Codes, seeds: Seeds, *, classes: int, neighbours: int, toward: int | None = None) -> Directions:
    """The `classes` nearest other classes of each seed (or `toward` alone), nearest first.

    A step between classes is the mean of the `neighbours` nearest codes of the goal's class minus that of the seed's own
    class: what tells the classes apart around here, without what is peculiar to the seed or to one partner.
    """
    z, y = flat(seeds.z), seeds.y
    label = codes.label[:LIMIT].to(y.device)
    kinds = max(int(label.max()), int(y.max()) if len(y) else 0) + 1
    rows, distance = _ranked(codes, label, z, neighbours, kinds)
    others = distance.scatter(1, y[:, None], torch.inf)
    if toward is not None:
        others = torch.where(torch.arange(kinds, device=y.device) == toward, others, torch.inf)
    goal = others.argsort(dim=1, stable=True)[:, :classes]  # n c
    there = others.gather(1, goal).isfinite()[..., None]
    own = torch.where(_at(distance, y[:, None]).isfinite(), codes.mean(_at(rows, y[:, None]).squeeze(1)), z)
    step = torch.stack([codes.mean(_at(rows, column[:, None]).squeeze(1)) - own for column in goal.unbind(1)], 1)
    first = codes.take(_at(rows, goal)[..., 0]).flatten(2) - z[:, None]
    return Directions(torch.where(there.squeeze(2), goal, -1), step * there, first * there)


def span(codes: Codes, seeds: Seeds) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """The least and greatest value of every coordinate over the codes and the seed's own."""
    z, label = flat(seeds.z), codes.label[:LIMIT]
    low, high = z.clone(), z.clone()
    rows = torch.arange(len(label), device=z.device)
    for part in chunks(len(label), 4096):
        some = flat(codes.take(rows[part]))
        low, high = torch.minimum(low, some.amin(0)), torch.maximum(high, some.amax(0))
    return low, high


def largest(step: Float[Tensor, "t d"], share: float) -> Float[Tensor, "t d"]:
    """Only the largest coordinates: `share` of all, at least one."""
    count = max(1, round(share * step.shape[1]))
    least = step.abs().topk(count, dim=1).values[:, -1:]
    return torch.where(step.abs() >= least, step, torch.zeros_like(step))


def scaled(offset: Float[Tensor, "t d"], length: Float[Tensor, " t"]) -> Float[Tensor, "t d"]:
    """`offset` with this L1 length (0 where it has none)."""
    return offset * (length / offset.abs().sum(1).clamp_min(1e-12))[:, None].nan_to_num(0, 0, 0)


def _ranked(
    codes: Codes, label: Int[Tensor, " l"], z: Float[Tensor, "n d"], count: int, kinds: int
) -> tuple[Int[Tensor, "n k c"], Float[Tensor, "n k"]]:
    """For each seed and class the rows of the nearest `count` codes (the last repeated if there are fewer), and how near."""
    rows = torch.zeros(len(z), kinds, count, dtype=torch.int64, device=z.device)
    distance = torch.full((len(z), kinds), torch.inf, device=z.device)
    for c in sorted(set(label.tolist())):
        members = (label == c).nonzero().squeeze(1)
        apart = torch.cdist(z, flat(codes.take(members)))
        near, order = apart.topk(min(count, len(members)), dim=1, largest=False)
        distance[:, c] = near[:, 0]
        rows[:, c] = members[order[:, torch.arange(count, device=z.device).clamp_max(order.shape[1] - 1)]]
    return rows, distance


def _at(values: Tensor, column: Int[Tensor, "n c"]) -> Tensor:
    """The entries of `values` (n, k, ...) at one or several columns of each row."""
    return values[torch.arange(len(column), device=column.device)[:, None], column]
