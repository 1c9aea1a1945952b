"""From signals to a probability, from a probability to one of three answers, and how good that is.

A judge reads images into `Signals`; a `DecisionRule` for each question ("valid", "label kept")
weighs them. The rules come from an exam of made images (`rules_from_exam`), and people may correct
them (`hardcase.judges.calibration`).
"""

from __future__ import annotations

import math
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

Answers = Sequence[bool | None]
"""Yes, no, or undecided for each image."""
PRECISION = 0.95
MISSED = 0.02
"""Yes is said where `PRECISION` of the images above are right, no where only `MISSED` of the right
ones fall below.
"""
Z = 1.96
"""Standard errors to either side in a 95 % interval."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What a judge reads from images, a value per image; higher is better.

    Args:
        seen: The class that the judge itself would answer.
        classifiers: Mean log-probability of the label over its networks.
        neighbours: How much nearer training images of the label are than others (logarithm).
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
        """Return the mean over several trainings, and the class that most of them see."""
        values = {
            f.name: torch.stack([getattr(each, f.name) for each in trainings])
            for f in fields(Signals)
        }
        seen = values.pop("seen").mode(0).values
        return Signals(seen=seen, **{name: each.mean(0) for name, each in values.items()})

    @staticmethod
    def join(parts: Sequence[Signals]) -> Signals:
        """Concatenate the signals of several batches."""
        names = [f.name for f in fields(Signals)]
        return Signals(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """A weighted sum of signals, scaled and shifted to agree with people, and two thresholds.

    `weights` and `bias` come from real and made images, `scale` and `offset` (and the thresholds)
    from people.

    Args:
        signals: Names of the signals.
        weights: Weight of each signal.
        bias: Added to the weighted sum.
        scale: Fitted to people.
        offset: Fitted to people.
        low: Below this probability the answer is no.
        high: From this probability on the answer is yes.
        share: Share of yes among the images that scale and offset were fitted to.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> rule = hc.judges.DecisionRule(
        ...     signals=("nearness",), weights=(1.0,), bias=0.0, low=0.4, high=0.9
        ... )
        >>> rule.answers(torch.tensor([0.2, 0.6, 0.95]))
        (False, None, True)
    """

    signals: tuple[str, ...]
    weights: tuple[float, ...]
    bias: float
    scale: float = 1.0
    offset: float = 0.0
    low: float = 0.5
    high: float = 0.5
    share: float = 0.5

    def evidence(self, signals: Signals) -> Float[Tensor, " m"]:
        """Return the log-odds before people were asked."""
        values = signals.of(self.signals).double()
        return values @ values.new_tensor(self.weights) + self.bias

    def probability(self, signals: Signals) -> Float[Tensor, " m"]:
        """Return the probability of yes after people were asked."""
        return torch.sigmoid(self.scale * self.evidence(signals) + self.offset)

    def answers(self, probability: Float[Tensor, " m"]) -> tuple[bool | None, ...]:
        """Answer yes from `high` on, no below `low`, otherwise undecided."""
        yes = (probability >= self.high).tolist()
        no = (probability < self.low).tolist()
        return tuple(is_yes or (None, False)[is_no] for is_yes, is_no in zip(yes, no))


def rules_from_card(card: Mapping[str, Any]) -> dict[str, DecisionRule]:
    """Return the rules of a judge's card, as they are before people are asked."""
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
    *,
    thresholds: bool,
) -> dict[str, DecisionRule]:
    """Return the rule of each question that tells the exam's images apart."""
    rules = {}
    for name, own_votes in votes.items():
        truth: Tensor = getattr(exam, name)
        known = truth >= 0
        rules[name] = rule_from_votes(own_votes, signals[known], truth[known] > 0)
        if thresholds:
            rules[name] = with_thresholds(rules[name], signals[known], truth[known] > 0)
    return rules


