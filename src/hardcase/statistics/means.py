"""Intervals of means and medians over independent units: what varies is an argument.

All intervals are two-sided and hold in 95 of 100 experiments. How they are made depends on how many
independent units (runs, trainings, images) there are:

* two or fewer: none, because nothing can be said;
* three to five: Student's t, and the interval says so ("t, 4 runs");
* six or more: inverted sign-flip permutations, which need symmetric and no normal deviations.

`docs/concepts/statistics.md` says which of them each published number uses, and what it resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are imported when they are used
import torch
from numpy.typing import NDArray

from hardcase.statistics.rates import Bounds, wilson_interval
from hardcase.statistics.tests import Numbers, flips

__all__ = [
    *("ALL_FLIPS", "DRAWN_FLIPS", "LEAST_EXACT", "LEAST_T", "LEVEL", "Interval"),
    *("log_interval", "mean_interval", "median_interval", "without_interval"),
]

LEVEL = 0.95
LEAST_T = 3
"""The fewest units whose mean has an interval."""
LEAST_EXACT = 6
"""The fewest units for which sign flips reach 95 %: 2 of 2⁶ patterns are 3 %, 2 of 2⁵ are 6 %."""
ALL_FLIPS = 12
"""Up to so many units an interval tries every pattern of signs; beyond, patterns are drawn."""
DRAWN_FLIPS = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the ends of its 95 % interval; both are NaN where it has none.

    Args:
        value: The estimate.
        low: The lower end.
        high: The upper end.
        kind: What a reader must know of the interval, such as ``(t, 4 runs)``; empty for most.
    """

    value: float
    low: float
    high: float
    kind: str = ""

    def within(self, low: float, high: float) -> Interval:
        """The same with no end outside of what the value can be."""
        if not self.known:
            return self
        return replace(self, low=max(low, self.low), high=min(high, self.high))

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    def scaled(self, factor: float) -> Interval:
        """The same in another unit, such as percent."""
        return replace(
            self, value=factor * self.value, low=factor * self.low, high=factor * self.high
        )

    def text(self, form: str = ".3f", unit: str = "") -> str:
        """The value, its interval and its kind, each number printed by the format `form`.

        Example:
            >>> mean_interval([3.0, 4.0, 4.0, 5.0]).text(".1f")
            '4.0 [2.7, 5.3] (t, 4 runs)'
        """
        parts = [f"{self.value:{form}}{unit}"]
        if self.known:
            parts.append(f"[{self.low:{form}}, {self.high:{form}}]")
        return " ".join([*parts, self.kind]).rstrip()

    def __str__(self) -> str:
        return self.text()


def without_interval(value: float, kind: str) -> Interval:
    """A value without an interval, and why."""
    return Interval(value, math.nan, math.nan, kind)


