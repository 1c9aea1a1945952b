"""ADAPT's 29 features of a unit: where it sits, how heavy it is, what kind of layer it is in, and how it was covered so far.

S. Lee, S. Cha, D. Lee, H. Oh, "Effective white-box testing of deep neural networks with adaptive neuron-selection strategy",
ISSTA 2020. Features 0 to 16 never change; 17 to 28 follow the search. A score is the sum of a strategy vector's entries at
the features that a unit has, so nothing of size units times 29 is ever built for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

FEATURES, CONSTANT = 29, 17
KINDS = ("norm", "pool", "conv", "linear", "activation", "join", "other")


def constant(
    widths: Sequence[int], kinds: Sequence[str], weight: Float[Tensor, " u"], *, skip: Sequence[int] = ()
) -> Float[Tensor, "u 17"]:
    """The fixed features of the units of layers with these widths and kinds; `weight` is NaN where a layer has none.

    0-3: quarter of the network's depth. 4-9: rank of the mean incoming weight over the network (first to fifth tenth, lower
    half). 10-16: kind of layer. `skip` names features that are left at 0.
    """
    units, table = sum(widths), torch.zeros(sum(widths), CONSTANT)
    number = torch.arange(units)
    layer = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    table[number, (4 * layer // len(widths)).clamp_max(3)] = 1
    heavy = (~weight.isnan()).nonzero().squeeze(1)
    order = heavy[weight[heavy].argsort(descending=True, stable=True)]
    tenth = (10 * torch.arange(len(order)) // max(1, len(order))).clamp_max(5)
    table[order, 4 + tenth] = 1
    kind = torch.tensor([KINDS.index(k) if k in KINDS else len(KINDS) - 1 for k in kinds])
    table[number, 10 + kind[layer]] = 1
    table[:, list(skip)] = 0
    return table


def score(
    vector: Float[Tensor, "m 29"],
    fixed: Float[Tensor, "u 17"],
    failing: Bool[Tensor, "m u"],
    hits: Int[Tensor, "m u"],
) -> Float[Tensor, "m u"]:
    """What each row's strategy vector thinks of each unit.

    17: was active in a failing input. 18: never covered. 19-28: tenth of the hit count among covered units, most hit first.
    """
    base = vector[:, :CONSTANT] @ fixed.T
    tenth = tenths(hits)
    place = torch.where(tenth < 0, 18, 19 + tenth)
    return base + failing * vector[:, 17:18] + vector.gather(1, place)


def tenths(hits: Int[Tensor, "m u"]) -> Int[Tensor, "m u"]:
    """In which tenth of the covered units each one is by its hits, the most hit in 0; -1 where it was never covered."""
    order = hits.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(hits.shape[1], device=hits.device).expand_as(order))
    covered = (hits > 0).sum(1, keepdim=True)
    return torch.where(hits > 0, 10 * rank // covered.clamp_min(1), -1)
