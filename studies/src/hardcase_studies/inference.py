"""Intervals and tests that studies of several runs or trainings need, beside those of the core."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.statistics import (
    ALL_FLIPS,
    DRAWN_FLIPS,
    LEAST_EXACT,
    LEAST_T,
    LEVEL,
    PERMUTATIONS,
    Interval,
    flips,
    largest_t,
    without_interval,
)

__all__ = ["SignFlip", "cluster_means", "correlation", "family_intervals", "sign_flip"]


def family_intervals(
    differences: Float[Tensor, "n k"], *, unit: str = "runs", rng: torch.Generator | None = None
) -> list[Interval]:
    """Intervals of k mean differences to one control that hold together in 95 of 100 experiments.

    As C. Dunnett's comparison with a control (1955), with the law of the largest |t| taken from
    sign flips of whole rows of residuals, so that columns may depend on each other (P. Westfall and
    S. Young, 1993). With three to five rows Student's t with Šidák's correction.

    Example:
        >>> table = torch.tensor([[11.0, 1], [16, -1], [8, 2], [9, -2], [7, 1], [11, 0]])
        >>> for found in family_intervals(table):
        ...     print(found.text(".1f"))
        10.3 [6.0, 14.6]
        0.2 [-1.8, 2.1]
    """
    table = differences.double().cpu()
    count, columns = table.shape
    centre = table.mean(0)
    if count < LEAST_T:
        return [
            without_interval(float(value), f"(no interval: {count} {unit})") for value in centre
        ]
    kind = ""
    if count < LEAST_EXACT:
        from scipy.stats import t

        kind = f"(t, {count} {unit})"
        reach = float(t.ppf((1 + LEVEL ** (1 / columns)) / 2, count - 1))
    else:
        signs = flips(count, ALL_FLIPS, DRAWN_FLIPS, rng)
        reach = float(largest_t(signs, table - centre).quantile(LEVEL, interpolation="higher"))
    half = (reach * table.std(0) / count**0.5).tolist()
    return [
        Interval(value, value - far, value + far, kind)
        for value, far in zip(centre.tolist(), half, strict=True)
    ]


def cluster_means(values: Float[Tensor, " n"], cluster: Int[Tensor, " n"]) -> Float[Tensor, " c"]:
    """The mean of each cluster: what is exchangeable where rows of one training are not."""
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
    differences: Float[Tensor, " n"], *, rng: torch.Generator, permutations: int = PERMUTATIONS
) -> SignFlip:
    """Test whether paired differences have mean 0, given that each is as likely to be negative.

    Every pattern of signs is tried where there are no more than `permutations`; else so many are
    drawn, and the observed one counts among them, so that p is never 0 (B. Phipson and G. Smyth,
    2010).

    Example:
        >>> sign_flip(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), rng=stream(0)).p
        0.0625
    """
    values = differences.double()
    count = len(values)
    if count == 0:
        raise HardcaseError("there are no differences to test.")
    observed = float(values.mean())
    signs = flips(count, int(math.log2(permutations)), permutations, rng)
    means = (signs @ values) / count
    as_far = int((means.abs() >= abs(observed) * (1 - 1e-9) - 1e-15).sum())
    return SignFlip(observed, as_far / len(signs), count, len(signs) == 2.0**count)


def correlation(x: Float[Tensor, "*g n"], y: Float[Tensor, "*g n"]) -> Float[Tensor, "*g"]:
    """Pearson's coefficient along the last axis; NaN where one of the two is constant."""
    one = x - x.mean(-1, keepdim=True)
    two = y - y.mean(-1, keepdim=True)
    scale = (one.square().sum(-1) * two.square().sum(-1)).sqrt()
    return torch.where(scale > 0, (one * two).sum(-1) / scale, torch.nan).clamp(-1, 1)