def rule_from_votes(
    votes: Mapping[str, float], signals: Signals, truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Weigh signals, in units of their spread, by `votes`; scale the sum to log-odds of `truth`.

    The votes are fixed and not fitted: made images are what the members were trained on, so a fit
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
    """Fit slope and bias of a logistic regression on one value per image.

    scikit-learn's regression has no prior other than 0, which is why the loss is written here and
    only minimised by a library (it is convex, with exact second derivatives).
    """
    design = np.stack([values.double().cpu().numpy(), np.ones(len(values))], 1)
    y = truth.cpu().numpy().astype(float)
    weight = np.ones_like(y)
    if balanced:
        shares = np.clip([1 - y.mean(), y.mean()], 1e-9, 1)
        weight = (0.5 / shares)[y.astype(int)]
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

    found = minimize(
        loss, start, jac=True, hess=hessian, method="trust-exact", options={"gtol": 1e-10}
    )
    slope, bias = found.x.tolist()
    return slope, bias


def fit_to_people(
    rule: DecisionRule, evidence: Float[Tensor, " m"], truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Scale and shift `rule` to what people said; with few labels it stays near what it was."""
    prior = (rule.scale, rule.offset)
    scale, offset = logistic(evidence, truth, tight=4.0, prior=prior, balanced=False)
    share = float(truth.double().mean().clamp(0.02, 0.98))
    return replace(rule, scale=max(scale, 1e-3), offset=offset, share=share)


def precise_from(
    probability: Float[Tensor, " m"], right: Float[Tensor, " m"], wrong: Float[Tensor, " m"]
) -> float:
    """Return the lowest probability above which `PRECISION` of the images are right; else 1."""
    order = probability.argsort(descending=True)
    hits = right[order].cumsum(0)
    misses = wrong[order].cumsum(0)
    good = (hits / (hits + misses) >= PRECISION).nonzero()
    if not len(good):
        return 1.0
    return float(probability[order][int(good.max())])


def with_thresholds(
    rule: DecisionRule, signals: Signals, truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Choose thresholds on made images, both kinds of which count alike however many there are.

    Yes from where `PRECISION` of those above are so (never below one half), no below all but
    `MISSED` of those that are so (never above one half), undecided between. People, once asked,
    replace them.
    """
    probability = rule.probability(signals).cpu()
    truth = truth.cpu()
    if not (bool(truth.any()) and bool((~truth).any())):
        return replace(rule, low=0.0, high=1.0)
    right = truth.double() / truth.sum()
    wrong = (~truth).double() / (~truth).sum()
    high = precise_from(probability, right, wrong)
    low = float(probability[truth].quantile(MISSED))
    return replace(rule, low=min(low, 0.5), high=max(high, 0.5))


def auroc(score: Float[Tensor, " m"], truth: Bool[Tensor, " m"]) -> float:
    """Return the chance that a true one scores above a false one, ties counting half; NaN where all
    or none are true.
    """
    from sklearn.metrics import roc_auc_score

    if bool(truth.all()) or not bool(truth.any()):
        return math.nan
    return float(roc_auc_score(truth.cpu().numpy(), score.cpu().numpy()))


def auroc_interval(score: Float[Tensor, " m"], truth: Bool[Tensor, " m"]) -> dict[str, Any]:
    """Return AUROC with its 95 % interval over the images, and how many are true and false."""
    yes = int(truth.sum())
    no = len(truth) - yes
    if not (yes and no):
        return {"value": None, "low": None, "high": None, "yes": yes, "no": no}
    return auroc_of_counts(auroc(score, truth), yes, no)


def auroc_of_counts(value: float, yes: int, no: int) -> dict[str, Any]:
    """Return an AUROC with its 95 % score interval.

    R. Newcombe, Statistics in Medicine 2006, 559-573, method 5: the areas from which `value` lies
    no further than 1.96 standard errors, each computed at that area. Unlike a bootstrap or DeLong's
    variance it does not call a perfect order of ten images certain.
    """

    def low_end(value: float) -> float:
        def excess(area: float) -> float:
            shared = (1 - area) / (2 - area) + area / (1 + area)
            variance = area * (1 - area) * (1 + ((yes + no) / 2 - 1) * shared) / (yes * no)
            return float((value - area) ** 2 - Z**2 * variance)

        if value <= 0:
            return 0.0
        # at an area of 1 the variance is 0: that root is not the one looked for
        low, high = 0.0, min(value, 1 - 1e-9)
        for _ in range(60):  # bisection, without the slow import of an optimizer
            middle = (low + high) / 2
            if excess(middle) > 0:
                low = middle
            else:
                high = middle
        return low

    ends = {"low": low_end(value), "high": 1 - low_end(1 - value)}
    return {"value": value, **ends, "yes": yes, "no": no}


def error_rates(answers: Answers, truth: Int[Tensor, " m"]) -> dict[str, Any]:
    """Return how often yes is said where it is so, and no where it is not.

    Undecided answers, and images on which people are split (-1), are counted on their own.
    """
    pairs = list(zip(answers, truth.tolist()))
    yes, no = ([said for said, right in pairs if right == kind] for kind in (1, 0))
    return {
        "tpr": Rate(yes.count(True), len(yes)).to_json(),
        "tnr": Rate(no.count(False), len(no)).to_json(),
        "false_yes": Rate(no.count(True), len(no)).to_json(),
        "false_no": Rate(yes.count(False), len(yes)).to_json(),
        "undecided": Rate(sum(said is None for said, _ in pairs), len(pairs)).to_json(),
        "split": sum(right == -1 for _, right in pairs),
    }


def precision(answers: Answers, truth: Bool[Tensor, " m"]) -> dict[str, Any]:
    """Return precision and recall of the answer yes."""
    said = torch.tensor([answer is True for answer in answers], dtype=torch.bool)
    right = int((said & truth.cpu()).sum())
    return {
        "precision": Rate(right, int(said.sum())).to_json(),
        "recall": Rate(right, int(truth.sum())).to_json(),
    }


# High-confidence failures: confirmed findings on which the subject is sure; and what its own
# confidence would have caught.

REFUSED = 0.05
"""Share of right answers that a user would give up."""


def silent(
    confidence: Float[Tensor, " t"], right: Float[Tensor, " n"], confirmed: Bool[Tensor, " t"]
) -> tuple[Bool[Tensor, " t"], dict[str, Any]]:
    """Say which confirmed findings a subject would still have answered that refuses below the
    confidence of `REFUSED` of its right answers on seeds (1 if there are none), and how many.
    """
    alarm = 1.0
    if len(right):
        alarm = float(right.double().quantile(REFUSED))
    found = (confidence.double() >= alarm) & confirmed
    total = int(confirmed.sum())
    count = int(found.sum())
    return found, {
        "refused": REFUSED,
        "alarm": alarm,
        "silent": Rate(count, total).to_json(),
        "caught": Rate(total - count, total).to_json(),
    }
