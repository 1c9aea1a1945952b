"""Changes after which people still see the same thing: turned, bent, blurred, dimmed, lit, noisy, partly covered."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.judges.drawing import Dice, blur, cloud


@dataclass(frozen=True, slots=True)
class Bend:
    """How far images are turned (degrees), stretched and sheared (shares), moved and locally bent (shares of the side)."""

    turn: float = 15.0
    stretch: float = 0.15
    shear: float = 0.2
    move: float = 0.09
    wave: float = 0.032
    cells: int = 5


USUAL = Bend()


def bend(x: Float[Tensor, "m c h w"], rng: torch.Generator, how: Bend = USUAL) -> Float[Tensor, "m c h w"]:
    """Every image under its own random affine map and smooth displacement; what comes in at the edges repeats them."""
    dice, count = Dice(len(x), rng), len(x)
    angle = math.radians(how.turn) * _both(dice)
    scale = torch.exp(how.stretch * (2 * dice.uniform(count, 2, 1) - 1))
    turned = torch.stack([angle.cos(), how.shear * _both(dice) - angle.sin(), angle.sin(), angle.cos()], 1)
    moved = 2 * how.move * (2 * dice.uniform(count, 2, 1) - 1)
    maps = torch.cat([turned.reshape(count, 2, 2) * scale, moved], 2)
    grid = functional.affine_grid(maps, list(x.shape), align_corners=False)
    waves = 2 * how.wave * dice.normal(count, 2, how.cells, how.cells)
    waves = functional.interpolate(waves, size=x.shape[2:], mode="bicubic", align_corners=False)
    return functional.grid_sample(x, grid + waves.permute(0, 2, 3, 1), padding_mode="border", align_corners=False)


def _both(dice: Dice) -> Float[Tensor, " m"]:
    return 2 * dice().flatten() - 1


def mirror(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every other image, by chance, from left to right; only for colour photographs, where it changes no label."""
    return x if x.shape[1] == 1 else torch.where(Dice(len(x), rng).chance(0.5) > 0, x.flip(3), x)


def retouch(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Blur or sharpness, thickness, contrast and light, stains, noise and a small patch, each for some of the images."""
    dice = Dice(len(x), rng)
    x = x + (blur(x) - x) * dice.chance(0.3) * dice(-0.5, 1.3)
    x = _thickness(x, dice)
    contrast = 1 - dice.chance(0.5) * dice(0.0, 0.85)
    x = x * contrast + (1 - contrast) * dice.chance(0.5) * dice()
    x = x + contrast * dice.chance(0.2) * dice(-0.3, 0.3) * cloud(x, 4 + dice.one_of(8), dice)
    x = x + contrast * dice.chance(0.4) * dice(0.0, 0.3) * dice.normal(*x.shape)
    return _patch(x, dice).clamp(0, 1)


def _thickness(x: Tensor, dice: Dice) -> Tensor:
    """Bright parts grow in some images, dark parts in others."""
    grown = functional.max_pool2d(x, 3, 1, 1)
    shrunk = -functional.max_pool2d(-x, 3, 1, 1)
    way, much = dice(), dice()
    x = torch.where(way < 0.15, x + (grown - x) * much, x)
    return torch.where(way > 0.85, x + 0.7 * (shrunk - x) * much, x)


def _patch(x: Tensor, dice: Dice, share: float = 0.3, largest: float = 0.33) -> Tensor:
    """A small rectangle of noise or of one shade, anywhere."""
    _, _, height, width = x.shape
    down = torch.arange(height, device=x.device)[None, None, :, None] + 0.5
    right = torch.arange(width, device=x.device)[None, None, None, :] + 0.5
    inside = ((down - dice() * height).abs() < dice(0.02, largest / 2) * height) & (
        (right - dice() * width).abs() < dice(0.02, largest / 2) * width
    )
    fill = torch.where(dice.chance(0.5) > 0, dice.uniform(*x.shape), dice().expand_as(x))
    return torch.where(inside & (dice.chance(share) > 0), fill, x)
