"""Images between two others, and to what degree they still are the first one."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.judges.drawing import Dice, blur, cloud, with_shades_of


@runtime_checkable
class Codes(Protocol):
    """A small generative model: codes of images, images of codes."""

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d"]: ...

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]: ...


def blend(
    x: Float[Tensor, "m c h w"], other: Float[Tensor, "m c h w"], codes: Codes, rng: torch.Generator
) -> tuple[Float[Tensor, "m c h w"], Float[Tensor, " m"]]:
    """An image somewhere between `x` and `other`, and how much of it is `x` to the eye (0 to 1).

    Half of them lie between the codes of a generative model (for grey images; a small model makes nothing of colour ones),
    the others are mixed after a blur and given back the shades of an image (which makes whole strokes of them), joined
    along a wavy line, or laid over each other.
    """
    dice = Dice(len(x), rng)
    share = dice()
    between = share.flatten()[:, None] * codes.encode(x) + (1 - share.flatten()[:, None]) * codes.encode(other)
    mixed = share * blur(x) + (1 - share) * blur(other)
    crisp = with_shades_of(mixed, torch.where(share > 0.5, x, other))
    wave = torch.sigmoid(24 * (cloud(x, 3 + dice.one_of(3), dice) - 1 + share))
    way = dice()
    made = torch.where(way < (0.5 if x.shape[1] == 1 else 0.0), codes.decode(between), crisp)
    made = torch.where(way > 0.8, wave * x + (1 - wave) * other, made)
    made = torch.where(way > 0.9, share * x + (1 - share) * other, made)
    return made.clamp(0, 1), towards(share.flatten())


def towards(share: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """What the eye makes of a mixture: the larger part counts for more than its share."""
    return share.square() / (share.square() + (1 - share).square())
