"""An examination for judges of photographs: made pictures of which it is known whether they are
valid and have kept their label.

What keeps label and validity is what cameras and files do (light, blur, noise, compression, a
mirror, a small bend). What loses the label is the picture of another class, wholly or for the
greater part. What is no picture of anything is ruined.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.judges.synthetic import (
    SURE,
    Examination,
    cloud,
    mirror,
    ruin,
    towards,
)
from hardcase.judges.textures import handled
from hardcase.tensors import from_bytes
from hardcase.training.augmentation import Bend, Dice, bend
from hardcase.types import Images

SMALL = Bend(turn=6, stretch=0.06, shear=0.05, move=0.04, wave=0.006)
KINDS = (
    "blank",
    "noise",
    "scribble",
    "shuffle",
    "near-black",
    "erased",
    "crumpled",
    "blurred",
    "garbled",
)
"""Ruins that leave nothing of a photograph; negatives, collages and overlays still show something
to people.
"""


class PixelCodes:
    """Pictures as their own codes, for ruins that shuffle codes."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d"]:
        return x.flatten(1)

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]:
        return z.reshape(len(z), *self.shape).clamp(0, 1)


@torch.no_grad()
def photo_examination(
    images: Images, rng: torch.Generator, device: torch.device | str = "cpu"
) -> Examination:
    """Each picture four times: handled, handled under the label of another, blended with another,
    and ruined.
    """
    x = from_bytes(images.x.to(device))
    y = images.y.to(device).long()
    other = y.roll(1, 0)
    differ = y != other
    ones = torch.ones_like(y)
    changed = [handled(mirror(bend(x, rng, SMALL), rng), rng) for _ in range(2)]
    between, share = _between(x, rng)
    mixed = _sure(share)
    ruined, lost = _ruined(x, rng)
    gone = _sure(1 - lost)
    return Examination(
        x=torch.cat([*changed, between, ruined]),
        expected=torch.cat([y, other, y, y]),
        valid=torch.cat([ones, ones, _sure(torch.maximum(share, 1 - share)), gone]),
        label_kept=torch.cat([ones, (~differ).long(), mixed.where(differ, ones), gone]),
    )


def _between(x: Tensor, rng: torch.Generator) -> tuple[Tensor, Float[Tensor, " m"]]:
    """Pictures laid over the one before, or joined to it along a wavy line;
    and how much of each is itself to the eye.
    """
    dice = Dice(len(x), rng)
    share = dice()
    wave = torch.sigmoid(24 * (cloud(x, 3 + dice.one_of(3), dice) - 1 + share))
    laid = share * x + (1 - share) * x.roll(1, 0)
    joined = wave * x + (1 - wave) * x.roll(1, 0)
    return torch.where(dice.chance(0.5) > 0, laid, joined), towards(share.flatten())


def _ruined(x: Tensor, rng: torch.Generator) -> tuple[Tensor, Float[Tensor, " m"]]:
    """Every kind of ruin on an equal part of the pictures."""
    codes = PixelCodes(tuple(x.shape[1:]))
    parts = x.tensor_split(len(KINDS))
    made = [ruin(part, codes, rng, kind=kind) for kind, part in zip(KINDS, parts) if len(part)]
    return torch.cat([each for each, _ in made]), torch.cat([lost for _, lost in made])


def _sure(share: Float[Tensor, " m"]) -> Tensor:
    """1 where the share is large, 0 where it is small, -1 between, where nobody can say."""
    return torch.where(share >= SURE, 1, torch.where(share <= 1 - SURE, 0, -1))
