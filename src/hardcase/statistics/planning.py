"""How many images it takes to decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

from hardcase.statistics.bounded import bounded_mean_interval

__all__ = ["NORMAL_POWER", "POWER", "ImagesNeeded", "images_to_decide", "needed_images"]

POWER = 0.9
"""How often a difference is to be seen, for the number of images that is planned."""
NORMAL_POWER = 1.281552
"""The normal quantile of `POWER`."""


@dataclass(frozen=True, slots=True)
class ImagesNeeded:
    """How many images decide.

    Args:
        count: The number.
        at_least: The figure at hand is so near the limit that only this bound is known.

    Example:
        >>> print(ImagesNeeded(12_345, at_least=True))
        more than 12,000 images
    """

    count: int
    at_least: bool = False

    def __str__(self) -> str:
        digits = max(len(str(self.count)) - 2, 0)
        rounded = math.ceil(self.count / 10**digits) * 10**digits
        if self.at_least:
            return f"more than {self.count // 10**digits * 10**digits:,} images"
        return f"about {rounded:,} images"


def images_to_decide(
    values: NDArray[np.float64],
    limit: float,
    low: float = 0.0,
    high: float = 1.0,
    *,
    level: float = 0.95,
) -> ImagesNeeded:
    """Return how many images decide, in 90 of 100 cases, on which side of a limit a mean lies.

    For one failure rate `values` are shares per image and `limit` is the rate allowed. For a
    comparison they are paired differences, with `low` -1 and the margin as `limit`. What counts is
    the distance from the mean to the limit. Within one standard error of it the distance is not
    known: then the number is a lower bound.

    Args:
        values: One number per image.
        limit: What the mean is held against.
        low: The least that an image can show.
        high: The most that an image can show.
        level: The level of the interval that decides.

    Example:
        >>> import numpy as np
        >>> print(images_to_decide(np.array([0.0] * 57 + [0.25] * 3), 0.05))
        about 130 images
    """
    count = len(values)
    mean = float(values.mean())
    bounds = bounded_mean_interval(values, low, high, level=level)
    reach = bounds.high - mean if mean <= limit else mean - bounds.low
    error = float(values.std()) / count**0.5
    distance = abs(mean - limit)
    near = bool(distance < error or distance == 0)
    if near:
        distance = max(error, reach / 4)
    return ImagesNeeded(max(2, _solve(count, reach, error, distance, level)), near)


def needed_images(differences: NDArray[np.float64], effect: float) -> int:
    """Return how many images show a difference of `effect` in 90 of 100 cases.

    Args:
        differences: Paired differences of two failure rates, one per image.
        effect: The difference that is to be seen.
    """
    count = len(differences)
    low, high = bounded_mean_interval(differences, -1.0, 1.0)
    error = float(differences.std(ddof=1)) / count**0.5
    return max(2, _solve(count, (high - low) / 2, error, effect, 0.95))


def _solve(count: int, reach: float, error: float, distance: float, level: float) -> int:
    """The number of images at which the interval and its chance error reach over `distance` only.

    The interval of `n` images reaches ``z s / sqrt(n) + c / n`` to a side: the normal part from the
    spread `s` at hand, and `c`, what the interval of the `count` images at hand is wider than that.
    """
    spread = error * count**0.5
    quantile = -float(scipy.special.ndtri((1 - level) / 2))
    wider = count * max(reach - quantile * error, 0.0)
    normal = (quantile + NORMAL_POWER) * spread
    root: float = (normal + (normal**2 + 4 * wider * distance) ** 0.5) / (2 * distance)
    return math.ceil(root**2)
