"""What a member of the panel is taught: changed images, images between classes, and images of nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.judges.blends import Codes, blend
from hardcase.judges.changes import bend, mirror, retouch
from hardcase.judges.ruins import OFTEN, RUINS, SHARED, ruin
from hardcase.tensors import per_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of a batch is blended and ruined; the rest is only changed. `kinds` of ruin are drawn for a batch."""

    blended: float = 0.125
    ruined: float = 0.25
    kinds: int = 3


def lesson(
    x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"], classes: int, codes: Codes, rng: torch.Generator, shares: Shares
) -> tuple[Float[Tensor, "m c h w"], Float[Tensor, "m k1"]]:
    """Made images and what should be said of each: shares of the classes, and of "nothing" in the last column."""
    with torch.no_grad():
        x = mirror(bend(x, rng), rng)
        truth = functional.one_hot(y.long(), classes + 1).float()
        cuts = _cuts(len(x), shares)
        plain, between, *ruined = zip(x.tensor_split(cuts), truth.tensor_split(cuts), strict=True)
        made = [plain, _between(*between, codes, rng), *(_nothing(*part, codes, rng) for part in ruined)]
        images, targets = zip(*made, strict=True)
        return retouch(torch.cat(images), rng), torch.cat(targets)


def _cuts(count: int, shares: Shares) -> list[int]:
    """Where a batch is cut: after the images that are only changed, after the blended ones, between kinds of ruin."""
    blended, ruined = (int(count * share) for share in (shares.blended, shares.ruined))
    start = count - ruined
    return [start - blended, *(start + ruined * i // shares.kinds for i in range(shares.kinds))]


def _between(x: Tensor, truth: Tensor, codes: Codes, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    if not len(x):
        return x, truth
    made, share = blend(x, x.roll(1, 0), codes, rng)
    return made, share[:, None] * truth + (1 - share[:, None]) * truth.roll(1, 0)


def _nothing(x: Tensor, truth: Tensor, codes: Codes, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Ruined images; what is not lost still belongs to the class, shared with the image laid beside it."""
    if not len(x):
        return x, truth
    kinds = (*RUINS, *OFTEN)
    kind = kinds[int(torch.randint(len(kinds), (1,), generator=rng, device=rng.device))]
    made, lost = ruin(x, codes, rng, kind=kind)
    own = (truth + truth.roll(1, 0)) / 2 if kind in SHARED else truth
    target = (1 - lost[:, None]) * own
    target[:, -1] += lost
    return made, target


def attacked(
    net: nn.Module, x: Float[Tensor, "m c h w"], target: Float[Tensor, "m k1"], radius: float, rng: torch.Generator
) -> Float[Tensor, "m c h w"]:
    """`x` one step uphill in the loss, from a random start, within an L2 ball of `radius`.

    E. Wong, L. Rice, J. Kolter, "Fast is better than free: revisiting adversarial training", ICLR 2020, in L2 instead of L∞.
    """
    start = torch.randn(x.shape, generator=rng, device=x.device)
    shift = start * per_row(radius * torch.rand(len(x), generator=rng, device=x.device) / _length(start), x)
    here = (x + shift).clamp(0, 1).requires_grad_()
    (slope,) = torch.autograd.grad(functional.cross_entropy(net(here), target), here)
    shift = here.detach() - x + slope * per_row(1.25 * radius / _length(slope), x)
    return (x + shift * per_row((radius / _length(shift)).clamp_max(1), x)).clamp(0, 1)


def _length(x: Tensor) -> Float[Tensor, " m"]:
    return x.flatten(1).square().sum(1).sqrt().clamp_min(1e-12)
