"""A judge's rule fitted to one run: by the run's own signals, and by what people said of it.

A rule was fitted to images of other generators, of which a certain share had kept their label. In a
run of a new generator that share is another one. It is estimated without labels: the run's
log-odds are a mixture of those of kept and of lost images, whose ratio the rule states (M. Saerens,
P. Latinne, C. Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities",
Neural Computation 2002), held by as much as `HELD` images of the old share. Yes and no are then
said where the run's own probabilities promise enough right answers; the doubt about the share is
part of them. Answers of people shift and stretch the log-odds, and stay near what the run itself
said as long as they are few. It imports no torch: the server of a study asks by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit, logit

HELD = 50.0
"""How many images' worth the share of other generators counts for."""
FEWEST = 20
"""A run of fewer images keeps the judge's own thresholds."""
RIGHT_YES = 0.93
RIGHT_NO = 0.7
"""Yes and no are said where so many of the answers are expected to be right. Chosen, with `HELD`,
on 500 rated digits of five generators, each left out in turn (``hardcase reproduce asking``).
"""
SHIFT = 1.0
STRETCH = 0.25
"""Standard deviations of what answers of people may do to the log-odds before any was given."""
RESAMPLED = 40
LIMIT = 1e-4
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Mixture:
    """The share of images with the answer yes, estimated without labels."""

    share: float
    low: float
    high: float
    presumed: float
    draws: tuple[float, ...] = ()

    def shift(self, share: float) -> float:
        """What the log-odds of an image gain where `share`, not `presumed`, say yes."""
        return float(logit(share) - logit(self.presumed))


def mixture_of(odds: Float[Array, " m"], presumed: float) -> Mixture:
    """Estimate the share of yes among images from their log-odds alone."""
    count = len(odds)
    rng = np.random.default_rng(0)
    weights = np.concatenate(
        [np.ones((1, count)), count * rng.dirichlet(np.ones(count), RESAMPLED)]
    )
    # what the share was elsewhere is itself known from so many images only
    prior = np.append(presumed, rng.beta(HELD * presumed, HELD * (1 - presumed), RESAMPLED))
    shares = np.full(len(weights), presumed)
    for _ in range(100):
        shifted = odds + (logit(shares) - logit(presumed))[:, None]
        yes = (weights * expit(shifted)).sum(1)
        shares = np.clip((yes + HELD * prior) / (count + HELD), 0.01, 0.99)
    low, high = np.quantile(shares[1:], (0.025, 0.975))
    return Mixture(float(shares[0]), float(low), float(high), presumed, tuple(shares[1:].tolist()))


@dataclass(frozen=True, slots=True)
class OwnRule:
    """A judge's rule as one run has it: new log-odds are ``shift + stretch * odds``."""

    mixture: Mixture
    shift: float
    stretch: float
    low: float
    high: float
    answers: int = 0
    reused: int = 0

    def probability(self, odds: Float[Array, " m"]) -> Float[Array, " m"]:
        """Return the probabilities of yes."""
        found: Array = expit(self.shift + self.stretch * odds)
        return found

    def said(self, probability: Float[Array, " m"]) -> list[bool | None]:
        """Answer yes from `high` on, no below `low`, otherwise undecided."""
        return [
            bool(one >= self.high) or (None, False)[bool(one < self.low)] for one in probability
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for run.json."""
        return {
            "share": self.mixture.share,
            "share_low": self.mixture.low,
            "share_high": self.mixture.high,
            "presumed": self.mixture.presumed,
            **{name: getattr(self, name) for name in ("shift", "stretch", "low", "high")},
            **{name: getattr(self, name) for name in ("answers", "reused")},
        }


def own_rule(
    odds: Float[Array, " m"],
    presumed: float,
    *,
    asked: Sequence[int] = (),
    answers: Sequence[bool] = (),
    earlier: Sequence[tuple[float, bool]] = (),
    mixture: Mixture | None = None,
) -> OwnRule:
    """Fit a rule to one run."""
    mixture = mixture or mixture_of(odds, presumed)
    known = np.array([*odds[list(asked)], *(value for value, _ in earlier)])
    said = np.array([*answers, *(answer for _, answer in earlier)], dtype=float)
    centre = float(odds.mean())
    start = mixture.shift(mixture.share)
    extra, stretch = _fitted(known - centre, start + known, said)
    shift = start + extra - stretch * centre
    rest = np.ones(len(odds), dtype=bool)
    rest[list(asked)] = False
    shifts = np.array([mixture.shift(share) for share in mixture.draws]) + extra - stretch * centre
    refused = len(answers) - sum(answers)
    low, high = _thresholds(odds[rest], shifts, shift, 1 + stretch, refused)
    return OwnRule(mixture, shift, 1 + stretch, low, high, len(asked), len(earlier))


def _fitted(
    centred: Float[Array, " n"], odds: Float[Array, " n"], said: Float[Array, " n"]
) -> tuple[float, float]:
    """Shift and stretch of log-odds towards answers: Newton's steps to their most probable values
    under normal priors around none.
    """
    design = np.stack([np.ones_like(centred), centred], 1)
    precision = np.diag([SHIFT**-2, STRETCH**-2])
    found = np.zeros(2)
    for _ in range(20):
        p = expit(odds + design @ found)
        slope = design.T @ (said - p) - precision @ found
        bend = (design * np.maximum(p * (1 - p), LIMIT)[:, None]).T @ design + precision
        found = found + np.linalg.solve(bend, slope)
        found[1] = max(found[1], -0.9)  # an order is never turned round
    return float(found[0]), float(found[1])


def _thresholds(
    odds: Float[Array, " m"],
    shifts: Float[Array, " d"],
    shift: float,
    stretch: float,
    refused: int,
) -> tuple[float, float]:
    """From which probability on, and below which, enough answers are expected to be right.

    Expected over the doubt about the share of yes; where the two overlap they meet at one half.
    What people `refused` is among what is refused in all, so after questions about the most
    doubtful images less is left undecided; what the judge confirms must be right by itself.
    """
    if not len(odds):
        return 0.5, 0.5
    order = np.sort(odds)[::-1]
    likely = expit(shifts[:, None] + stretch * order).mean(0)
    own = expit(shift + stretch * order)
    count = np.arange(1, len(order) + 1)
    high = _last(likely.cumsum() / count >= RIGHT_YES)
    low = _last(((1 - likely)[::-1].cumsum() + refused) / (count + refused) >= RIGHT_NO)
    if high + low > len(order):
        return 0.5, 0.5
    yes = float(own[high - 1]) if high else 1.0
    no = float(own[len(order) - low - 1]) if low < len(order) else 1.0
    return (min(no, yes) if low else 0.0), yes


def _last(good: Bool[Array, " m"]) -> int:
    """How many images, the best first, there are up to the last good place."""
    found = good.nonzero()[0]
    return int(found[-1]) + 1 if len(found) else 0
