"""Images that no longer show anything of the data, made from images that do; `lost` says to what degree (0 to 1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.judges.blends import Codes
from hardcase.judges.changes import Bend, bend
from hardcase.judges.drawing import Dice, background, cloud, content, with_shades_of

Made = tuple[Float[Tensor, "m c h w"], Float[Tensor, " m"]]
Ruin = Callable[[Tensor, Codes, Dice], Made]


def ruin(x: Float[Tensor, "m c h w"], codes: Codes, rng: torch.Generator, *, kind: str) -> Made:
    return RUINS[kind](x, codes, Dice(len(x), rng))


def _blank(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """One shade, or almost: a trace of noise and of the image."""
    shade = dice() * dice.chance(0.5)
    return _whole((shade + 0.02 * dice() * dice.normal(*x.shape) + dice(0.0, 0.06) * x).clamp(0, 1))


def _noise(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Noise, coarse or fine, soft or in two shades."""
    soft = cloud(x, 3 + dice.one_of(x.shape[2] - 2), dice).expand_as(x)
    hard = torch.sigmoid(12 * (soft - dice(0.3, 0.8)))
    return _whole(torch.where(dice.chance(0.5) > 0, hard, soft) * dice(0.3, 1.0))


def _scribble(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Smooth noise in exactly the shades of the image: blobs and strokes that mean nothing."""
    return _whole(with_shades_of(cloud(x, 4 + dice.one_of(7), dice).expand_as(x) + 0.01 * dice.uniform(*x.shape), x))


def _shuffle(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """The image cut into squares that changed places."""
    count, channels, height, width = x.shape
    parts = (2, 3, 4, 7)[dice.one_of(4)]
    side, across = height // parts, width // parts
    cut = x[:, :, : parts * side, : parts * across].reshape(count, channels, parts, side, parts, across)
    squares = cut.permute(0, 2, 4, 1, 3, 5).reshape(count, parts**2, -1)
    order = dice.uniform(count, parts**2).argsort(1)[:, :, None].expand_as(squares)
    back = squares.gather(1, order).reshape(count, parts, parts, channels, side, across).permute(0, 3, 1, 4, 2, 5)
    made = background(x).expand_as(x).clone()
    made[:, :, : parts * side, : parts * across] = back.reshape(count, channels, parts * side, parts * across)
    return made, torch.full((count,), 0.8 if parts == 2 else 1.0, device=x.device)


def _collage(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """The upper or the left half of one image and the other half of another one."""
    down = torch.arange(x.shape[2], device=x.device)[:, None] < x.shape[2] / 2
    right = torch.arange(x.shape[3], device=x.device)[None, :] < x.shape[3] / 2
    half = torch.where(dice.chance(0.5) > 0, down, right)
    return torch.where(half, x, x.roll(1, 0)), torch.full((len(x),), 0.4, device=x.device)


def _overlay(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Two images on top of each other."""
    return torch.maximum(x, x.roll(1, 0)), torch.full((len(x),), 0.5, device=x.device)


def _invert(x: Tensor, codes: Codes, dice: Dice) -> Made:
    return _whole(1 - x)


def _black(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """So much light taken away, unevenly, that only the brightest spots are left."""
    darker = x * (1 - 0.6 * cloud(x, 3 + dice.one_of(10), dice)) - dice(0.3, 0.95)
    left = (darker > 0.02).flatten(1).sum(1) / (x > 0.2).flatten(1).sum(1).clamp_min(1)
    return (darker.clamp_min(0) * (1 + 2 * dice() * dice.chance(0.5))).clamp(0, 1), _falling(left, 0.15, 0.5)


def _erase(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Large soft parts of the image become background."""
    stays = torch.sigmoid(25 * (cloud(x, 3 + dice.one_of(6), dice) - dice(0.3, 0.8)))
    made = stays * x + (1 - stays) * background(x)
    return made, _falling(content(made) / content(x).clamp_min(1e-3), 0.25, 0.65)


def _crumple(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Bent so far and so finely that shapes are lost."""
    much = float(dice.uniform(1))
    how = Bend(turn=40, stretch=0.3, shear=0.4, move=0.1, wave=0.06 + 0.15 * much, cells=5 + dice.one_of(3))
    return bend(x, dice.rng, how), torch.full((len(x),), min(1.0, 0.4 + 1.2 * much), device=x.device)


def _soften(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Reduced to a few pixels and enlarged again."""
    cells = 2 + dice.one_of(4)
    small = functional.adaptive_avg_pool2d(x, cells)
    made = functional.interpolate(small, size=x.shape[2:], mode="bicubic", align_corners=False).clamp(0, 1)
    return made, torch.full((len(x),), 0.6 if cells == 5 else 1.0, device=x.device)


def _garble(x: Tensor, codes: Codes, dice: Dice) -> Made:
    """Codes of four images shuffled together, place by place, and pushed outwards: what generators make far from data."""
    z = codes.encode(x)
    pick = torch.randint(4, z.shape, generator=dice.rng, device=z.device)
    shuffled = torch.stack([z.roll(i, 0) for i in range(4)]).gather(0, pick[None])[0]
    push = dice(1.5, 3.5).flatten()
    return codes.decode(shuffled * push[:, None]), _falling(-push, -3.0, -1.0)


def _whole(x: Tensor) -> Made:
    return x, torch.ones(len(x), device=x.device)


def _falling(left: Float[Tensor, " m"], low: float, high: float) -> Float[Tensor, " m"]:
    """1 where no more than `low` is left, 0 from `high` on, a straight line between."""
    return ((high - left) / (high - low)).clamp(0, 1)


RUINS: dict[str, Ruin] = {
    "blank": _blank,
    "noise": _noise,
    "scribble": _scribble,
    "shuffle": _shuffle,
    "collage": _collage,
    "overlay": _overlay,
    "inverted": _invert,
    "near-black": _black,
    "erased": _erase,
    "crumpled": _crumple,
    "blurred": _soften,
    "garbled": _garble,
}
OFTEN = ("near-black", "erased")
"""Drawn twice as often: the line between seen and not seen runs through them."""
SHARED = ("collage", "overlay", "garbled")
"""Made of an image and the one before it: what is left belongs to both."""
