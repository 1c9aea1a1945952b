"""From signals to a probability, and from a probability to a verdict by two fixed thresholds.

A judge reads images into `Signals`. A `DecisionRule` weighs them into the probability that the
label is kept, another into the probability that an image belongs to the domain at all. Their
weights come from an exam of synthetic images (`rules_from_exam`); scale and thresholds come from
images that people rated, stand in the judge's card, and follow from nothing in a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.special import expit
from torch import Tensor

from hardcase.judges.training_data import Exam
from hardcase.statistics import Rate

PRECISION = 0.98
"""The threshold of kept is where this share of the images above keep the label, that of lost where
this share of the images below have lost it.
"""
FITTED_PRECISION = 0.99
"""Precision required on the images that a threshold is fitted to: a threshold flatters those."""
SETTLED = round(1 / (1 - FITTED_PRECISION))
"""Images among which a single error is allowed; a share of fewer images is too uncertain."""
DIGITS = 4
"""Probabilities are rounded to so many decimals before they are compared and stored."""
FOREIGN = 0.01
"""Share of the images with a class that may be judged outside the domain."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What a judge reads from images, a value per image; higher is better.

    Args:
        seen: The class that the judge itself would answer.
        classifiers: Mean log-probability of the label over its networks.
        neighbours: Log ratio of the distances to training images of other classes and of the label.
        something: Mean log-odds that the image shows any class.
        nearness: How near the nearest training images are, against held-out ones (logarithm).
        likeness: Likelihood under a model of real images, against those as complex.
        contrast: Range of shades in use, against what the eye needs (logarithm, at most 0).

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> signals = hc.judges.Signals(torch.tensor([0, 1]), *torch.arange(12.0).reshape(6, 2))
        >>> signals.of(("classifiers", "contrast")).tolist()
        [[0.0, 10.0], [1.0, 11.0]]
    """

    seen: Int[Tensor, " m"]
    classifiers: Float[Tensor, " m"]
    neighbours: Float[Tensor, " m"]
    something: Float[Tensor, " m"]
    nearness: Float[Tensor, " m"]
    likeness: Float[Tensor, " m"]
    contrast: Float[Tensor, " m"]

    def of(self, names: Sequence[str]) -> Float[Tensor, "m s"]:
        """Stack the named signals as columns."""
        return torch.stack([getattr(self, name) for name in names], 1)

    def __getitem__(self, rows: Tensor | slice) -> Signals:
        return Signals(**{f.name: getattr(self, f.name)[rows] for f in fields(Signals)})

    @staticmethod
    def average(trainings: Sequence[Signals]) -> Signals:
        """Return the mean over trainings, and the class that most of them see."""
        values = {
            f.name: torch.stack([getattr(each, f.name) for each in trainings])
            for f in fields(Signals)
        }
        majority = values.pop("seen").mode(0).values
        return Signals(seen=majority, **{name: each.mean(0) for name, each in values.items()})

    @staticmethod
    def join(parts: Sequence[Signals]) -> Signals:
        """Concatenate the signals of batches."""
        names = [f.name for f in fields(Signals)]
        return Signals(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """A weighted sum of signals, scaled and shifted to agree with people, and two thresholds.

    `weights` and `bias` come from real and synthetic images, `scale` and `offset` (and the
    thresholds) from people. All of them are constants of a judge.

    Args:
        signals: Names of the signals.
        weights: Weight of each signal.
        bias: Added to the weighted sum.
        scale: Fitted to people.
        offset: Fitted to people.
        low: Below this probability the answer is no.
        high: From this probability on the answer is yes.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> rule = hc.judges.DecisionRule(
        ...     signals=("nearness",), weights=(1.0,), bias=0.0, low=0.4, high=0.9
        ... )
        >>> rule.answers(torch.tensor([0.2, 0.6, 0.95])).tolist()
        [-1, 0, 1]
    """

    signals: tuple[str, ...]
    weights: tuple[float, ...]
    bias: float
    scale: float = 1.0
    offset: float = 0.0
    low: float = 0.5
    high: float = 0.5

    def evidence(self, signals: Signals) -> Float[Tensor, " m"]:
        """Return the log-odds before calibration by people."""
        values = signals.of(self.signals).double()
        return values @ values.new_tensor(self.weights) + self.bias

    def probability(self, signals: Signals) -> Float[Tensor, " m"]:
        """Return the calibrated probability of yes, rounded as it is stored."""
        return torch.sigmoid(self.scale * self.evidence(signals) + self.offset).round(
            decimals=DIGITS
        )

    def answers(self, probability: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """Return 1 from `high` on, -1 below `low`, 0 between."""
        return (probability >= self.high).long() - (probability < self.low).long()


def verdict_words(
    rules: Mapping[str, DecisionRule], trainings: Sequence[Signals]
) -> tuple[list[str], Float[Tensor, " m"]]:
    """Return a verdict and the probability of a kept label for each image.

    Both follow from the mean over the trainings: another three trainings change fewer verdicts of
    a mean than of what all of them say (4 % against 8 % of 500 rated digits). An image is
    unsure if the trainings disagree between kept and lost, or if the networks disagree about its
    class (`seen` of -1).
    """
    label = rules["label_kept"]
    each = [label.probability(signals) for signals in trainings]
    chances = torch.stack(each).mean(0).round(decimals=DIGITS)
    answers = torch.stack([label.answers(training) for training in each])
    flipped = (answers > 0).any(0) & (answers < 0).any(0)
    mean = Signals.average(trainings)
    answer = label.answers(chances).masked_fill(flipped | (mean.seen < 0), 0)
    words = [("unsure", "kept", "lost")[number] for number in answer.tolist()]
    foreign = (rules["domain"].answers(rules["domain"].probability(mean)) < 0).tolist()
    words = ["foreign" if outside else word for outside, word in zip(foreign, words)]
    return words, chances


def rules_from_card(card: Mapping[str, Any]) -> dict[str, DecisionRule]:
    """Return the rules of a judge's card, before calibration by people."""
    return {
        name: DecisionRule(
            **{**rule, "signals": tuple(rule["signals"]), "weights": tuple(rule["weights"])}
        )
        for name, rule in card["rules"].items()
    }


