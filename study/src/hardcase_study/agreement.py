"""How far raters agree, and which of several things they prefer.

Tables have a row per unit (an image) and a column per rater; NaN stands where a rater gave none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    from hardcase.statistics import Interval

Array = np.ndarray
Level = Literal["nominal", "ordinal", "interval"]


def krippendorff_alpha(ratings: Float[Array, "u r"], level: Level = "nominal") -> float:
    """Krippendorff's α: 1 is full agreement, 0 what chance would give (NaN: nothing to compare).

    K. Krippendorff, "Computing Krippendorff's alpha-reliability", 2011; any number of raters,
    gaps allowed.
    """
    values = np.unique(ratings[~np.isnan(ratings)])
    counts = (ratings[:, :, None] == values).sum(1).astype(np.float64)  # (units, values)
    return _alpha(counts, values, level)


def _alpha(counts: Float[Array, "u v"], values: Float[Array, " v"], level: Level) -> float:
    counts = counts[counts.sum(1) >= 2]
    pairs = counts.sum(1)
    if not len(counts):
        return float("nan")
    together = (counts[:, :, None] * counts[:, None, :]) / (pairs - 1)[:, None, None]
    observed = together.sum(0)
    observed -= np.diag((counts / (pairs - 1)[:, None]).sum(0))
    margin = observed.sum(1)
    total = margin.sum()
    distance = _distance(values, margin, level)
    expected = (np.outer(margin, margin) - np.diag(margin)) / (total - 1)
    chance = float((expected * distance).sum())
    return 1.0 - float((observed * distance).sum()) / chance if chance > 0 else float("nan")


def _distance(values: Array, margin: Array, level: Level) -> Float[Array, "v v"]:
    if level == "nominal":
        return 1.0 - np.eye(len(values))
    if level == "interval":
        return np.asarray((values[:, None] - values[None]) ** 2)
    below = np.cumsum(margin) - margin / 2
    return np.asarray((below[:, None] - below[None]) ** 2)


def kendall_w(ranks: Float[Array, "r n"]) -> float:
    """Kendall's W of `ranks`, a row per rater: 1 where all order alike; corrected for ties.

    M. G. Kendall, B. Babington Smith, "The problem of m rankings", 1939.

    >>> kendall_w(np.array([[1.0, 2, 3], [1, 2, 3]]))
    1.0
    """
    raters, things = ranks.shape
    if raters < 2 or things < 2:
        return float("nan")
    sums = ranks.sum(0)
    spread = float(((sums - sums.mean()) ** 2).sum())
    ties = 0.0
    for row in ranks:
        sizes = np.unique(row, return_counts=True)[1].astype(np.float64)
        ties += float((sizes**3 - sizes).sum()) / 12
    most = raters**2 * (things**3 - things) / 12 - raters * ties
    return spread / most if most > 0 else float("nan")


@dataclass(frozen=True, slots=True)
class Strengths:
    """Bradley–Terry: `log` strengths with mean 0, their standard errors, and the comparisons."""

    log: Float[Array, " n"]
    error: Float[Array, " n"]
    comparisons: int


def bradley_terry(wins: Float[Array, "n n"], *, prior: float = 0.1, steps: int = 500) -> Strengths:
    """Strengths of things from pair comparisons; ``wins[i, j]``: how often i was preferred to j.

    R. A. Bradley, M. E. Terry, 1952; fitted by the iteration of D. R. Hunter, 2004.
    """
    count = len(wins)
    given = wins + prior / 2 * (1 - np.eye(count))
    games = given + given.T
    won = given.sum(1)
    strength = np.ones(count)
    for _ in range(steps):
        pull = (games / (strength[:, None] + strength[None])).sum(1)
        fresh = won / np.maximum(pull, 1e-300)
        fresh /= np.exp(np.log(np.maximum(fresh, 1e-300)).mean())
        if np.allclose(fresh, strength, rtol=1e-10, atol=0):
            break
        strength = fresh
    share = strength[:, None] / (strength[:, None] + strength[None])
    information = -games * share * (1 - share)
    np.fill_diagonal(information, 0)
    np.fill_diagonal(information, -information.sum(1))
    error = np.sqrt(np.clip(np.diag(np.linalg.pinv(information)), 0, None))
    return Strengths(np.log(strength), error, int(wins.sum()))


def crossed_mean(
    values: Float[Array, " n"], rater: Int[Array, " n"], image: Int[Array, " n"]
) -> Interval:
    """The mean of answers, with an interval for other raters *and* other images.

    Answers of one person, or about one image, are no independent evidence
    (`crossed_interval`). Fewer than three people or images have no interval.
    """
    if not len(values):
        from hardcase.statistics import Interval  # loads torch, which a server does without

        return Interval(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    count = np.full(len(values), len(values))
    found = crossed_difference(values - mean, count, rater, image, mean)
    if found.known and np.isin(values, (0, 1)).all():
        return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))
    return found


def crossed_difference(
    residual: Float[Array, " n"],
    count: Int[Array, " n"],
    rater: Int[Array, " n"],
    image: Int[Array, " n"],
    value: float,
) -> Interval:
    """A number that is made of means, with an interval for other raters and other images."""
    pull = np.zeros((int(rater.max()) + 1, int(image.max()) + 1))
    there = np.zeros_like(pull, dtype=bool)
    np.add.at(pull, (rater, image), residual / count)
    there[rater, image] = True
    # cells whose mean is the value, and whose deviations from it are what each cell pulls it by
    table = np.where(there, value + there.sum() * pull, np.nan)
    return crossed_interval(table, unit="raters or images")


def crossed_interval(table: Any, *, unit: str = "trainings") -> Interval:
    """The mean of a table whose rows and columns both vary, such as images and trainings.

    The interval is of new rows *and* new columns: the variance is that of row means plus that of
    column means less that of cells (C. Cameron, J. Gelbach and D. Miller, 2011), and Student's t
    has the degrees of freedom of that sum (F. Satterthwaite, 1946). No interval where there are
    fewer than three rows or columns.
    """
    from scipy.stats import t

    from hardcase.statistics import LEAST_EXACT, LEAST_T, LEVEL, Interval, without_interval

    cells = np.asarray(table, dtype=np.float64)
    known = np.isfinite(cells)
    total = int(known.sum())
    value = float(np.nanmean(cells))
    residual = np.where(known, cells - value, 0.0) / max(total, 1)
    counts = [int(known.any(axis).sum()) for axis in (1, 0)]
    if min(counts) < LEAST_T:
        return without_interval(value, f"(no interval: {min(counts)} {unit})")
    freedom = [count - 1 for count in counts]
    variance = [
        float(np.square(residual.sum(axis)).sum()) * count / (count - 1)
        for axis, count in zip((1, 0), counts, strict=True)
    ]
    noise = float(np.square(residual).sum())
    both = max(sum(variance) - noise, *variance)
    if both == 0:
        return without_interval(value, f"in all {total}")
    parts = zip([*variance, noise], [*freedom, freedom[0] * freedom[1]], strict=True)
    degrees = both**2 / sum(part**2 / free for part, free in parts)
    half = float(t.ppf((1 + LEVEL) / 2, max(degrees, 1.0))) * both**0.5
    kind = ""
    if min(counts) < LEAST_EXACT:
        kind = f"(t, {min(counts)} {unit})"
    return Interval(value, value - half, value + half, kind)


def welch_p(a: Any, b: Any) -> float:
    """p of Welch's test of two means (Biometrika 1947); without any spread they are equal (1) or
    different (0).

    >>> welch_p([1, 1], [1, 1, 1]), welch_p([1, 1], [2, 2])
    (1.0, 0.0)
    """
    from scipy.stats import ttest_ind

    one, two = (np.asarray(values, dtype=np.float64) for values in (a, b))
    if not np.ptp(one) and not np.ptp(two):
        return float(one[0] == two[0])
    return float(ttest_ind(one, two, equal_var=False).pvalue)


def over_units(statistic: Callable[[Array], float], table: Float[Array, "u r"]) -> Interval:
    """`statistic` of a table, with an interval over its rows: of jackknife pseudo-values.

    J. Tukey, 1958; the interval is that of a mean of so many units (`inference.mean_interval`).
    """
    from hardcase.statistics import Interval, mean_interval

    value = statistic(table)
    count = len(table)
    without = [statistic(np.delete(table, row, axis=0)) for row in range(count)]
    pseudo = np.array([count * value - (count - 1) * one for one in without])
    pseudo = pseudo[np.isfinite(pseudo)]
    if not len(pseudo):
        return Interval(value, math.nan, math.nan)
    import torch

    return replace(mean_interval(torch.from_numpy(pseudo), unit="images"), value=value)
