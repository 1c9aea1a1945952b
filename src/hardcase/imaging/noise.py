"""Noise, and fog, rain, snow and dirt in front of a scene, without a model of depth. The numbers
they are made of are equal on every device, and no row depends on another.

`lattice` hashes integers from an image's own content, so that a space's noise and weather belong to
the seed. `Draws` gives numbers of a key per row and a purpose, the same at every severity, so that
a corrupted row changes continuously (and, for noise, monotonically) with severity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor
from torch.nn import functional

from hardcase.imaging.resample import spread
from hardcase.randomness import Rng
from hardcase.tensors import per_row, steady, to_bytes

Batch = Float[Tensor, "m c h w"]
Layer = Float[Tensor, "m 1 h w"]
TINY = 1e-6
WORD = 0xFFFFFFFF
UNIFORM = 0xFFFF * math.sqrt(4 / 12)
"""The deviation of the sum of four uniform numbers of 16 bits."""
HALF = 2.0**-25
"""Half of the grid on which uniform numbers lie: with it none is 0 (and none may round to 1)."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers for `m` rows.

    Args:
        keys: One integer per row; rows with equal keys get equal numbers.

    Example:
        >>> draws = Draws(torch.tensor([3, 4, 3]))
        >>> u = draws.uniform("angle", 2)
        >>> u.shape, bool((u[0] == u[2]).all()), bool((u[0] == u[1]).any())
        (torch.Size([3, 2]), True, False)
    """

    keys: Int[Tensor, " m"]

    def uniform(self, name: str, *shape: int) -> Float[Tensor, "m *shape"]:
        """Numbers of the open interval from 0 to 1, on a grid of 2**24."""
        return self._sequence(name).uniform(self._rows, shape).add_(HALF).clamp_max_(1 - 2 * HALF)

    def normal(self, name: str, *shape: int) -> Float[Tensor, "m *shape"]:
        """Standard normal numbers."""
        return self._sequence(name).normal(self._rows, shape)

    @property
    def _rows(self) -> Int[Tensor, " m"]:
        return torch.arange(len(self.keys), device=self.keys.device)

    def _sequence(self, name: str) -> Rng:
        """The numbers of a purpose from their beginning."""
        return Rng(0, f"corruption/{name}", self.keys.long())


def content_key(x: Batch) -> Int[Tensor, " m"]:
    """A 32-bit hash of each image's bytes, the same on every device and beside any others."""
    if not steady(x.device):
        from hardcase.imaging import fused

        if fused.usable(x.detach()):
            return _mixed(fused.content(x.detach())).long() & WORD
    values = to_bytes(x).flatten(1).int()
    place = torch.arange(1, values.shape[1] + 1, device=x.device, dtype=torch.int32)
    weights = _mixed(place) | 1
    return _mixed((values * weights).sum(1).int()).long() & WORD


def lattice(key: Int[Tensor, " m"], count: int, *, salt: int) -> Int32[Tensor, "m count"]:
    """`count` times 32 random bits for each key: a function of key, salt and position alone."""
    salted = _mixed((key + salt * 0x9E3779B1).int())
    place = torch.arange(count, device=key.device) * 0x85EBCA6B
    return _mixed(salted[:, None] + place.int())


def _mixed(bits: Int32[Tensor, " *shape"]) -> Int32[Tensor, " *shape"]:
    """Every bit of the result depends on every bit of a number; products keep their last 32."""
    for _ in range(2):
        bits = _high(bits).bitwise_xor_(bits).mul_(0x045D9F3B)
    return _high(bits).bitwise_xor_(bits)


def _high(bits: Int32[Tensor, " *shape"]) -> Int32[Tensor, " *shape"]:
    """The upper half of 32 bits; torch shifts the sign in, the mask takes it away again."""
    return (bits >> 16).bitwise_and_(0xFFFF)


def grainy(x: Batch, key: Int[Tensor, " m"], strength: Float[Tensor, " m"]) -> Batch:
    """Images with `grain`, as a sensor makes it: `strength` is its deviation in white, and more
    than half of it is left in black.
    """
    if not steady(x.device):
        from hardcase.imaging import fused

        if fused.usable(x, strength):
            return fused.grain(x, key, strength, UNIFORM)
    bright = (0.4 + 0.6 * x.clamp(0, 1)).sqrt()
    return (x + per_row(strength, x) * grain(x, key) * bright).clamp(0, 1)


