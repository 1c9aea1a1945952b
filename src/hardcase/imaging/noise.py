"""Noise, and the numbers it is made of: equal on every device, no row depends on another.

`lattice` hashes integers from an image's own content, so that a space's noise and weather belong to
the seed. `Draws` gives numbers of a key per row and a purpose, the same at every severity, so that
a corrupted row changes continuously (and, for noise, monotonically) with severity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.tensors import to_bytes

__all__ = ["Draws", "content_key", "grain", "lattice", "poisson"]

WORD = 0xFFFFFFFF
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


def content_key(x: Float[Tensor, "m c h w"]) -> Int[Tensor, " m"]:
    """A 32-bit hash of each image's bytes, the same on every device and beside any others."""
    values = to_bytes(x).flatten(1).long()
    weights = _mixed(torch.arange(1, values.shape[1] + 1, device=x.device)) | 1
    return _mixed((values * weights).sum(1) & WORD)


def lattice(key: Int[Tensor, " m"], count: int, *, salt: int) -> Int[Tensor, "m count"]:
    """`count` random 32-bit numbers for each key: a function of key, salt and position alone."""
    salted = _mixed((key + salt * 0x9E3779B1) & WORD)
    return _mixed((salted[:, None] + torch.arange(count, device=key.device) * 0x85EBCA6B) & WORD)


def _mixed(numbers: Int[Tensor, " *shape"]) -> Int[Tensor, " *shape"]:
    """Every bit of the result depends on every bit of a 32-bit number; products stay in 59 bits."""
    numbers = ((numbers >> 16) ^ numbers) * 0x045D9F3B & WORD
    numbers = ((numbers >> 16) ^ numbers) * 0x045D9F3B & WORD
    return (numbers >> 16) ^ numbers


def grain(x: Float[Tensor, "m c h w"], key: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
    """Noise of unit variance for images like `x`, mostly of luminance as in a processed photograph.

    Sums of uniform integers rather than logarithms: the same numbers on every device. The pattern
    of each row follows from `key`.
    """
    count, channels, height, width = x.shape
    layers = 1 + channels * (channels > 1)
    one = lattice(key, layers * height * width, salt=1)
    two = lattice(key, layers * height * width, salt=2)
    total = (one & 0xFFFF) + (one >> 16) + (two & 0xFFFF) + (two >> 16)
    normal = (total - 2 * 0xFFFF).to(x.dtype) / (0xFFFF * math.sqrt(4 / 12))
    normal = normal.reshape(count, layers, height, width)
    if layers == 1:
        return normal
    return 0.8 * normal[:, :1] + 0.6 * normal[:, 1:]


def poisson(
    mean: Float[Tensor, "m c h w"],
    u: Float[Tensor, "m c h w"],
    *,
    few: float = 6.0,
    most: int = 22,
) -> Float[Tensor, "m c h w"]:
    """The quantile `u` of a Poisson count: exact below a mean of `few`, else Cornish-Fisher."""
    small = mean.clamp_max(few)
    chance = (-small).exp()
    reached = chance.clone()
    count = torch.zeros_like(mean)
    for k in range(1, most):
        count += u > reached
        chance = chance * small / k
        reached += chance
    z = (2 * u - 1).erfinv() * math.sqrt(2)
    root = mean.clamp_min(few).sqrt()
    wide = mean + root * z + (z.square() - 1) / 6 + (z - z**3) / (72 * root)
    return torch.where(mean < few, count, wide.round().clamp_min(0))
