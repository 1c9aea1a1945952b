"""Intervals of shares, permutation tests and crossed resampling: what varies is an argument.

`docs/statistics.md` says which of them each published number uses, and what it resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import Problem
from hardcase.statistics import Interval, interval
from hardcase.tensors import chunks

PERMUTATIONS = 20_000
"""Sign flips that are drawn where there are too many to try them all."""


def clopper_pearson(hits: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share: never covers less than `level` (Biometrika 1934).

    Args:
        hits: How many are so.
        total: Of how many.
        level: Its least coverage.

    Example:
        >>> tuple(round(end, 4) for end in clopper_pearson(0, 200))
        (0.0, 0.0183)
    """
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, total - hits + 1))
    high = 1.0 if hits == total else float(beta.ppf(1 - tail, hits + 1, total - hits))
    return low, high


def newcombe(hits: tuple[int, int], totals: tuple[int, int]) -> Interval:
    """The difference of two independent shares with Newcombe's hybrid interval.

    R. G. Newcombe, Statistics in Medicine 1998, 873-890, method 10: built from Wilson's intervals,
    so that 0 of 200 against 0 of 200 is not told as if it were certain.

    Args:
        hits: How many are so, in the first and in the second sample.
        totals: Of how many.

    Example:
        >>> print(newcombe((0, 0), (200, 200)))
        0.000 [-0.019, 0.019]
    """
    p, q = (of / total for of, total in zip(hits, totals, strict=True))
    (low_p, high_p), (low_q, high_q) = map(interval, hits, totals)
    below = math.hypot(p - low_p, high_q - q)
    above = math.hypot(high_p - p, q - low_q)
    return Interval(p - q, p - q - below, p - q + above)


def newcombe_paired(first: Bool[Tensor, " n"], second: Bool[Tensor, " m"]) -> Interval:
    """The difference of two shares of the same rows, first minus second.

    R. G. Newcombe, Statistics in Medicine 1998, 2635-2650, method 10.

    Args:
        first: Which rows are so under the first condition.
        second: Which of the same rows are so under the second.

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
    spread = (both + one) * (other + neither) * (both + other) * (one + neither)
    lean = float(both * neither - one * other)
    lean = max(lean - total / 2, 0.0) if lean > 0 else lean
    phi = lean / math.sqrt(spread) if spread else 0.0
    below = _joint(p - low_p, high_q - q, phi)
    above = _joint(high_p - p, q - low_q, phi)
    return Interval(p - q, p - q - below, p - q + above)


def _joint(one: float, two: float, phi: float) -> float:
    return math.sqrt(max(one * one - 2 * phi * one * two + two * two, 0.0))


def cluster_means(values: Float[Tensor, " n"], cluster: Int[Tensor, " n"]) -> Float[Tensor, " c"]:
    """The mean of each cluster: what is exchangeable where rows of one training are not.

    Args:
        values: A number of each row.
        cluster: The cluster (a training, a seed) of each row; any whole numbers.
    """
    place = torch.unique(cluster, return_inverse=True)[1]
    count: Tensor = place.bincount()
    total: Tensor = torch.zeros(len(count), dtype=values.dtype).index_add_(0, place, values)
    return total / count


@dataclass(frozen=True, slots=True)
class SignFlip:
    """A two-sided test of mean difference 0; `exact` where every sign pattern was tried."""

    difference: float
    p: float
    count: int
    exact: bool


def sign_flip(
    differences: Float[Tensor, " n"],
    *,
    rng: torch.Generator,
    permutations: int = PERMUTATIONS,
) -> SignFlip:
    """Could paired differences have this mean if each were as likely to be negative?

    Every pattern of signs is tried where there are no more than `permutations`; else so many are
    drawn, and the observed one counts among them, so that p is never 0 (B. Phipson and G. Smyth,
    2010).

    Args:
        differences: One number for each independent pair; average rows that belong together first
            (`cluster_means`).
        rng: Draws the signs.
        permutations: The most patterns.

    Example:
        >>> from hardcase.randomness import stream
        >>> sign_flip(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), rng=stream(0)).p
        0.0625
    """
    values = differences.double()
    count = len(values)
    if count == 0:
        raise Problem("there are no differences to test.")
    observed = float(values.mean())
    exact = count < 63 and 2**count <= permutations
    signs = _all_signs(count) if exact else _some_signs(count, permutations, rng)
    means = (signs @ values) / count
    as_far = int((means.abs() >= abs(observed) * (1 - 1e-9) - 1e-15).sum())
    p = as_far / len(signs) if exact else (1 + as_far) / (1 + len(signs))
    return SignFlip(observed, p, count, exact)


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

    Args:
        values: Paired differences, one row for each independent pair, one column for each measure.
        rng: Draws the signs.
        permutations: The most patterns.
    """
    table = values.double()
    count = len(table)
    exact = count < 63 and 2**count <= permutations
    signs = _all_signs(count) if exact else _some_signs(count, permutations, rng)
    observed = _t(table.mean(0), table)
    largest = torch.cat([_t((part @ table) / count, table).amax(1) for part in _parts(signs)])
    beaten = (largest[:, None] >= observed[None] * (1 - 1e-9)).sum(0)
    p = beaten / len(signs) if exact else (1 + beaten) / (1 + len(signs))
    return torch.where(observed > 0, p, 1.0)