def grain(x: Batch, key: Int[Tensor, " m"]) -> Batch:
    """Noise of unit variance for images like `x`, mostly of luminance as in a processed photograph.

    Sums of uniform integers rather than logarithms: the same numbers on every device. The pattern
    of each row follows from `key`.
    """
    count, channels, height, width = x.shape
    layers = 1 + channels * (channels > 1)
    words = [lattice(key, layers * height * width, salt=salt) for salt in (1, 2)]
    # Each word is two even numbers of 16 bits. The sum of four of them is nearly normal, and exact
    # in integers, so it does not depend on how a device rounds.
    first, second = (_high(word).add_(word.bitwise_and_(0xFFFF)) for word in words)
    normal = first.add_(second).sub_(2 * 0xFFFF).to(x.dtype).div_(UNIFORM)
    normal = normal.reshape(count, layers, height, width)
    if layers == 1:
        return normal
    # 0.64 of the variance is common to the channels (luminance), 0.36 is each channel's (chroma).
    return 0.8 * normal[:, :1] + 0.6 * normal[:, 1:]


def poisson(
    mean: Batch,
    u: Batch,
    *,
    few: float = 6.0,
    most: int = 22,
) -> Batch:
    """The quantile `u` of a Poisson count: exact below a mean of `few`, else Cornish-Fisher."""
    # Below `few`: count how many cumulative chances `u` exceeds, with p(k) = p(k - 1) · mean / k.
    # At a mean of 6 a count above 21 has a chance of 4e-7.
    small = mean.clamp_max(few)
    chance = (-small).exp()
    reached = chance.clone()
    count = torch.zeros_like(mean)
    for k in range(1, most):
        count += u > reached
        chance = chance * small / k
        reached += chance
    # Else the normal quantile, corrected for skewness and kurtosis (1 / √mean and 1 / mean).
    z = (2 * u - 1).erfinv() * math.sqrt(2)
    root = mean.clamp_min(few).sqrt()
    wide = mean + root * z + (z.square() - 1) / 6 + (z - z**3) / (72 * root)
    return torch.where(mean < few, count, wide.round().clamp_min(0))


def weathered(
    x: Batch,
    key: Int[Tensor, " m"],
    *,
    fog: Float[Tensor, " m"],
    rain: Float[Tensor, " m"],
    snow: Float[Tensor, " m"],
) -> Batch:
    """Images in bad weather: the share of light from the fog where it is densest, and the
    opacity of streaks and flakes. Their places follow from `key`.
    """
    x = x + per_row(fog, x) * _mist(key, x) * (0.82 - x)
    wet = per_row(rain, x)
    x = x + wet * _streaks(key, x) * (0.88 - x)
    x = x - wet * 0.12 * x
    x = x + per_row(snow, x) * _flakes(key, x) * (0.97 - x)
    return x.clamp(0, 1)


def _mist(key: Int[Tensor, " m"], x: Batch) -> Layer:
    """How dense the fog is everywhere: nearly even, in soft banks."""
    banks = (lattice(key, 20, salt=11) & 0xFFFF).to(x.dtype).reshape(-1, 1, 5, 4) / 0xFFFF
    return 0.72 + 0.28 * spread(banks, x.shape[2], x.shape[3]).clamp(0, 1)


def _streaks(key: Int[Tensor, " m"], x: Batch) -> Layer:
    """Rain: fine streaks far away and longer ones near by."""
    side = min(x.shape[2:])
    fine = _specks(
        key,
        x,
        cell=(max(side / 7, 8), max(side / 22, 6)),
        size=(max(side / 18, 1.6), max(side / 420, 0.5)),
        salt=21,
    )
    near = _specks(
        key,
        x,
        cell=(max(side / 4, 12), max(side / 9, 11)),
        size=(max(side / 10, 3), max(side / 300, 0.6)),
        salt=22,
    )
    return torch.maximum(0.6 * fine, near)


def _flakes(key: Int[Tensor, " m"], x: Batch) -> Layer:
    """Snow in three layers, the nearer the larger and brighter."""
    side = min(x.shape[2:])
    layers = [
        brightness * _specks(key, x, cell=(cell, cell), size=(size, size), salt=salt)
        for brightness, cell, size, salt in (
            (0.6, max(side / 18, 7), side / 190, 31),
            (0.8, max(side / 10, 9), side / 110, 32),
            (1.0, max(side / 5, 14), side / 65, 33),
        )
    ]
    return torch.stack(layers).amax(0)


