"""What is done to training images so that a network learns what does not change a label.

Every function follows the device of its images and of its generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.imaging.blur import stroke_width
from hardcase.imaging.resample import affine

Augment = Callable[[Tensor, torch.Generator], Tensor]


def crop(x: Float[Tensor, "m c h w"], reach: int, rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every image moved by up to `reach` pixels each way, black coming in at the edges."""
    count, _, height, width = x.shape
    offset = torch.randint(0, 2 * reach + 1, (2, count, 1), generator=rng, device=x.device)
    rows = offset[0] + torch.arange(height, device=x.device)
    columns = offset[1] + torch.arange(width, device=x.device)
    image = torch.arange(count, device=x.device)[:, None, None]
    padded = functional.pad(x, (reach, reach, reach, reach)).permute(0, 2, 3, 1)
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def flip(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every other image, by chance, seen in a mirror."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) < 0.5
    return torch.where(mirrored, x.flip(3), x)


class Dice:
    """Numbers between 0 and 1, one an image, shaped to broadcast over images."""

    def __init__(self, count: int, rng: torch.Generator) -> None:
        self.count = count
        self.rng = rng

    def __call__(self, low: float = 0.0, high: float = 1.0) -> Float[Tensor, "m 1 1 1"]:
        return low + (high - low) * torch.rand(
            self.count, 1, 1, 1, generator=self.rng, device=self.rng.device
        )

    def chance(self, share: float) -> Float[Tensor, "m 1 1 1"]:
        """1 for about this share of the images, 0 for the others."""
        return (self() < share).float()

    def one_of(self, count: int) -> int:
        """A number below `count`, the same for the whole batch."""
        return int(torch.randint(count, (1,), generator=self.rng, device=self.rng.device))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, device=self.rng.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.rng, device=self.rng.device)


@dataclass(frozen=True, slots=True)
class Bend:
    """How far images are turned (degrees), stretched, sheared, moved and bent (shares)."""

    turn: float = 15.0
    stretch: float = 0.15
    shear: float = 0.2
    move: float = 0.09
    wave: float = 0.032
    cells: int = 5


USUAL = Bend()
GENTLE = Bend(turn=8, stretch=0.08, shear=0.1, move=0.04, wave=0.02)


def bend(
    x: Float[Tensor, "m c h w"], rng: torch.Generator, how: Bend = USUAL
) -> Float[Tensor, "m c h w"]:
    """Every image under its own random affine map and smooth displacement, edges repeated."""
    dice = Dice(len(x), rng)
    count = len(x)
    angle = math.radians(how.turn) * _both(dice)
    scale = torch.exp(how.stretch * (2 * dice.uniform(count, 2, 1) - 1))
    turned = torch.stack(
        [angle.cos(), how.shear * _both(dice) - angle.sin(), angle.sin(), angle.cos()], 1
    )
    moved = 2 * how.move * (2 * dice.uniform(count, 2, 1) - 1)
    maps = torch.cat([turned.reshape(count, 2, 2) * scale, moved], 2)
    waves = 2 * how.wave * dice.normal(count, 2, how.cells, how.cells)
    return affine(x, maps, outside="border", waves=waves)


def _both(dice: Dice) -> Float[Tensor, " m"]:
    return 2 * dice().flatten() - 1


def _none(x: Tensor, rng: torch.Generator) -> Tensor:
    return x


def _shift(x: Tensor, rng: torch.Generator) -> Tensor:
    return crop(x, 2, rng)


def _crop_flip(x: Tensor, rng: torch.Generator) -> Tensor:
    return flip(crop(x, 4, rng), rng)


def _bend_flip(x: Tensor, rng: torch.Generator) -> Tensor:
    """Bent a little, mirrored, and in more or less light."""
    x = flip(bend(x, rng, GENTLE), rng)
    return (x * Dice(len(x), rng)(0.7, 1.3)).clamp(0, 1)


def _handwriting(x: Tensor, rng: torch.Generator) -> Tensor:
    """Bent as another hand would write it, with thicker or thinner, fainter or stronger strokes."""
    x = bend(x, rng)
    dice = Dice(len(x), rng)
    way = dice()
    x = stroke_width(x, thicker=(way < 0.2) * dice(), thinner=(way > 0.8) * dice())
    return x * dice(0.5, 1.0)


AUGMENTS: dict[str, Augment] = {
    "none": _none,
    "shift": _shift,
    "flip": flip,
    "crop-flip": _crop_flip,
    "bend-flip": _bend_flip,
    "handwriting": _handwriting,
}
