"""Intervals of a proportion, and the proportion that is never told without one.

Clopper and Pearson's interval holds at every truth; Wilson's holds on average, and misses more
often than it says where few are so (1,000 images, a truth of 1 in 1,000: 92 %).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import scipy  # its parts are imported when they are used

__all__ = ["NORMAL", "ONE_SIDED", "Bounds", "Rate", "binomial_interval", "wilson_interval"]

NORMAL = 1.959964
"""Standard errors to either side in a normal interval of 95 %."""
ONE_SIDED = 1.644854
"""Standard errors to one side in a normal bound of 95 %."""


class Bounds(NamedTuple):
    """A confidence interval, 95 % unless said otherwise."""

    low: float
    high: float


def wilson_interval(hits: float, total: int, z: float = NORMAL) -> Bounds:
    """Return Wilson's score interval of a proportion (E. B. Wilson, JASA 1927).

    Args:
        hits: How many are so; a fraction where units count together.
        total: Of how many; of none nothing is known.
        z: Normal quantile; 95 % by default.

    Example:
        >>> low, high = wilson_interval(0, 200)
        >>> print(f"{low:.3f} to {high:.3f}")
        0.000 to 0.019
    """
    if total == 0:
        return Bounds(0.0, 1.0)
    share = hits / total
    weight = z * z / total
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == total else min(1.0, centre + half)
    return Bounds(low, high)


def binomial_interval(hits: float, total: float, *, level: float = 0.95) -> Bounds:
    """Return Clopper and Pearson's interval for the mean chance of independent draws.

    The chances may differ from draw to draw: a sum of such draws is less spread than a binomial
    one (W. Hoeffding, Annals of Mathematical Statistics 27, 1956), so the interval still holds.

    Args:
        hits: How many are so; a fraction where units count together.
        total: Of how many; of none nothing is known.
        level: How often the interval holds the truth, at least.

    Example:
        >>> low, high = binomial_interval(0, 10_000)
        >>> print(f"{low:.5f} to {high:.5f}")
        0.00000 to 0.00037
    """
    if total == 0:
        return Bounds(0.0, 1.0)
    tail = (1 - level) / 2
    low = scipy.special.betaincinv(hits, total - hits + 1, tail) if hits else 0.0
    high = scipy.special.betaincinv(hits + 1, total - hits, 1 - tail) if hits < total else 1.0
    return Bounds(float(low), float(high))


@dataclass(frozen=True, slots=True)
class Rate:
    """A proportion that is never told without its counts and its 95 % interval (Clopper and
    Pearson's).

    Args:
        hits: How many are so.
        of: Of how many.
        units: Independent units among them, where there are fewer: the interval is of these, as if
            those of one unit were all alike.

    Example:
        >>> print(Rate(29, 57))
        29 of 57 = 50.9 % (37.3 to 64.4)
    """

    hits: int
    of: int
    units: int | None = None

    @property
    def share(self) -> float | None:
        """The proportion; None of nothing."""
        return self.hits / self.of if self.of else None

    @property
    def low(self) -> float:
        return self._ends[0]

    @property
    def high(self) -> float:
        return self._ends[1]

    @property
    def _ends(self) -> Bounds:
        if self.units is None or not self.of:
            return binomial_interval(self.hits, self.of)
        return binomial_interval(self.hits * self.units / self.of, self.units)

    def to_json(self) -> dict[str, Any]:
        """The form it has in every JSON file: `hits`, `total`, `share`, `low`, `high`."""
        low, high = self._ends
        return {
            "hits": self.hits,
            "total": self.of,
            "share": self.share,
            "low": low,
            "high": high,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Rate:
        """The rate that `to_json` wrote."""
        return Rate(value["hits"], value["total"])

    def __str__(self) -> str:
        if self.share is None:
            return "0 of 0"
        return f"{self.hits:,} of {self.of:,} = {100 * self.share:.1f} % {self.bounds}"

    @property
    def bounds(self) -> str:
        """The interval alone, in per cent: ``(37.3 to 64.4)``."""
        low, high = self._ends
        return f"({100 * low:.1f} to {100 * high:.1f})"
