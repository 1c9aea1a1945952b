"""Which finding a person is asked about next, what the answers come to, and when they suffice.

One finding stands for each failing image. Questions are drawn at random, without replacement,
unless they are chosen by doubt, with known chances; the chances are stored before a question is
asked. What the judge said beforehand is fixed and serves as control variate: the estimate is its
mean plus the weighted residual, unbiased however wrong the judge is. The interval is that of
`BettingSequence`, which holds although one stops by what was seen. The same chooser serves the
terminal and the server of studies, so nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

LEVEL = 0.95
AIMS = (1.0, 2.0)
"""Distances at which bets aim, in units of the one that decides; the stake is shared by them."""
CAUTION = 0.95
"""Share of its wealth that a bet may lose at most."""
LEAST_VARIANCE = 1e-4
Array = np.ndarray


class BettingSequence:
    """A confidence sequence for the share of yes among `size` things, drawn one by one without
    replacement and with chosen probabilities; it holds at every moment at once with 95 %.

    The betting construction of I. Waudby-Smith and A. Ramdas ("Estimating means of bounded random
    variables by betting", JRSS B 2024), for weighted sampling and with predictions as control
    variates, of S. Shekhar, Z. Xu, Z. Lipton, P. Liang and A. Ramdas ("Risk-limiting financial
    audits via weighted sampling without replacement", UAI 2023); implemented from the texts.
    Differences: answers are yes or no, so only the shares k/N are candidates; the bets aim at the
    distance that decides, and their variance is what the predictions say of it.
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
        """Enter the answer about one thing."""
        weight = 1 / (self.size * chances)
        # What is known of the whole: answers so far, and predictions for what is left. The drawn
        # thing then corrects its own prediction, weighted by one over its chance: unbiased whatever
        # the label check predicted, and with less variance the better it predicts.
        base = self.yes / self.size + predicted.sum() / self.size
        estimate = base + weight[drawn] * (float(answer) - predicted[drawn])
        least = float((base - weight * predicted).min())
        most = float((base + weight * (1 - predicted)).max())
        # Kelly's bet for an edge of `aim`: gain over variance. The variance is what the predictions
        # say of it; if they lie, bets are badly sized, and the interval still holds.
        variance = float((weight * predicted * (1 - predicted)).sum()) / self.size
        aims = distance * np.array(AIMS)[:, None]
        bets = aims / (max(variance, LEAST_VARIANCE) + aims**2)
        gain = estimate - self._shares
        # a bet must survive the worst that could have been drawn; beyond it a share needs no bet
        up = np.minimum(bets, CAUTION / np.maximum(self._shares - least, 1e-9))
        down = np.minimum(bets, CAUTION / np.maximum(most - self._shares, 1e-9))
        # Wealth of a gambler who bets that the true share lies above (or below) each candidate
        # share. For the true one it is a martingale, so it passes 1 / 5 % at any time with a chance
        # of at most 5 % (Ville): a share against which so much was won is excluded for good.
        self._above += np.log1p(np.where(self._shares > least, up * gain, 0))
        self._below += np.log1p(np.where(self._shares < most, -down * gain, 0))
        self._estimates.append(float(estimate))
        self.yes += bool(answer)
        self.no += not answer
        count = np.arange(self.size + 1)
        self._possible &= self._wealth() < -math.log(1 - LEVEL)
        # Without replacement the answers themselves exclude shares: at least so many yes, so many
        # no.
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
    """About how many answers more separate shares that are `distance` away; `size` at most."""
    wanted = math.log(2 / (1 - LEVEL)) - reached
    grown = 0.0
    for more in range(size - so_far):
        if grown >= wanted:
            return more
        left = (size - so_far - more) / size
        grown += distance**2 / (2 * (variance * left**2 + distance**2))
    return size - so_far


PRECISE = 0.05
"""Without a limit, the decision is the confirmed rate to this many hundredths, up and down."""
UNIFORM = 0.5
"""Where questions are chosen by doubt, the share of the chances that is alike for all."""
NEAREST_AIM = 0.02
FARTHEST_AIM = 0.5
"""Bets about a limit aim at the distance from it, within these."""
Choice = Literal["random", "doubt"]
"""How questions are chosen. By doubt took as many answers as at random on rated digits of five
generators, each judged by thresholds fitted to the others: 146 against 146 for a rate to ± 5 points
in runs of 400 (``hardcase reproduce asking-digits``).
"""


@dataclass(frozen=True, slots=True)
class FindingPopulation:
    """What is asked about: for each failing image the failure that stands for it.

    Args:
        ids: The failures.
        p_kept: What the judge said of each before anybody was asked; it stays as it is.
        attempted: Images that were searched.
        known: Images of which it is known without a question that a failure keeps its label.
    """

    ids: tuple[str, ...]
    p_kept: Float[Array, " n"]
    attempted: int
    known: int = 0

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Draw:
    """One question, as it is stored before it is asked."""

    number: int
    row: int
    probability: float
    predicted: float
    knew: int
    rule: str


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """What the answers come to."""

    value: float | None
    low: float
    high: float
    answers: int
    decision: str
    limit: float | None
    more: int

    @property
    def decided(self) -> bool:
        """Whether no more answers are needed."""
        return self.decision != "open"

    @property
    def progress(self) -> float:
        """How far the decision is: answers given, of these and those that are still needed."""
        if self.decided:
            return 1.0
        return self.answers / max(self.answers + self.more, 1)


@dataclass(frozen=True, slots=True)
class _Urn:
    """The failures that are left at one moment, and the chances with which one of them is drawn."""

    left: Int[Array, " u"]
    chances: Float[Array, " u"]
    predicted: Float[Array, " u"]


@dataclass
class RatingSession:
    """A session of questions about one run.

    Args:
        population: What is asked about.
        budget: Questions at most.
        limit: The share of confirmed failures that is to be decided; None: the rate itself.
        seed: Of the drawing.
        draws: Questions that were drawn before.
        answers: Whether the label was seen, by the number of the question.
        choose: How questions are chosen.
    """

    population: FindingPopulation
    budget: int
    limit: float | None = None
    seed: int = 0
    draws: list[Draw] = field(default_factory=list)
    answers: dict[int, bool] = field(default_factory=dict)
    choose: Choice = "random"

    def __post_init__(self) -> None:
        self._sequence = BettingSequence(len(self.population))
        self._urns: list[_Urn] = []
        self._aim = max(self._distance(), self._within_budget())
        drawn, self.draws = self.draws, []
        for each in drawn:  # what was stored before, from the beginning
            self._advance(each.knew)
            self._urns.append(self._urn())
            self.draws.append(each)
        self._advance(len(self.draws))

    def has_next(self) -> bool:
        """Whether there is another question: budget, images, and no decision yet."""
        left = len(self.draws) < min(self.budget, len(self.population))
        return left and not self.status().decided

    def draw(self) -> Draw | None:
        """Choose the next question; None where the decision is made or nothing is left to ask."""
        if not self.has_next():
            return None
        number = len(self.draws)
        urn = self._urn()
        place = int(np.random.default_rng((self.seed, number)).choice(len(urn.left), p=urn.chances))
        found = Draw(
            number,
            int(urn.left[place]),
            float(urn.chances[place]),
            float(urn.predicted[place]),
            self._sequence.answers,
            RULES[self.choose],
        )
        self._urns.append(urn)
        self.draws.append(found)
        return found

    def doubt(self) -> float:
        """How much doubt, from 0 to 1, the next question is expected to be about."""
        urn = self._urn()
        return float((urn.chances * 4 * urn.predicted * (1 - urn.predicted)).sum())

    def answer(self, number: int, kept: bool) -> None:
        """Enter whether a person sees the label of the original in the image of draw `number`."""
        self.answers[number] = kept
        self._advance(len(self.draws))

    def status(self) -> SessionStatus:
        """What the answers come to; those count whose earlier ones are all there."""
        population = self.population
        found = self._sequence
        scale = len(population) / max(population.attempted, 1)
        known = population.known / max(population.attempted, 1)
        ends = (found.high, found.low)
        if len(population) and math.isnan(found.low):  # no share is possible any more
            ends = (1.0, 0.0)
        high, low = (known + scale * end for end in ends)
        value = None
        if found.answers:
            value = min(max(known + scale * found.estimate, low), high)
        decision = "open"
        if self.limit is None and high - low <= 2 * PRECISE + 1e-9:
            decision = "precise"
        elif self.limit is not None and high <= self.limit + 1e-9:
            decision = "within the limit"
        elif self.limit is not None and low > self.limit + 1e-9:
            decision = "above the limit"
        more = 0 if decision != "open" else self._needed()
        return SessionStatus(value, low, high, found.answers, decision, self.limit, more)

    def _advance(self, to: int) -> None:
        """Let the sequence see answers in the order of their draws, up to the first missing one."""
        while self._sequence.answers < to and self._sequence.answers in self.answers:
            number = self._sequence.answers
            urn = self._urns[number]
            place = int((urn.left == self.draws[number].row).argmax())
            self._sequence.enter(
                urn.chances, urn.predicted, place, self.answers[number], distance=self._aim
            )

    def _urn(self) -> _Urn:
        """Return who is left, and with which chances each is drawn."""
        drawn = [each.row for each in self.draws]
        left = np.setdiff1d(np.arange(len(self.population)), drawn)
        predicted = self.population.p_kept[left]
        chances = np.full(len(left), 1 / max(len(left), 1))
        if self.choose == "doubt":
            # of the few that are left none may be rare, or bets must be small
            alike = UNIFORM + (1 - UNIFORM) * len(drawn) / len(self.population)
            doubt = np.sqrt(predicted * (1 - predicted)) + 1e-12
            chances = alike * chances + (1 - alike) * doubt / doubt.sum()
        return _Urn(left, chances / chances.sum(), predicted)

    def _within_budget(self) -> float:
        """The least distance that the budget separates; bets that aim nearer win nothing."""
        aims = np.geomspace(NEAREST_AIM, FARTHEST_AIM, 20).tolist()
        size = len(self.population)
        return next(
            (a for a in aims if answers_needed(size, self._variance(), a) <= self.budget),
            FARTHEST_AIM,
        )

    def _variance(self) -> float:
        """Variance of an answer around what the judge said, if its probabilities are right."""
        predicted = self.population.p_kept
        if not len(predicted):
            return 0.0
        spread = np.sqrt(predicted * (1 - predicted))
        if self.choose == "doubt":
            return float(spread.mean()) ** 2
        return float(np.square(spread).mean())

    def _distance(self) -> float:
        """How far, among the failures, a share must be told apart for the decision."""
        population = self.population
        if not len(population):
            return PRECISE
        scale = population.attempted / len(population)
        if self.limit is None:
            return PRECISE * scale
        limit = self.limit * scale - population.known / len(population)
        expected = float(population.p_kept.mean())
        return float(np.clip(abs(expected - limit), NEAREST_AIM, FARTHEST_AIM))

    def _needed(self) -> int:
        """About how many answers more decide, if the judge's probabilities are right."""
        population = self.population
        if not len(population):
            return 0
        distance = self._distance()
        middle = float(population.p_kept.mean())
        sides = [middle - distance, middle + distance]
        if self.limit is not None:
            limit = (self.limit * population.attempted - population.known) / len(population)
            sides = [limit]
        found = self._sequence
        reached = min((found.wealth_at(side) for side in sides if 0 <= side <= 1), default=0.0)
        return answers_needed(
            len(population),
            self._variance(),
            distance,
            so_far=found.answers,
            reached=max(reached, 0.0),
        )


RULES = {
    "random": "at random, without replacement",
    "doubt": f"{100 * UNIFORM:.0f} % of the chance alike for all, the rest by doubt",
}
"""How a question was drawn, in words that are stored with it."""


def most_in_doubt(sessions: Sequence[RatingSession]) -> int | None:
    """Choose, of several runs that share a budget, the one whose next question is most in doubt;
    None where no one has a question left.
    """
    open_ones = [i for i, one in enumerate(sessions) if one.has_next()]
    return max(open_ones, key=lambda i: sessions[i].doubt(), default=None)


def one_per_image(
    seeds: Sequence[str], probability: Float[Array, " m"], asked: Bool[Array, " m"]
) -> list[int]:
    """Choose the row of the failure that stands for each image: the one that most likely keeps its
    label; none of images with a failure that people were asked about.
    """
    over = {seed for seed, done in zip(seeds, asked.tolist()) if done}
    best: dict[str, int] = {}
    for row, seed in enumerate(seeds):
        if seed in over:
            continue
        if seed not in best or probability[row] > probability[best[seed]]:
            best[seed] = row
    return sorted(best.values())
