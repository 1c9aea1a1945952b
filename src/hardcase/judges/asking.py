"""Which finding a person is asked about next, what the answers come to, and when they suffice.

One finding stands for each failing seed. Every question is drawn with known chances, which follow
from the answers before it and are stored before it is asked: partly alike for all, partly by how
much doubt there is (and so by how much an answer can move the decision), less for what looks like
images that were asked about. The estimate is the judge's mean plus the weighted residual; the
interval is that of `BettingSequence`, which holds although one chooses, and stops, by what was
seen. The same chooser serves the terminal and the server of studies, so nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from hardcase.judges.own_run import Mixture, OwnRule, mixture_of, own_rule

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
UNIFORM = 0.2
FOR_RATE = (0.5, 0.5)
FOR_VERDICTS = (UNIFORM, 32.0)
"""Share of the chances that is alike for all (never less than `UNIFORM`), and the power of the
doubt that the rest follows: for a decision within reach of the budget, and for verdicts where it is
not. Chosen on simulated crowds and on rated digits (``hardcase reproduce asking``).
"""
NEAREST_AIM = 0.02
FARTHEST_AIM = 0.5
"""Bets about a limit aim at the distance from it, within these."""
ALIKE = 0.8
"""An image just like one that was asked about has this much of its chance left."""


@dataclass(frozen=True, slots=True)
class FindingPopulation:
    """What is asked about: for each failing seed the finding that stands for it."""

    ids: tuple[str, ...]
    odds: Float[Array, " n"]
    presumed: float
    attempted: int
    known: int = 0
    looks: Float[Array, "n f"] | None = None
    earlier: tuple[tuple[float, bool], ...] = ()

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
class AskingStanding:
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
class _Look:
    """The findings that are left at one moment, and the chances with which one of them is drawn."""

    left: Int[Array, " u"]
    chances: Float[Array, " u"]
    predicted: Float[Array, " u"]
    distance: float
    rule: str


@dataclass
class Asking:
    """A session of questions about one run."""

    population: FindingPopulation
    budget: int
    limit: float | None = None
    seed: int = 0
    draws: list[Draw] = field(default_factory=list)
    answers: dict[int, bool] = field(default_factory=dict)
    runs: int = 1

    def __post_init__(self) -> None:
        people = self.population
        self._mixture: Mixture = mixture_of(people.odds, people.presumed)
        self._sequence = BettingSequence(len(people))
        self._looks: list[_Look] = []
        self._rules: dict[int, OwnRule] = {}
        self._aim = self._within_budget()
        drawn, self.draws = self.draws, []
        for each in drawn:  # what was stored before, from the beginning
            self._advance(each.knew)
            self._looks.append(self._look(each.knew))
            self.draws.append(each)
        self._advance(len(self.draws))

    @property
    def rule(self) -> OwnRule:
        """The judge's rule by all answers so far."""
        return self._fitted(self.draws)

    def has_next(self) -> bool:
        """Whether there is another question: budget, images, and no decision yet."""
        left = len(self.draws) < min(self.budget, len(self.population))
        return left and not self.standing().decided

    def draw(self) -> Draw | None:
        """Choose the next question; None where the decision is made or nothing is left to ask."""
        if not self.has_next():
            return None
        number = len(self.draws)
        look = self._look(self._sequence.answers)
        place = int(
            np.random.default_rng((self.seed, number)).choice(len(look.left), p=look.chances)
        )
        found = Draw(
            number,
            int(look.left[place]),
            float(look.chances[place]),
            float(look.predicted[place]),
            self._sequence.answers,
            look.rule,
        )
        self._looks.append(look)
        self.draws.append(found)
        return found

    def doubt(self) -> float:
        """How much doubt, from 0 to 1, the next question is expected to be about."""
        look = self._look(self._sequence.answers)
        return float((look.chances * 4 * look.predicted * (1 - look.predicted)).sum())

    def answer(self, number: int, kept: bool) -> None:
        """Enter whether a person sees the label of the seed in the image of draw `number`."""
        self.answers[number] = kept
        self._advance(len(self.draws))

    def standing(self) -> AskingStanding:
        """What the answers come to; those count whose earlier ones are all there."""
        people = self.population
        seen = self._sequence
        scale = len(people) / max(people.attempted, 1)
        known = people.known / max(people.attempted, 1)
        ends = (1.0, 0.0) if len(people) and seen.low != seen.low else (seen.high, seen.low)
        high, low = (known + scale * end for end in ends)
        value = None
        if seen.answers:
            value = min(max(known + scale * seen.estimate, low), high)
        decision = "open"
        if self.limit is None and high - low <= 2 * PRECISE + 1e-9:
            decision = "precise"
        elif self.limit is not None and high <= self.limit + 1e-9:
            decision = "within the limit"
        elif self.limit is not None and low > self.limit + 1e-9:
            decision = "above the limit"
        more = 0 if decision != "open" else self._needed(self._rule(seen.answers))
        return AskingStanding(value, low, high, seen.answers, decision, self.limit, more)

    def _advance(self, to: int) -> None:
        """Let the sequence see answers in the order of their draws, up to the first missing one."""
        while self._sequence.answers < to and self._sequence.answers in self.answers:
            number = self._sequence.answers
            look = self._looks[number]
            place = int((look.left == self.draws[number].row).argmax())
            said = self.answers[number]
            self._sequence.enter(look.chances, look.predicted, place, said, distance=look.distance)

    def _rule(self, knew: int) -> OwnRule:
        """The judge's rule by the first answers."""
        if knew not in self._rules:
            self._rules[knew] = self._fitted(self.draws[:knew])
        return self._rules[knew]

    def _fitted(self, draws: Sequence[Draw]) -> OwnRule:
        people = self.population
        given = [each for each in draws if each.number in self.answers]
        return own_rule(
            people.odds,
            people.presumed,
            asked=[each.row for each in given],
            answers=[self.answers[each.number] for each in given],
            earlier=people.earlier,
            mixture=self._mixture,
        )

    def _look(self, knew: int) -> _Look:
        """Who is left, and with which chances each is drawn by what the first answers said."""
        people = self.population
        rule = self._rule(knew)
        asked = [each.row for each in self.draws]
        left = np.setdiff1d(np.arange(len(people)), asked)
        predicted = rule.probability(people.odds[left])
        reachable = self._needed(rule) <= self.budget // self.runs - knew
        uniform, power = FOR_RATE if reachable else FOR_VERDICTS
        words = f"at least {100 * uniform:.0f} % alike for all, the rest by doubt^{power:g}"
        if reachable:  # of the few that are left none may be rare, or bets must be small
            uniform += (1 - uniform) * len(asked) / len(people)
        weight = (4 * predicted * (1 - predicted)) ** power * self._unlike(left, asked) + 1e-12
        chances = uniform / len(left) + (1 - uniform) * weight / weight.sum()
        aim = max(self._distance(rule), self._aim)
        return _Look(left, chances / chances.sum(), predicted, aim, f"{words} and unlikeness")

    def _within_budget(self) -> float:
        """The least distance that the budget separates; bets that aim nearer win nothing."""
        people = self.population
        predicted = self._rule(0).probability(people.odds)
        variance = float((predicted * (1 - predicted)).mean()) if len(people) else 0.0
        budget = self.budget // self.runs
        aims = np.geomspace(NEAREST_AIM, FARTHEST_AIM, 20).tolist()
        return next(
            (aim for aim in aims if answers_needed(len(people), variance, aim) <= budget),
            FARTHEST_AIM,
        )

    def _unlike(self, left: Int[Array, " u"], asked: Sequence[int]) -> Float[Array, " u"]:
        """How unlike the images that were asked about each other one is, from `ALIKE` to 1."""
        looks = self.population.looks
        if looks is None or not asked:
            return np.ones(len(left))
        gaps = np.linalg.norm(looks[left][:, None] - looks[list(asked)][None], axis=2).min(1)
        usual = max(float(np.median(gaps)), 1e-9)
        unlike: Array = np.clip(gaps / usual, ALIKE, 1)
        return unlike

    def _distance(self, rule: OwnRule) -> float:
        """How far, among the findings, a share must be told apart for the decision."""
        people = self.population
        scale = people.attempted / len(people)
        if self.limit is None:
            return PRECISE * scale
        limit = self.limit * scale - people.known / len(people)
        expected = float(rule.probability(people.odds).mean())
        return float(np.clip(abs(expected - limit), NEAREST_AIM, FARTHEST_AIM))

    def _needed(self, rule: OwnRule) -> int:
        """About how many answers more decide, if the judge's probabilities are right."""
        people = self.population
        if not len(people):
            return 0
        predicted = rule.probability(people.odds)
        distance = self._distance(rule)
        seen = self._sequence
        middle = float(predicted.mean())
        sides = [middle - distance, middle + distance]
        if self.limit is not None:
            limit = (self.limit * people.attempted - people.known) / len(people)
            sides = [limit]
        reached = min((seen.wealth_at(side) for side in sides if 0 <= side <= 1), default=0.0)
        variance = float(np.sqrt(predicted * (1 - predicted)).mean()) ** 2
        so_far = seen.answers
        return answers_needed(
            len(people), variance, distance, so_far=so_far, reached=max(reached, 0.0)
        )


def most_in_doubt(sessions: Sequence[Asking]) -> int | None:
    """Choose, of several runs that share a budget, the one whose next question is most in doubt;
    None where no one has a question left.
    """
    open_ones = [i for i, one in enumerate(sessions) if one.has_next()]
    return max(open_ones, key=lambda i: sessions[i].doubt(), default=None)


def stands_for(
    seeds: Sequence[str], probability: Float[Array, " m"], asked: Bool[Array, " m"]
) -> list[int]:
    """Choose the row of the finding that stands for each seed: the one that most likely keeps its
    label; none of seeds with a finding that people were asked about.
    """
    over = {seed for seed, done in zip(seeds, asked.tolist()) if done}
    best: dict[str, int] = {}
    for row, seed in enumerate(seeds):
        if seed in over:
            continue
        if seed not in best or probability[row] > probability[best[seed]]:
            best[seed] = row
    return sorted(best.values())