def mean_interval(
    values: Numbers,
    *,
    unit: str = "runs",
    within: tuple[float, float] = (-math.inf, math.inf),
    rng: torch.Generator | None = None,
) -> Interval:
    """The mean of independent units with its 95 % interval.

    Truth values, and mixed zeros and ones, are a share with Wilson's interval. Equal values have no
    interval: they show no spread from which to estimate it. From six units on the ends are order
    statistics of the means of all subsets (J. Hartigan, JASA 1969): a value lies outside them where
    a sign-flip test of the deviations from it has p ≤ 5 %. For skewed laws all of these cover less
    than 95 % with ten units or fewer (`docs/concepts/statistics.md` has the shares).

    Args:
        values: A number per unit.
        unit: The name of the units, where the interval states their number.
        within: The range that a mean cannot leave: its interval does not either.
        rng: What patterns of signs are drawn from, where there are too many to try them all.

    Example:
        >>> print(mean_interval([11.0, 14, 18, 13, 6, 9]).text(".3g"))
        11.8 [6, 18]
    """
    tensor = torch.as_tensor(values)
    sample = tensor.detach().to("cpu", torch.float64).flatten().numpy()
    count = len(sample)
    if not count:
        return without_interval(math.nan, "")
    value = float(sample.mean())
    if tensor.dtype == torch.bool or (0 < value < 1 and set(sample) == {0.0, 1.0}):
        return Interval(value, *wilson_interval(int(sample.sum()), count))
    if count < LEAST_T:
        return without_interval(value, f"(no interval: {count} {unit})")
    if sample.min() == sample.max():
        return without_interval(value, f"in all {count}")
    if count < LEAST_EXACT:
        from scipy.stats import t

        half = float(t.ppf((1 + LEVEL) / 2, count - 1) * sample.std(ddof=1) / count**0.5)
        return Interval(value, value - half, value + half, f"(t, {count} {unit})").within(*within)
    # Hartigan's typical values: the means of all non-empty subsets cut the line into equally likely
    # parts for symmetric laws. Of many units a random sample of patterns stands in for all.
    flipped = flips(count, ALL_FLIPS, DRAWN_FLIPS, rng).numpy() < 0
    flipped = flipped[flipped.any(1)]
    means = np.sort((flipped @ sample) / flipped.sum(1))
    outside = int((1 - LEVEL) / 2 * (len(means) + 1))
    return Interval(value, float(means[outside - 1]), float(means[-outside])).within(*within)


def median_interval(values: Numbers, *, unit: str = "seeds") -> Interval:
    """The lower median with a 95 % interval between order statistics, whatever the law.

    The two nearest pairs of order statistics are interpolated (T. Hettmansperger and S. Sheather,
    Statistics & Probability Letters 1986), so that it is not wider than need be. Fewer than six
    values have no interval: even their range covers less than 95 %.

    Example:
        >>> print(median_interval([float(i) for i in range(1, 21)]).text(".1f"))
        10.0 [6.2, 14.8]
    """
    from scipy.stats import binom

    ordered = torch.as_tensor(values, dtype=torch.float64).flatten().sort().values
    count = len(ordered)
    value = float(ordered[(count - 1) // 2])
    if count < LEAST_EXACT:
        return without_interval(value, f"(no interval: {count} {unit})")
    # The k-th smallest and k-th largest value lie around the median with this probability.
    cover = 1 - 2 * binom.cdf(np.arange(count // 2), count, 0.5)
    k = int((cover >= LEVEL).sum())  # the narrowest pair that covers enough, counted from 1
    # Hettmansperger and Sheather's interpolation: the share between two order statistics is not
    # linear in the coverage.
    inward = (cover[k - 1] - LEVEL) / (cover[k - 1] - cover[k])
    share = float((count - k) * inward / (k + (count - 2 * k) * inward))
    low = torch.lerp(ordered[k - 1], ordered[k], share)
    high = torch.lerp(ordered[count - k], ordered[count - k - 1], share)
    return Interval(value, float(low), float(high))


def log_interval(estimates: NDArray[np.float64], *, floor: float) -> Bounds:
    """Return a 95 % interval for the mean of positive, skewed estimates of which these are repeats.

    Cox's interval for the mean of a log-normal variable with Student's quantile (U. Olsson, Journal
    of Statistics Education 13, 2005). Zeros count as a hundredth of the floor.
    """
    if not estimates.any():
        return Bounds(0.0, floor)
    count = len(estimates)
    logs = np.log(np.maximum(estimates, floor / 100))
    spread = float(logs.var(ddof=1))
    # The log of a log-normal mean is mu + s^2 / 2; its variance adds that of the mean of the logs
    # and that of half their variance.
    variance = spread / count + spread**2 / (2 * (count - 1))
    half = scipy.special.stdtrit(count - 1, 0.975) * variance**0.5
    centre = float(logs.mean()) + spread / 2
    return Bounds(float(np.exp(centre - half)), float(min(1.0, np.exp(centre + half))))
