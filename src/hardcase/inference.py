"""Intervals of means, medians and differences, and permutation tests: what varies is an argument.

All intervals are two-sided and hold in 95 of 100 experiments. How they are made depends on how many
independent units (runs, trainings, seeds) there are:

* two or fewer: none, because nothing can be said;
* three to five: Student's t, and the interval says so ("t, 4 runs");
* six or more: inverted sign-flip permutations, which need symmetric and no normal deviations.

`docs/statistics.md` says which of them each published number uses, and what it resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.statistics import Numbers, interval
from hardcase.tensors import chunks

__all__ = [
    *("Interval", "flips", "largest_t", "max_statistic", "mean_interval", "median_interval"),
    *("newcombe_paired", "without_interval"),
]

LEVEL = 0.95
LEAST_T = 3
"""The fewest units whose mean has an interval."""
LEAST_EXACT = 6
"""The fewest units for which sign flips reach 95 %: 2 of 2⁶ patterns are 3 %, 2 of 2⁵ are 6 %."""
ALL_FLIPS = 12
"""Up to so many units an interval tries every pattern of signs; beyond, patterns are drawn."""
DRAWN_FLIPS = 4000
PERMUTATIONS = 20_000
"""Sign flips that a test draws where there are too many to try them all."""


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
    """A value of which no interval can be said, and why."""
    return Interval(value, math.nan, math.nan, kind)


def mean_interval(
    values: Numbers, *, unit: str = "runs", rng: torch.Generator | None = None
) -> Interval:
    """The mean of independent units with its 95 % interval.

    Truth values, and mixed zeros and ones, are a share with Wilson's interval. Equal values have no
    interval: they show no spread from which one could be made. From six units on the ends are order
    statistics of the means of all subsets (J. Hartigan, JASA 1969): a value lies outside them where
    a sign-flip test of the deviations from it has p ≤ 5 %. For laws as skewed as an exponential one
    all of these cover about 90 % with ten units or fewer.

    Example:
        >>> print(mean_interval([11.0, 14, 18, 13, 6, 9]).text(".3g"))
        11.8 [6, 18]
    """
    given = torch.as_tensor(values)
    sample = given.detach().to("cpu", torch.float64).flatten().numpy()
    count = len(sample)
    if not count:
        return without_interval(math.nan, "")
    value = float(sample.mean())
    if given.dtype == torch.bool or (0 < value < 1 and set(sample) == {0.0, 1.0}):
        return Interval(value, *interval(int(sample.sum()), count))
    if count < LEAST_T:
        return without_interval(value, f"(no interval: {count} {unit})")
    if sample.min() == sample.max():
        return without_interval(value, f"in all {count}")
    if count < LEAST_EXACT:
        from scipy.stats import t

        half = float(t.ppf((1 + LEVEL) / 2, count - 1) * sample.std(ddof=1) / count**0.5)
        return Interval(value, value - half, value + half, f"(t, {count} {unit})")
    flipped = flips(count, ALL_FLIPS, DRAWN_FLIPS, rng).numpy() < 0
    flipped = flipped[flipped.any(1)]
    means = np.sort((flipped @ sample) / flipped.sum(1))
    outside = int((1 - LEVEL) / 2 * (len(means) + 1))
    return Interval(value, float(means[outside - 1]), float(means[-outside]))


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
    inward = (cover[k - 1] - LEVEL) / (cover[k - 1] - cover[k])
    share = float((count - k) * inward / (k + (count - 2 * k) * inward))
    low = torch.lerp(ordered[k - 1], ordered[k], share)
    high = torch.lerp(ordered[count - k], ordered[count - k - 1], share)
    return Interval(value, float(low), float(high))


def newcombe_paired(first: Bool[Tensor, " n"], second: Bool[Tensor, " m"]) -> Interval:
    """The difference of two shares of the same rows, first minus second.

    R. G. Newcombe, Statistics in Medicine 1998, 2635-2650, method 10: built from Wilson's
    intervals, so that 0 of 200 against 0 of 200 is not told as if it were certain.

    Example:
        >>> yes = torch.ones(10, dtype=torch.bool)
        >>> print(newcombe_paired(yes, yes))
        0.000 [-0.278, 0.278]
    """
    total = len(first)
    if total == 0 or len(second) != total:
        raise Problem(f"shares of {total} and {len(second)} rows cannot be compared row by row.")
    both = int((first & second).sum())
    neither = int((~first & ~second).sum())
    one = int((first & ~second).sum())
    other = total - both - neither - one
    p = (both + one) / total
    q = (both + other) / total
    low_p, high_p = interval(both + one, total)
    low_q, high_q = interval(both + other, total)
    margins = (both + one) * (other + neither) * (both + other) * (one + neither)
    balance = float(both * neither - one * other)
    if balance > 0:
        balance = max(balance - total / 2, 0.0)  # his correction for continuity
    phi = balance / math.sqrt(margins or math.inf)

    def joint(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    difference = p - q
    return Interval(
        difference,
        difference - joint(p - low_p, high_q - q),
        difference + joint(high_p - p, q - low_q),
    )


def max_statistic(
    values: Float[Tensor, "n k"],
    *,
    rng: torch.Generator,
    permutations: int = PERMUTATIONS,
) -> Float[Tensor, " k"]:
    """Adjusted p-values of the best of `k` measures that were taken on the same rows.

    Signs are flipped for whole rows, and each measure's |t| is compared with the largest |t| of
    each flip (P. Westfall and S. Young, 1993): the chance that the best of k measures that show
    nothing looks as good. A measure without any spread has p = 1.
    """
    table = values.double()
    signs = flips(len(table), int(math.log2(permutations)), permutations, rng)
    observed = _absolute_t(table.mean(0), table)
    largest = largest_t(signs, table)
    p = (largest[:, None] >= observed[None] * (1 - 1e-9)).double().mean(0)
    return torch.where(observed > 0, p, 1.0)


def largest_t(signs: Float[Tensor, "p n"], table: Float[Tensor, "n k"]) -> Float[Tensor, " p"]:
    """The largest |t| over the columns for each pattern of signs."""
    parts = (signs[rows] @ table / len(table) for rows in chunks(len(signs), 2048))
    return torch.cat([_absolute_t(part, table).amax(1) for part in parts])


def _absolute_t(means: Float[Tensor, "*p k"], table: Float[Tensor, "n k"]) -> Float[Tensor, "*p k"]:
    """|t| of means of flipped rows: flips leave the sum of squares as it is."""
    count = len(table)
    variance = (table.square().mean(0) - means.square()).clamp_min(0) * count / max(count - 1, 1)
    t = means.abs() / (variance / count).sqrt().clamp_min(1e-12)
    return torch.where(means.abs() > 1e-15, t, 0.0)


def flips(count: int, most: int, drawn: int, rng: torch.Generator | None) -> Float[Tensor, "p n"]:
    """All patterns of signs of up to `most` units, else the observed one and `drawn` others."""
    if count <= most:
        patterns = torch.arange(2**count)[:, None] >> torch.arange(count)
        return (1 - 2 * (patterns & 1)).double()
    rng = rng or stream(0, "sign flips")
    others = torch.randint(2, (drawn, count), generator=rng, device=rng.device).cpu()
    return torch.cat([torch.ones(1, count), 1 - 2 * others]).double()
