"""Tests of whether two samples differ, sizes of effects, corrections for asking several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.randomness import stream
from hardcase.tensors import chunks

__all__ = [
    *("PERMUTATIONS", "Numbers", "Test", "a12", "cliffs_delta", "flips", "holm", "largest_t"),
    *("magnitude", "mann_whitney", "max_statistic", "mcnemar", "wilcoxon"),
]

PERMUTATIONS = 20_000
"""Sign flips that a test draws where there are too many to try them all."""
Numbers = Sequence[float] | Sequence[int] | Tensor


@dataclass(frozen=True, slots=True)
class Test:
    """A two-sided test: its statistic, its p-value, and how many values took part."""

    statistic: float
    p: float
    count: int


def cliffs_delta(a: Numbers, b: Numbers) -> float:
    """The chance that a value of `a` is above one of `b`, minus the chance that it is below.

    From -1 to 1 (N. Cliff, 1993).
    """
    first = _sample(a, 1)
    second = _sample(b, 1).sort().values
    below = torch.searchsorted(second, first)
    above = len(second) - torch.searchsorted(second, first, right=True)
    return float((below - above).sum() / (len(first) * len(second)))


def a12(a: Numbers, b: Numbers) -> float:
    """The chance that a value of `a` is above one of `b`, ties counting half.

    From 0 to 1 (A. Vargha and H. Delaney, 2000).
    """
    return (cliffs_delta(a, b) + 1) / 2


def magnitude(delta: float) -> str:
    """A word for a Cliff's delta, by the thresholds of J. Romano et al., 2006."""
    for limit, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")):
        if abs(delta) < limit:
            return word
    return "large"


def mann_whitney(a: Numbers, b: Numbers) -> Test:
    """Test whether values of one sample tend to be larger (H. Mann and D. Whitney, 1947).

    Two samples that cannot differ give p = 1.
    """
    from scipy.stats import mannwhitneyu

    first = _sample(a, 1)
    second = _sample(b, 1)
    count = len(first) + len(second)
    if len({*first.tolist(), *second.tolist()}) == 1:
        return Test(len(first) * len(second) / 2, 1.0, count)
    result = mannwhitneyu(first.numpy(), second.numpy(), alternative="two-sided")
    return Test(float(result.statistic), float(result.pvalue), count)


def wilcoxon(a: Numbers, b: Numbers) -> Test:
    """Test whether paired values differ (F. Wilcoxon, 1945).

    Pairs without a difference are left out; none left gives p = 1.
    """
    from scipy.stats import wilcoxon as signed_ranks

    first = _sample(a, 1)
    second = _sample(b, 1)
    if len(first) != len(second):
        raise HardcaseError(
            f"{len(first)} and {len(second)} values are no pairs; the signed-rank test needs as"
            " many of each."
        )
    gap = (first - second)[first != second]
    if not len(gap):
        return Test(0.0, 1.0, 0)
    result = signed_ranks(gap.numpy())
    return Test(float(result.statistic), float(result.pvalue), len(gap))


def mcnemar(only_first: int, only_second: int) -> Test:
    """Test whether two yes-or-no answers to the same questions differ (Q. McNemar, 1947).

    Exact, from the pairs that disagree.
    """
    from scipy.stats import binomtest

    count = only_first + only_second
    statistic = float(min(only_first, only_second))
    if not count:
        return Test(statistic, 1.0, 0)
    return Test(statistic, float(binomtest(only_first, count, 0.5).pvalue), count)


def holm(p: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the order given (S. Holm, 1979)."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected = [0.0] * len(p)
    worst = 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, p[i] * (len(p) - rank)))
        corrected[i] = worst
    return corrected


def _sample(values: Numbers, least: int) -> Float[Tensor, " n"]:
    sample = torch.as_tensor(values, dtype=torch.float64).flatten()
    if len(sample) < least or not bool(sample.isfinite().all()):
        raise HardcaseError(
            f"a sample of {len(sample)} values cannot be compared; it needs {least} or more, all"
            " finite."
        )
    return sample


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
