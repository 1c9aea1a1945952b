"""Holding a mean against a limit: pass, fail or inconclusive, always by an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardcase.statistics.bounded import bounded_mean_interval
from hardcase.statistics.planning import ImagesNeeded, images_to_decide
from hardcase.statistics.rates import Bounds, binomial_interval

__all__ = ["LimitDecision", "Outcome", "decide", "decide_counts"]

Outcome = Literal["pass", "fail", "inconclusive"]
ERROR = 0.05
"""How often an interval may miss the truth."""


@dataclass(frozen=True, slots=True)
class LimitDecision:
    """A figure beside its limit.

    Args:
        outcome: pass: the whole 95 % interval is within the limit; fail: the whole interval is
            beyond it, also when 5 % are shared among all limits; inconclusive: neither.
        value: The figure.
        low: The lower end of its 95 % interval.
        high: The upper end.
        limit: What it is held against.
        needed: How many images would decide, where it is inconclusive and more images alone help.
    """

    outcome: Outcome
    value: float
    low: float
    high: float
    limit: float
    needed: ImagesNeeded | None = None


def decide(
    values: NDArray[np.float64],
    limit: float,
    low: float = 0.0,
    high: float = 1.0,
    *,
    limits: int = 1,
    least: NDArray[np.float64] | None = None,
    most: NDArray[np.float64] | None = None,
    clusters: Sequence[object] = (),
) -> LimitDecision:
    """Hold the mean of the population of which `values` are a sample against a limit.

    Args:
        values: One number per image, such as the share of its samples that fail, or how much
            larger that is than the baseline's.
        limit: What the mean may be at most.
        low: The least that an image can show.
        high: The most that an image can show.
        limits: How many limits are held together. A pass needs all of them, so that each spends
            5 % on a wrong pass; any one of them fails the whole, so that they share 5 % for a
            wrong fail.
        least: The numbers where everything unknown (ties, images that were left out) speaks for
            the model.
        most: The numbers where everything unknown speaks against it.
        clusters: The image of each value, where several are about one image.

    Example:
        >>> import numpy as np
        >>> decide(np.zeros(400), limit=0.01).outcome
        'pass'
    """
    best = values if least is None else least
    worst = values if most is None else most

    def ends(level: float) -> Bounds:
        lower, upper = (
            bounded_mean_interval(bound, low, high, level=level, clusters=clusters)
            for bound in (best, worst)
        )
        return Bounds(lower.low, upper.high)

    shown = ends(1 - ERROR)
    outcome = _outcome(shown, ends(1 - ERROR / limits), limit)
    needed = None
    certain = np.array_equal(best, worst) and not len(clusters)
    if outcome == "inconclusive" and certain and len(values) > 1:
        needed = images_to_decide(values, limit, low, high)
    mean = float(values.mean()) if len(values) else float("nan")
    return LimitDecision(outcome, mean, *shown, limit, needed)


def decide_counts(
    least: int, most: int, total: int, limit: float, *, limits: int = 1
) -> LimitDecision:
    """Hold a share of images against a limit, where some images are neither in nor out.

    Args:
        least: Images that certainly count.
        most: These and those that may.
        total: Of how many images.
        limit: What the share may be at most.
        limits: How many limits are held together, as in `decide`.

    Example:
        >>> decide_counts(12, 14, 60, limit=0.05).outcome
        'fail'
    """

    def ends(level: float) -> Bounds:
        lower, upper = (binomial_interval(hits, total, level=level) for hits in (least, most))
        return Bounds(lower.low, upper.high)

    shown = ends(1 - ERROR)
    outcome = _outcome(shown, ends(1 - ERROR / limits), limit)
    needed = None
    if outcome == "inconclusive" and least == most and total > 1:
        needed = images_to_decide(np.repeat([1.0, 0.0], [least, total - least]), limit)
    value = least / total if total else float("nan")
    return LimitDecision(outcome, value, *shown, limit, needed)


def _outcome(shown: Bounds, shared: Bounds, limit: float) -> Outcome:
    if shown.high <= limit:
        return "pass"
    return "fail" if shared.low > limit else "inconclusive"
