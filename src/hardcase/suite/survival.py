"""How many seeds are still without a failing test after so many queries (E. Kaplan, P. Meier, 1958)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

POINTS = 200
"""A curve is kept at no more points than these."""


def survival(first: Sequence[float], spent: Sequence[float]) -> list[dict[str, float]]:
    """The estimate at every query count at which a seed first failed; seeds that never did leave when they were given up.

    `first`: queries at the first failing test of each seed (inf: none); `spent`: all queries of each seed.
    """
    ends = sorted((min(when, total), math.isfinite(when)) for when, total in zip(first, spent))
    alive, left, curve = 1.0, len(ends), [{"queries": 0.0, "alive": 1.0}]
    for at, group in groupby(ends, key=lambda end: end[0]):
        failed = [hit for _, hit in group]
        alive *= 1 - sum(failed) / left
        left -= len(failed)
        if any(failed) or not left:
            curve.append({"queries": at, "alive": alive})
    return _thin(curve)


def _thin(curve: list[dict[str, float]]) -> list[dict[str, float]]:
    if len(curve) <= POINTS:
        return curve
    stride = (len(curve) - 1) / (POINTS - 1)
    return [curve[round(i * stride)] for i in range(POINTS)]
