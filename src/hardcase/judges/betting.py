"""A confidence sequence for a share of yes and no, drawn one by one with chosen probabilities.

Its interval holds at every moment at once with 95 %, so one may choose what to ask next by what was
seen, and stop when one likes. It is the betting construction of I. Waudby-Smith and A. Ramdas
("Estimating means of bounded random variables by betting", JRSS B 2024), for weighted sampling
without replacement and with predictions as control variates, of S. Shekhar, Z. Xu, Z. Lipton,
P. Liang and A. Ramdas ("Risk-limiting financial audits via weighted sampling without replacement",
UAI 2023); implemented from the texts. Differences: answers are yes or no, so only the shares k/N
are candidates; the bets aim at the distance that decides, and their variance is what the
predictions say of it, not what was seen.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

__all__ = ["BettingSequence", "answers_needed"]

LEVEL = 0.95
AIMS = (1.0, 2.0)
"""Distances at which bets aim, in units of the one that decides; the stake is shared by them."""
CAUTION = 0.95
"""Share of its wealth that a bet may lose at most."""
LEAST_VARIANCE = 1e-4
Array = np.ndarray


class BettingSequence:
    """The share of yes among `size` things, of which some were drawn without replacement.

    Args:
        size: How many there are.

    Example:
        >>> import numpy as np
        >>> seen = BettingSequence(4)
        >>> for left in (4, 3, 2, 1):
        ...     seen.enter(np.full(left, 1 / left), np.full(left, 0.5), 0, True, distance=0.05)
        >>> seen.low, seen.high
        (1.0, 1.0)
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.yes = self.no = 0
        self._shares = np.arange(size + 1) / max(size, 1)
        self._above = np.zeros((len(AIMS), size + 1))
        self._below = np.zeros((len(AIMS), size + 1))
        self._possible = np.ones(size + 1, dtype=bool)
        self._estimates: list[float] = []

    def enter(
        self,
        chances: Float[Array, " u"],
        predicted: Float[Array, " u"],
        drawn: int,
        answer: bool,
        *,
        distance: float,
    ) -> None:
        """Enter the answer about one thing.

        Args:
            chances: With which each of the things that were left was drawn.
            predicted: What was held to be its probability of yes before it was asked about.
            drawn: Which of them was drawn.
            answer: What was said of it.
            distance: How far from the truth a share should be told apart from it.
        """
        weight = 1 / (self.size * chances)
        base = self.yes / self.size + predicted.sum() / self.size
        estimate = base + weight[drawn] * (float(answer) - predicted[drawn])
        least = float((base - weight * predicted).min())
        most = float((base + weight * (1 - predicted)).max())
        variance = float((weight * predicted * (1 - predicted)).sum()) / self.size
        aims = distance * np.array(AIMS)[:, None]
        bets = aims / (max(variance, LEAST_VARIANCE) + aims**2)
        gain = estimate - self._shares
        # a bet must survive the worst that could have been drawn; beyond it a share needs no bet
        up = np.minimum(bets, CAUTION / np.maximum(self._shares - least, 1e-9))
        down = np.minimum(bets, CAUTION / np.maximum(most - self._shares, 1e-9))
        self._above += np.log1p(np.where(self._shares > least, up * gain, 0))
        self._below += np.log1p(np.where(self._shares < most, -down * gain, 0))
        self._estimates.append(float(estimate))
        self.yes += bool(answer)
        self.no += not answer
        count = np.arange(self.size + 1)
        self._possible &= self._wealth() < -math.log(1 - LEVEL)
        self._possible &= (count >= self.yes) & (count <= self.size - self.no)

    def _wealth(self) -> Float[Array, " k"]:
        """Logarithm of what the bets against every share have brought."""
        both = np.concatenate([self._above, self._below])
        wealth: Array = np.logaddexp.reduce(both, 0) - math.log(len(both))
        return wealth

    def wealth_at(self, share: float) -> float:
        """Logarithm of what the bets against about this share have brought."""
        place = min(max(round(share * self.size), 0), self.size)
        return float(self._wealth()[place])

    @property
    def answers(self) -> int:
        """How many were asked about."""
        return self.yes + self.no

    @property
    def estimate(self) -> float:
        """The mean of the predictions plus the weighted residuals, unbiased after any fixed number
        of answers; NaN before the first. Later answers, which leave less open, weigh more.
        """
        if not self._estimates:
            return math.nan
        left = self.size - np.arange(len(self._estimates))
        return float(np.average(self._estimates, weights=left**-2.0))

    @property
    def low(self) -> float:
        """The lower end of the interval; NaN if no share is possible any more."""
        return self._end(0)

    @property
    def high(self) -> float:
        """The upper end."""
        return self._end(-1)

    def _end(self, place: int) -> float:
        left = self._possible.nonzero()[0]
        if not len(left):
            return math.nan
        return float(self._shares[left[place]])


def answers_needed(
    size: int, variance: float, distance: float, *, so_far: int = 0, reached: float = 0.0
) -> int:
    """About how many answers more separate shares that are `distance` away; `size` at most.

    Args:
        size: How many things there are.
        variance: Of one estimate while all are left; it falls with the square of what is left.
        distance: How far the shares are away.
        so_far: Answers that there are.
        reached: Growth of the wealth, as a logarithm, that these have brought.

    Example:
        >>> answers_needed(300, 0.12, 0.05)
        167
    """
    wanted = math.log(2 / (1 - LEVEL)) - reached
    grown = 0.0
    for more in range(size - so_far):
        if grown >= wanted:
            return more
        left = (size - so_far - more) / size
        grown += distance**2 / (2 * (variance * left**2 + distance**2))
    return size - so_far