def simultaneous(
    differences: Float[Tensor, "n k"], *, rng: torch.Generator, repeats: int = 5000
) -> list[Interval]:
    """Intervals of k mean differences to one control that hold together in 95 of 100 experiments.

    As C. Dunnett's comparison with a control (1955), with the law of the largest |t| taken from
    resampled rows instead of normal ones, so that differences may depend on each other.

    Args:
        differences: One row for each independent repetition, one column for each treatment, less
            the control in the same repetition.
        rng: Draws the resamplings.
        repeats: How many.

    Example:
        >>> import torch
        >>> table = torch.tensor([[1.0, 0.1], [1.2, -0.1], [0.9, 0.2], [1.1, -0.2]])
        >>> [found.low > 0 for found in simultaneous(table, rng=torch.Generator().manual_seed(0))]
        [True, False]
    """
    table = differences.double().cpu()
    count = len(table)
    centre = table.mean(0)
    error = (table.std(0) / count**0.5).clamp_min(1e-12)
    rows = torch.randint(count, (repeats, count), generator=rng, device=rng.device).cpu()
    drawn = table[rows]
    spread = (drawn.std(1) / count**0.5).clamp_min(1e-12)
    t = ((drawn.mean(1) - centre) / spread).abs()
    usable = torch.where(spread > 1e-9, t, 0.0).amax(1)  # a resample of one row has no spread
    reach = float(usable.quantile(0.95)) * error
    return [
        Interval(float(value), float(value - far), float(value + far))
        for value, far in zip(centre, reach, strict=True)
    ]


def _parts(signs: Float[Tensor, "p n"]) -> list[Tensor]:
    return [signs[rows] for rows in chunks(len(signs), 2048)]


def _t(means: Float[Tensor, "*p k"], table: Float[Tensor, "n k"]) -> Float[Tensor, "*p k"]:
    """|t| of means of flipped rows: flips leave the sum of squares as it is."""
    count = len(table)
    variance = (table.square().mean(0) - means.square()).clamp_min(0) * count / max(count - 1, 1)
    t = means.abs() / (variance / count).sqrt().clamp_min(1e-12)
    return torch.where(means.abs() > 1e-15, t, 0.0)


def _all_signs(count: int) -> Float[Tensor, "p n"]:
    patterns = torch.arange(2**count)[:, None] >> torch.arange(count)
    return (1 - 2 * (patterns & 1)).double()


def _some_signs(count: int, permutations: int, rng: torch.Generator) -> Float[Tensor, "p n"]:
    drawn = torch.randint(2, (permutations, count), generator=rng, device=rng.device).cpu()
    return (1 - 2 * drawn).double()


def crossed(
    table: Float[Tensor, "r c"],
    *,
    rng: torch.Generator,
    repeats: int = 2000,
    level: float = 0.95,
    statistic: Callable[[Tensor], Tensor] | None = None,
) -> Interval:
    """The mean of a table whose rows and columns both vary, such as images and raters.

    Rows and columns are drawn with replacement independently of each other (A. Owen, The pigeonhole
    bootstrap, 2007), so that the interval is of new images *and* new raters. Cells that are not a
    number were not asked.

    Args:
        table: One cell for each pair; NaN where there is none.
        rng: Draws rows and columns.
        repeats: Draws.
        level: Coverage.
        statistic: From tables of shape (..., r, c) one number each; the mean of known cells.
    """
    cells = table.double()
    if min(cells.shape) < 2:
        raise Problem(
            f"a table of shape {tuple(cells.shape)} cannot be resampled in both directions.",
            fix="at least two rows and two columns",
        )
    value = statistic or (lambda drawn: drawn.flatten(-2).nanmean(-1))
    rows, columns = cells.shape
    whole = statistic is None and bool(cells.isfinite().all())
    draws = []
    for _ in range(repeats):
        one = torch.randint(rows, (rows,), generator=rng, device=rng.device).cpu()
        two = torch.randint(columns, (columns,), generator=rng, device=rng.device).cpu()
        if whole:  # the mean of a full table is that of its cells, each as often as it was drawn
            often = (one.bincount(minlength=rows), two.bincount(minlength=columns))
            draws.append(often[0].double() @ cells @ often[1].double() / cells.numel())
        else:
            draws.append(value(cells[one][:, two]))
    tail = (1 - level) / 2
    ends = torch.stack(draws).nanquantile(torch.tensor([tail, 1 - tail], dtype=torch.float64))
    return Interval(float(value(cells)), float(ends[0]), float(ends[1]))
