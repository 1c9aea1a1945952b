"""Points that fill a box evenly: Sobol's sequence with a random shift of its own for each seed."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from scipy.stats import qmc
from torch import Tensor

from hardcase.randomness import Rng

__all__ = ["sobol"]

BITS = 24
"""Binary places of a point: what a float32 holds exactly."""


def sobol(rng: Rng, rows: Int[Tensor, " n"], count: int, size: int) -> Float[Tensor, "n k d"]:
    """Return `count` points of the unit cube for each row, shifted by random bits of its own.

    Every single point is uniform, and the points of a row fill the cube more evenly than
    independent ones (I. M. Sobol 1967; the digital shift is L. P. Cranley's and T. N. L.
    Patterson's idea in base 2). Rows are independent of each other.

    Args:
        rng: Whose sequence of each seed the shift is drawn from.
        rows: The seed of each row, as a position among the keys of `rng`.
        count: Points per row; powers of two fill best.
        size: Dimensions of the cube.
    """
    if size == 0:
        return torch.zeros(len(rows), count, 0, device=rows.device)
    shift = rng.integers(rows, 2**BITS, (size,))
    base = _base(count, size).to(shift.device)
    return ((base[None] ^ shift[:, None]).to(torch.float32) + 0.5) * 2.0**-BITS


@lru_cache(maxsize=8)
def _base(count: int, size: int) -> Int[Tensor, "k d"]:
    """The first points as whole numbers of `BITS` binary places."""
    engine = qmc.Sobol(size, scramble=False, bits=BITS)
    points = engine.random_base2(max(count - 1, 0).bit_length())[:count]
    return torch.from_numpy(points * 2**BITS).long()
