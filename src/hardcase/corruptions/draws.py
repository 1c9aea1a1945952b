"""Random numbers hashed from a key per row: no state, equal on every device, and no row depends on
another.

A number follows from its row's key, the name of its purpose and its position alone. The same
numbers are therefore used at every severity of a corruption, so that a row changes continuously
(and, for noise, monotonically) with severity.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

_FIRST = 0x7FEB352D
_SECOND = 0x846CA68B - (1 << 32)  # the same 32 bits as a signed number


def _mixed(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Scatter the bits of 32-bit integers, in place: two rounds of xor-shift and multiplication (C.
    Wellons, 2018)."""
    x ^= (x >> 16) & 0xFFFF
    x *= _FIRST
    x ^= (x >> 15) & 0x1FFFF
    x *= _SECOND
    x ^= (x >> 16) & 0xFFFF
    return x


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers for `m` rows.

    Args:
        keys: One integer a row; rows with equal keys get equal numbers.

    Example:
        >>> draws = Draws(torch.tensor([3, 4, 3]))
        >>> u = draws.uniform("angle", 2)
        >>> u.shape, bool((u[0] == u[2]).all()), bool((u[0] == u[1]).any())
        (torch.Size([3, 2]), True, False)
    """

    keys: Int[Tensor, " m"]

    def uniform(self, name: str, *shape: int) -> Float[Tensor, "m *shape"]:
        """Numbers of the open interval from 0 to 1, on a grid of 2**24."""
        return (((self._bits(name, shape) >> 8) & 0xFFFFFF).float() + 0.5) / (1 << 24)

    def normal(self, name: str, *shape: int) -> Float[Tensor, "m *shape"]:
        """Standard normal numbers."""
        return self.uniform(name, *shape).mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2))

    def _bits(self, name: str, shape: tuple[int, ...]) -> Int[Tensor, "m *shape"]:
        device = self.keys.device
        purpose = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big", signed=True)
        position = torch.arange(math.prod(shape), dtype=torch.int32, device=device) ^ purpose
        row = (self.keys.long() ^ (self.keys.long() >> 32)) & 0xFFFFFFFF
        row = torch.where(row >= 1 << 31, row - (1 << 32), row).to(torch.int32)
        return _mixed(_mixed(position)[None] ^ _mixed(row)[:, None]).reshape(len(row), *shape)
