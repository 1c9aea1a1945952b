"""How many images it takes to decide."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardcase.statistics.bounded import bounded_mean_interval
from hardcase.statistics.rates import NORMAL

__all__ = ["POWER", "needed_images"]

POWER = 0.9
"""How often a difference is to be seen, for the number of images that is planned."""
NORMAL_POWER = 1.2816
"""The normal quantile of `POWER`."""


def needed_images(differences: NDArray[np.float64], effect: float) -> int:
    """Return how many images show a difference of `effect` in 90 of 100 cases.

    The interval of `n` images is half as wide as ``z s / sqrt(n) + c / n``: the normal part from
    the spread `s` of the differences at hand, and `c`, what their own interval is wider than that.

    Args:
        differences: Paired differences of two failure rates, one per image.
        effect: The difference that is to be seen.
    """
    count = len(differences)
    spread = float(differences.std(ddof=1))
    low, high = bounded_mean_interval(differences, -1.0, 1.0)
    wider = count * ((high - low) / 2 - NORMAL * spread / count**0.5)
    normal = (NORMAL + NORMAL_POWER) * spread
    root = (normal + (normal**2 + 4 * max(wider, 0.0) * effect) ** 0.5) / (2 * effect)
    return max(2, int(np.ceil(root**2)))