def rules_from_exam(
    signals: Signals,
    exam: Exam,
    votes: Mapping[str, Mapping[str, float]],
) -> dict[str, DecisionRule]:
    """Return the rule of each question that separates the exam's images, with thresholds from the
    exam's images.
    """
    rules = {}
    for name, weights in votes.items():
        truth: Tensor = getattr(exam, name)
        answered = truth >= 0
        rule = rule_from_votes(weights, signals[answered], truth[answered] > 0)
        rules[name] = with_thresholds(rule, signals[answered], truth[answered] > 0)
    rules["domain"] = domain_threshold(rules["domain"], signals, exam.domain > 0)
    return rules


def domain_threshold(
    rule: DecisionRule, signals: Signals, inside: Bool[Tensor, " m"]
) -> DecisionRule:
    """Refuse what belongs to the domain less than all but `FOREIGN` of the images `inside`."""
    if not bool(inside.any()):
        return replace(rule, low=0.0)
    probability = rule.probability(signals[inside])
    return replace(rule, low=float(probability.quantile(FOREIGN)), high=1.0)


def rule_from_votes(
    votes: Mapping[str, float], signals: Signals, truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Weigh signals, in units of their spread, by `votes`; scale the sum to log-odds of `truth`.

    The votes are fixed and not fitted: the members were trained on synthetic images, so a fit
    would trust the members alone.
    """
    values = signals.of(tuple(votes)).double()
    centre = values.mean(0)
    width = values.std(0).clamp_min(1e-6)
    weights = values.new_tensor(list(votes.values())) / width
    total = (values - centre) @ weights
    slope, bias = logistic(total, truth)
    weights = max(slope, 1e-3) * weights
    return DecisionRule(
        signals=tuple(votes), weights=tuple(weights.tolist()), bias=bias - float(weights @ centre)
    )


def logistic(
    values: Float[Tensor, " m"],
    truth: Bool[Tensor, " m"],
    *,
    tight: float = 1.0,
    prior: tuple[float, float] = (0.0, 0.0),
    balanced: bool = True,
) -> tuple[float, float]:
    """Fit slope and bias of a logistic regression on a value per image.

    scikit-learn's regression has no prior other than 0, which is why the loss is written here and
    only minimised by a library (it is convex, with exact second derivatives).
    """
    design = np.stack([values.double().cpu().numpy(), np.ones(len(values))], 1)
    y = truth.cpu().numpy().astype(float)
    weight = np.ones_like(y)
    if balanced:
        shares = np.clip([1 - y.mean(), y.mean()], 1e-9, 1)
        # Both answers have equal weight in total, however many images of each there are.
        weight = (0.5 / shares)[y.astype(int)]
    # The bias is held a hundred times more loosely than the slope: how many images of each kind
    # people saw is chance, how strongly signals speak is not.
    pull = np.array([tight, tight / 100])
    start = np.array(prior, float)

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        odds = design @ at
        value = weight @ (np.logaddexp(0, odds) - y * odds) + pull @ (at - start) ** 2 / 2
        return float(value), design.T @ (weight * (expit(odds) - y)) + pull * (at - start)

    def hessian(at: np.ndarray) -> np.ndarray:
        p = expit(design @ at)
        bend: np.ndarray = (design * (weight * p * (1 - p))[:, None]).T @ design + np.diag(pull)
        return bend

    from scipy.optimize import minimize

    optimum = minimize(
        loss, start, jac=True, hess=hessian, method="trust-exact", options={"gtol": 1e-10}
    )
    slope, bias = optimum.x.tolist()
    return slope, bias


def fit_to_people(
    rule: DecisionRule, evidence: Float[Tensor, " m"], truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Scale and shift `rule` to people's answers; with few labels it stays near what it was."""
    prior = (rule.scale, rule.offset)
    scale, offset = logistic(evidence, truth, tight=4.0, prior=prior, balanced=False)
    return replace(rule, scale=max(scale, 1e-3), offset=offset)


def precise_from(
    probability: Float[Tensor, " m"],
    right: Float[Tensor, " m"],
    wrong: Float[Tensor, " m"],
    *,
    settled: int = SETTLED,
) -> float:
    """Return the lowest probability such that from it, and from every higher one that takes in
    `settled` images or more, `FITTED_PRECISION` of the images are right; 1 if there is none.

    It is not the lowest from which the share holds: many easy images would pay for doubtful ones.
    """
    order = probability.argsort(descending=True)
    hits = right[order].cumsum(0)
    misses = wrong[order].cumsum(0)
    good = hits / (hits + misses) >= FITTED_PRECISION
    first = min(settled, len(good)) - 1
    bad = (~good[first:]).nonzero()
    last = len(good) - 1
    if len(bad):
        last = first + int(bad.min()) - 1
    if last < first:
        return 1.0
    return float(probability[order][last])


def with_thresholds(
    rule: DecisionRule, signals: Signals, truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Choose thresholds on synthetic images; both kinds have equal weight however many there are.

    Yes from the lowest probability above which `PRECISION` of them are so, no below the highest
    one below which that share are not, undecided between. Thresholds that people's answers give
    replace them.
    """
    probability = rule.probability(signals).cpu()
    truth = truth.cpu()
    if not (bool(truth.any()) and bool((~truth).any())):
        return replace(rule, low=0.0, high=1.0)
    right = truth.double() / truth.sum()
    wrong = (~truth).double() / (~truth).sum()
    high = _lowest_precise(probability, right, wrong)
    low = 1 - _lowest_precise(1 - probability, wrong, right)
    return replace(rule, low=min(low, 0.5), high=max(high, 0.5))


def _lowest_precise(
    probability: Float[Tensor, " m"], right: Float[Tensor, " m"], wrong: Float[Tensor, " m"]
) -> float:
    order = probability.argsort(descending=True)
    hits = right[order].cumsum(0)
    misses = wrong[order].cumsum(0)
    good = (hits / (hits + misses) >= PRECISION).nonzero()
    return float(probability[order][int(good.max())]) if len(good) else 1.0


def error_rates(words: Sequence[str], truth: Int[Tensor, " m"]) -> dict[str, Any]:
    """Return how often verdicts are right about images on which people agree (1 kept, 0 lost), and
    how many are unsure; images on which people are split (-1) are counted separately.
    """
    pairs = list(zip(words, truth.tolist(), strict=True))
    accepted = [right for word, right in pairs if word == "kept"]
    lost = [right for word, right in pairs if word in ("lost", "foreign")]
    confirmed = sum(right == 1 for _, right in pairs)
    return {
        "precision": Rate(accepted.count(1), len(accepted)).to_json(),
        "precision_where_agreed": Rate(
            accepted.count(1), len(accepted) - accepted.count(-1)
        ).to_json(),
        "recall": Rate(accepted.count(1), confirmed).to_json(),
        "lost_right": Rate(lost.count(0), len(lost) - lost.count(-1)).to_json(),
        "unsure": Rate(sum(word == "unsure" for word in words), len(pairs)).to_json(),
        "split": sum(right == -1 for _, right in pairs),
        "losses": sum(right == 0 for _, right in pairs),
    }


# High-confidence failures: accepted findings on which the subject is sure; and what its own
# confidence would have caught.

REFUSED = 0.05
"""Share of right answers that a user would give up."""


def silent(
    confidence: Float[Tensor, " t"], right: Float[Tensor, " n"], accepted: Bool[Tensor, " t"]
) -> tuple[Bool[Tensor, " t"], dict[str, Any]]:
    """Say which accepted findings a subject would still have answered that refuses below the
    confidence of `REFUSED` of its right answers on seeds (1 if there are none), and how many.
    """
    alarm = 1.0
    if len(right):
        alarm = float(right.double().quantile(REFUSED))
    confident = (confidence.double() >= alarm) & accepted
    total = int(accepted.sum())
    count = int(confident.sum())
    return confident, {
        "refused": REFUSED,
        "alarm": alarm,
        "high_confidence": Rate(count, total).to_json(),
        "caught": Rate(total - count, total).to_json(),
    }
