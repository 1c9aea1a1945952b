"""The mean of a population whose values lie in a fixed range, whatever their law.

Gaffke's bound (N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the
mean of a nonnegative variable", Mathematical Methods of Statistics 14, 2005; E. Learned-Miller and
P. Thomas, "A new confidence interval for the mean of a bounded random variable", 2020): a quantile
of the mean under evenly distributed random weights, with one more value imagined at the end of the
range. That it holds at every law is a conjecture that no simulation has broken. For values of 0
and 1 it is Clopper and Pearson's interval, which is proven.

Weights that add up to 1 are exponential numbers over their sum, so the mean is at most `t` where a
weighted sum of exponential numbers is at most 0. Equal values share one number of a gamma law. The
chance of that event follows from its characteristic function, without any random number, and as
fast for 10,000 values of few levels as for 60.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

from hardcase.statistics.rates import Bounds

__all__ = ["Side", "bounded_mean_interval"]

Side = Literal["both", "low", "high"]
"""Which ends an interval has: one that has only one end spends the whole error on it."""
NEGLIGIBLE = 18.0
"""Chances below ``exp(-18)`` count as none."""
TERMS = 64
"""Terms of the inverted characteristic function that are added at once."""
MOST_TERMS = 100_000
"""Two values need them all, sixty values about a hundred."""
PRECISION = 1e-9
"""Of an end, as a part of the range, and of its chance."""
FLAT = 1e-3
"""Chances so near to 0 or 1 say little of where the end is."""
Row = tuple[float, float, int]
Vector = NDArray[np.float64]


def bounded_mean_interval(
    values: Vector,
    low: float = 0.0,
    high: float = 1.0,
    *,
    level: float = 0.95,
    clusters: Sequence[object] = (),
    side: Side = "both",
) -> Bounds:
    """Return an interval for the mean of the population of which `values` are a sample.

    Args:
        values: The measurements, a number per unit; the order does not matter.
        low: The least that a unit can show.
        high: The most that a unit can show.
        level: How often the interval holds the truth, at least.
        clusters: The name of the cluster of each value, where values of one cluster stand and fall
            together (claims about one image). Clusters are then the units, and none in the
            population is taken to be larger than the largest at hand.
        side: ``low`` or ``high`` gives that end alone, at the full level; the other end is that of
            the range.

    Example:
        >>> import numpy as np
        >>> low, high = bounded_mean_interval(np.zeros(10_000))
        >>> print(f"{low:.5f} to {high:.5f}")
        0.00000 to 0.00037
    """
    sample = np.asarray(values, dtype=np.float64)
    if not len(sample):
        return Bounds(low, high)
    if len(clusters):
        table = _cluster_rows(sample, clusters)
    else:
        levels, counts = np.unique(sample, return_counts=True)
        table = tuple((value, 1.0, many) for value, many in zip(levels.tolist(), counts.tolist()))
    # One unit more, at the worst end of the range: what makes the bound hold for laws whose rare
    # large values the sample has not met.
    largest = max(size for _, size, _ in table)
    tail = (1 - level) / 2 if side == "both" else 1 - level
    lower = low if side == "high" else _quantile((*table, (low, largest, 1)), tail)
    upper = high if side == "low" else _quantile((*table, (high, largest, 1)), 1 - tail)
    return Bounds(max(low, lower), min(high, upper))


def _cluster_rows(sample: Vector, clusters: Sequence[object]) -> tuple[Row, ...]:
    """The mean of each cluster, its size, and how many clusters are alike in both."""
    place = np.unique(np.asarray(clusters), return_inverse=True)[1]
    sizes = np.bincount(place).astype(float)
    pairs = np.stack([np.bincount(place, sample) / sizes, sizes], 1)
    alike, counts = np.unique(pairs, axis=0, return_counts=True)
    return tuple(
        (value, size, many) for (value, size), many in zip(alike.tolist(), counts.tolist())
    )


@lru_cache(maxsize=4096)  # simulations and several figures of one run ask for the same
def _quantile(table: tuple[Row, ...], chance: float) -> float:
    """The `chance` quantile of the mean under random weights of rows (value, size, how many)."""
    value, size, count = np.array(table).T
    least, most = float(value.min()), float(value.max())
    if least == most:
        return least
    # Zeros and ones: the mean under random weights has a beta law, and this is Clopper and
    # Pearson's.
    if len(set(value)) == 2 and len(set(size)) == 1:
        above = float(count[value == most].sum())
        share = scipy.special.betaincinv(above, float(count.sum()) - above, chance)
        return least + (most - least) * float(share)
    # bisection while an end lies where the law is flat, then false position (Illinois)
    close = PRECISION * (most - least)
    short, over = -chance, 1 - chance
    smooth = [False, False]
    last = 0
    while most - least > close:
        middle = (least + most) / 2
        if all(smooth):
            middle = least + (most - least) * short / (short - over)
        # The mean is below `middle` exactly if the weighted sum of deviations from it is below 0: a
        # sum of gamma numbers, whose law is found by its characteristic function, without any
        # sampling.
        below = _below(size * (value - middle), count)
        error = below - chance
        if abs(error) < PRECISION:
            return middle
        side = int(error > 0)
        smooth[side] = FLAT < below < 1 - FLAT
        if side:
            most, over = middle, error
            # Illinois: an end that stays twice in a row counts half, so the secant cannot creep.
            short /= 1 + (last == side)
        else:
            least, short = middle, error
            over /= 1 + (last == side)
        last = side
    return (least + most) / 2


def _below(weight: Vector, count: Vector) -> float:
    """The chance that a sum of gamma numbers of shape `count`, times `weight`, is below 0.

    R. Davies, "Numerical inversion of a characteristic function", Biometrika 60, 1973: its error is
    the chance that the sum is farther from 0 than one period. The period follows from the tails of
    such sums (S. Boucheron, G. Lugosi, P. Massart, "Concentration inequalities", 2013, section
    2.4).
    """
    mean = float(count @ weight)
    spread = math.sqrt(2 * NEGLIGIBLE * float(count @ weight**2))
    far = spread + NEGLIGIBLE * float(np.abs(weight).max())
    if abs(mean) > far:
        return float(mean < 0)
    step = 2 * math.pi / (abs(mean) + far)
    total = 0.0
    for start in range(0, MOST_TERMS, TERMS):
        half = np.arange(start, start + TERMS) + 0.5
        scaled = np.outer(half * step, weight)
        # Modulus and phase of the characteristic function of a sum of gammas; terms are summed in
        # blocks until the modulus is negligible, so the error is bounded, not hoped for.
        size = np.exp(np.log1p(scaled**2) @ count / -2)
        total += float((np.sin(np.arctan(scaled) @ count) * size / half).sum())
        if size[-1] < math.exp(-NEGLIGIBLE):
            break
    return min(1.0, max(0.0, 0.5 - total / math.pi))
