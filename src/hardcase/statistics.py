"""Comparing samples: tests, effect sizes, and intervals by resampling. Every function takes plain numbers or tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem

Numbers = Sequence[float] | Sequence[int] | Tensor
Statistic = Callable[..., Tensor]
"""From samples of shape (..., n), resampled together, one number for each of the leading places."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the ends of its interval; all are NaN where the value is undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Welch:
    """Welch's test of two means: `difference` is the mean of the first sample minus that of the second."""

    difference: float
    t: float
    freedom: float
    p: float


def welch(a: Numbers, b: Numbers) -> Welch:
    """Two-sided test of equal means without equal variances (B. L. Welch, Biometrika 1947).

    Two samples without any spread are equal (p = 1) or different (p = 0).
    """
    from scipy.stats import t as student

    one, two = _sample(a, 2), _sample(b, 2)
    difference = float(one.mean() - two.mean())
    spread = torch.stack([one.var() / len(one), two.var() / len(two)])
    if float(spread.sum()) == 0:
        same = difference == 0
        return Welch(difference, 0.0 if same else float("inf"), float(len(one) + len(two) - 2), 1.0 if same else 0.0)
    sizes = torch.tensor([len(one) - 1.0, len(two) - 1.0], dtype=torch.float64)
    freedom = float(spread.sum().square() / (spread.square() / sizes).sum())
    t = difference / float(spread.sum().sqrt())
    return Welch(difference, t, freedom, float(2 * student.sf(abs(t), freedom)))


def cliffs_delta(a: Numbers, b: Numbers) -> float:
    """The chance that a value of `a` is above one of `b`, minus the chance that it is below (N. Cliff, 1993): -1 to 1."""
    one, two = _sample(a, 1), _sample(b, 1).sort().values
    below = torch.searchsorted(two, one)
    above = len(two) - torch.searchsorted(two, one, right=True)
    return float((below - above).sum() / (len(one) * len(two)))


def a12(a: Numbers, b: Numbers) -> float:
    """The chance that a value of `a` is above one of `b`, ties counting half (A. Vargha, H. Delaney, 2000): 0 to 1."""
    return (cliffs_delta(a, b) + 1) / 2


def magnitude(delta: float) -> str:
    """A word for a Cliff's delta, by the thresholds of J. Romano et al., 2006."""
    size = abs(delta)
    return "negligible" if size < 0.147 else "small" if size < 0.33 else "medium" if size < 0.474 else "large"


def correlation(x: Float[Tensor, "*g n"], y: Float[Tensor, "*g n"]) -> Float[Tensor, "*g"]:
    """Pearson's coefficient along the last axis; NaN where one of the two is constant."""
    one, two = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    scale = (one.square().sum(-1) * two.square().sum(-1)).sqrt()
    return torch.where(scale > 0, (one * two).sum(-1) / scale, torch.nan).clamp(-1, 1)


def pearson(x: Numbers, y: Numbers, *, rng: torch.Generator, repeats: int = 2000, level: float = 0.95) -> Interval:
    """Pearson's coefficient with a bootstrap interval over the pairs.

    With one row per group, the mean over the groups of each group's coefficient, resampled inside the groups.
    """
    return bootstrap(correlation, (x, y), rng=rng, repeats=repeats, level=level)


def bootstrap(
    statistic: Statistic,
    samples: Sequence[Numbers],
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    level: float = 0.95,
) -> Interval:
    """`statistic` of `samples` with its percentile interval (B. Efron, 1979).

    The samples have equal shapes, (n) or (groups, n), and are drawn together, with replacement, inside each group; the
    value is the mean over groups. Draws and groups for which the statistic is not a number are left out.
    """
    wide = [torch.as_tensor(sample, dtype=torch.float64) for sample in samples]
    columns = [sample[None] if sample.ndim == 1 else sample for sample in wide]
    groups, count = columns[0].shape
    if any(column.shape != columns[0].shape for column in columns) or count < 2:
        shapes = ", ".join(str(tuple(column.shape)) for column in columns)
        raise Problem(f"samples of shapes {shapes} cannot be resampled together; they need equal shapes and 2 values.")
    drawn = torch.randint(count, (repeats, groups, count), generator=rng, device=rng.device).cpu()
    resampled = [column.expand(repeats, -1, -1).gather(2, drawn) for column in columns]
    value, values = statistic(*columns).nanmean(-1), statistic(*resampled).nanmean(-1)
    tail = (1 - level) / 2
    low, high = values.nanquantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(float(value), low, high)


def mean(values: Numbers, *, rng: torch.Generator, repeats: int = 2000, level: float = 0.95) -> Interval:
    """The mean with a bootstrap interval."""
    return bootstrap(lambda sample: sample.mean(-1), (values,), rng=rng, repeats=repeats, level=level)


@dataclass(frozen=True, slots=True)
class Test:
    """A two-sided test: its statistic, its p-value, and how many values took part."""

    statistic: float
    p: float
    count: int


def mann_whitney(a: Numbers, b: Numbers) -> Test:
    """Do values of one sample tend to be larger? (H. Mann, D. Whitney, 1947.) Two samples that cannot differ give p = 1."""
    from scipy.stats import mannwhitneyu

    one, two = _sample(a, 1), _sample(b, 1)
    if len(set(one.tolist() + two.tolist())) == 1:
        return Test(len(one) * len(two) / 2, 1.0, len(one) + len(two))
    found = mannwhitneyu(one.numpy(), two.numpy(), alternative="two-sided")
    return Test(float(found.statistic), float(found.pvalue), len(one) + len(two))


def wilcoxon(a: Numbers, b: Numbers) -> Test:
    """Do paired values differ? (F. Wilcoxon, 1945; pairs without a difference are left out.) None left gives p = 1."""
    from scipy.stats import wilcoxon as signed_ranks

    one, two = _sample(a, 1), _sample(b, 1)
    if len(one) != len(two):
        raise Problem(f"{len(one)} and {len(two)} values are no pairs; the signed-rank test needs as many of each.")
    gap = (one - two)[one != two]
    if not len(gap):
        return Test(0.0, 1.0, 0)
    found = signed_ranks(gap.numpy())
    return Test(float(found.statistic), float(found.pvalue), len(gap))


def mcnemar(only_first: int, only_second: int) -> Test:
    """Do two yes-or-no answers to the same questions differ? Exact (Q. McNemar, 1947), from the pairs that disagree."""
    from scipy.stats import binomtest

    count = only_first + only_second
    p = float(binomtest(only_first, count, 0.5).pvalue) if count else 1.0
    return Test(float(min(only_first, only_second)), p, count)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number (S. Holm, 1979), in the order given; never below what they were."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected, worst = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = worst
    return corrected


def _sample(values: Numbers, least: int) -> Float[Tensor, " n"]:
    sample = torch.as_tensor(values, dtype=torch.float64).flatten()
    if len(sample) < least or not bool(sample.isfinite().all()):
        raise Problem(f"a sample of {len(sample)} values cannot be compared; it needs {least} or more, all finite.")
    return sample
