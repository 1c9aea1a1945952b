"""The rate of failures that people confirm, from a sample of them and the judge's word on all.

The judge says something of every failing seed, people of a sample of them. The difference
estimator (C.-E. Särndal, B. Swensson, J. Wretman, *Model Assisted Survey Sampling*, 1992, ch. 6)
takes the judge's rate and adds the mean of its errors on the sample, each weighted by one over its
probability of being drawn. It is unbiased however bad the judge is, and exact where he is good.

The judge's verdicts are those of the moment of drawing: a judge fitted to these answers afterwards
is right about the sample because it has seen it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Z = 1.959964


@dataclass(frozen=True, slots=True)
class Rated:
    """One finding that people have rated."""

    stratum: str
    judged: bool
    outcome: str
    probability: float


@dataclass(frozen=True, slots=True)
class ConfirmedRate:
    """A share of `searched` images with its 95 % interval; `rated` of `failing` were looked at."""

    value: float
    low: float
    high: float
    judge: float
    rated: int
    failing: int
    searched: int
    undecided: int

    def __str__(self) -> str:
        low = 100 * self.low
        high = 100 * self.high
        return (
            f"{100 * self.value:.1f} % of {self.searched} searched images "
            f"(95 % interval {low:.1f} % to {high:.1f} %), {self.rated} of {self.failing} rated"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def confirmed_rate(
    rated: Sequence[Rated],
    sizes: Mapping[str, int],
    judged: int,
    searched: int,
    *,
    before: tuple[int, int] = (0, 0),
) -> ConfirmedRate:
    """The people-confirmed rate of one run.

    Undecided images count as not confirmed. Variances inside strata are those of a simple random
    sample without replacement; a stratum in which people never contradict the judge gets the
    variance of one contradiction more (Agresti and Coull's device), not zero.
    """
    groups: dict[str, list[float]] = {}
    total = 0.0
    for one in rated:
        error = float(one.outcome == "confirmed") - float(one.judged)
        total += error / one.probability
        groups.setdefault(one.stratum, []).append(error)
    variance = 0.0
    for name, size in sizes.items():
        errors = groups.get(name, [])
        variance += _variance(errors, size)
    looked, known = before
    value = (judged + known + total) / searched if searched else float("nan")
    half = Z * variance**0.5 / searched if searched else float("nan")
    failing = sum(sizes.values()) + looked
    return ConfirmedRate(
        value=min(max(value, 0.0), failing / searched if searched else 1.0),
        low=max(0.0, value - half),
        high=min(failing / searched if searched else 1.0, value + half),
        judge=(judged + known) / searched if searched else float("nan"),
        rated=len(rated) + looked,
        failing=failing,
        searched=searched,
        undecided=sum(one.outcome == "undecided" for one in rated),
    )


def _variance(errors: Sequence[float], size: int) -> float:
    """Of the sum of errors of a whole stratum, estimated from a simple random sample of it."""
    count = len(errors)
    if count >= size:
        return 0.0
    if not count:
        return size**2 / 4
    wrong = sum(abs(error) for error in errors)
    share = (wrong + 1) / (count + 2)
    spread = share * (1 - share) * count / max(count - 1, 1)
    return size**2 / count * (1 - count / size) * spread


def outcome(answers: Sequence[str], expected: str) -> str:
    """What people say of one image: a strict majority of all answers, else ``undecided``.

    >>> outcome(["5", "5", "unsure"], "5"), outcome(["5", "3"], "5"), outcome(["3", "3"], "5")
    ('confirmed', 'undecided', 'rejected')
    """
    kept = sum(answer == expected for answer in answers)
    unsure = sum(answer == "unsure" for answer in answers)
    if 2 * kept > len(answers):
        return "confirmed"
    return "rejected" if 2 * (len(answers) - kept - unsure) > len(answers) else "undecided"
