"""Differences between two answers to the same questions."""

from __future__ import annotations

import math

from jaxtyping import Bool
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.statistics.means import Interval
from hardcase.statistics.rates import wilson_interval

__all__ = ["newcombe_paired"]


def newcombe_paired(first: Bool[Tensor, " n"], second: Bool[Tensor, " m"]) -> Interval:
    """The difference of two shares of the same rows, first minus second.

    R. G. Newcombe, Statistics in Medicine 1998, 2635-2650, method 10: built from Wilson's
    intervals, so that 0 of 200 against 0 of 200 is not told as if it were certain.

    Example:
        >>> import torch
        >>> yes = torch.ones(10, dtype=torch.bool)
        >>> print(newcombe_paired(yes, yes))
        0.000 [-0.278, 0.278]
    """
    total = len(first)
    if total == 0 or len(second) != total:
        raise HardcaseError(
            f"shares of {total} and {len(second)} rows cannot be compared row by row."
        )
    both = int((first & second).sum())
    neither = int((~first & ~second).sum())
    first_only = int((first & ~second).sum())
    second_only = total - both - neither - first_only
    p = (both + first_only) / total
    q = (both + second_only) / total
    low_p, high_p = wilson_interval(both + first_only, total)
    low_q, high_q = wilson_interval(both + second_only, total)
    margins = (
        (both + first_only)
        * (second_only + neither)
        * (both + second_only)
        * (first_only + neither)
    )
    balance = float(both * neither - first_only * second_only)
    if balance > 0:
        balance = max(balance - total / 2, 0.0)  # his correction for continuity
    # The correlation of the two shares, by which their errors cancel in the difference; 0 where a
    # margin is empty, which makes the interval wide.
    phi = balance / math.sqrt(margins or math.inf)

    def joint(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    difference = p - q
    return Interval(
        difference,
        difference - joint(p - low_p, high_q - q),
        difference + joint(high_p - p, q - low_q),
    )