def _specks(
    key: Int[Tensor, " m"],
    x: Batch,
    *,
    cell: tuple[float, float],
    size: tuple[float, float],
    salt: int,
) -> Layer:
    """Soft ellipses in three of four cells of a slanted lattice, each at its own place.

    `cell` is the height and width of a cell in pixels, `size` half of those of an ellipse; `salt`
    tells layers apart.
    """
    height, width = x.shape[2:]
    down = torch.arange(height, device=x.device, dtype=torch.float32)[:, None]
    right = torch.arange(width, device=x.device, dtype=torch.float32)[None, :] + 0.18 * down
    # `right` grows by 0.18 with every row of pixels: a slanted lattice shows no columns to the eye.
    row = (down / cell[0]).floor()
    column = (right / cell[1]).floor()
    across = int((width + 0.18 * height) // cell[1]) + 1
    count = (int(height // cell[0]) + 1) * across
    index = (row * across + column).long().flatten()
    drawn = lattice(key, count, salt=salt)[:, index].reshape(len(key), height, width)
    # One random word per cell gives four values: place down, place across, size, presence. The
    # place leaves room for the ellipse, so no ellipse is cut at the border of its cell.
    place_down = ((drawn & 0xFF).to(x.dtype) / 255 - 0.5) * max(cell[0] - 2 * size[0], 0)
    place_right = ((drawn >> 8 & 0xFF).to(x.dtype) / 255 - 0.5) * max(cell[1] - 2 * size[1], 0)
    grown = 0.6 + 0.4 * (drawn >> 16 & 0xFF).to(x.dtype) / 255
    # Two bits, of which only 00 means no drop: three of four cells hold a drop.
    present = (drawn >> 24 & 0x3).to(x.dtype).clamp_max(1)
    away_down = (down - (row + 0.5) * cell[0]) - place_down
    away_right = (right - (column + 0.5) * cell[1]) - place_right
    away = ((away_down / (size[0] + 0.5)).square() + (away_right / (size[1] + 0.5)).square()).sqrt()
    return (present * ((grown - away) * 2).clamp(0, 1))[:, None]


def plasma(draws: Draws, decay: Float[Tensor, " m"], size: int) -> Float[Tensor, "m s s"]:
    """A fractal cloud between 0 and 1 by the diamond-square method.

    It lies on a torus whose side is the first power of two from `size` on; `decay` says how fast
    its detail fades.
    """
    grid = decay.new_zeros(len(decay), 1, 1)
    strength = torch.ones_like(decay)
    for level in range(max(1, (size - 1).bit_length())):
        n = grid.shape[1]
        noise = per_row(strength, grid) * (2 * draws.uniform(f"cloud{level}", 3 * n, n) - 1)
        middle, above, left = torch.split(noise, n, 1)
        below = grid + grid.roll(-1, 1)
        middle = middle + (below + below.roll(-1, 2)) / 4
        above = above + (middle + middle.roll(1, 1) + grid + grid.roll(-1, 2)) / 4
        left = left + (middle + middle.roll(1, 2) + grid + grid.roll(-1, 1)) / 4
        upper = torch.stack([grid, above], 3).flatten(2)
        lower = torch.stack([left, middle], 3).flatten(2)
        grid = torch.stack([upper, lower], 2).flatten(1, 2)
        # squared: the published code scales the noise by its strength twice
        strength = strength / decay.square()
    low = grid.amin((1, 2), keepdim=True)
    high = grid.amax((1, 2), keepdim=True)
    return (grid - low) / (high - low).clamp_min(TINY)


def drops(liquid: Layer, least: Tensor) -> Layer:
    """How strongly drops shine, lit from the upper left: 1 where the liquid is level.

    There is a drop where the liquid is thicker than `least`.
    """
    wet = (liquid >= least).to(liquid.dtype)
    edged = functional.pad(liquid, (1, 1, 1, 1), mode="replicate")
    slope = edged[:, :, 2:, 2:] - edged[:, :, :-2, :-2]
    area = wet.sum((2, 3), keepdim=True).clamp_min(1)
    scale = (slope.square() * wet).sum((2, 3), keepdim=True) / area
    return wet * (1 + slope / scale.sqrt().clamp_min(TINY)).clamp(0, 3)
