"""From signals to a probability, from a probability to one of three answers,
and how good that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.judges.panel import Signals
from hardcase.statistics import Rate

# From signals to a probability, and from a probability to one of three answers.


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRule:
    """A weighted sum of signals, scaled and shifted to agree with people, and the two thresholds of
    its answers.

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

    Example:
        >>> import hardcase as hc
        >>> hc.judges.DecisionRule(signals=("nearness",), weights=(1.0,), bias=0.0).answers.__name__
        'answers'
    """

    signals: tuple[str, ...]
    weights: tuple[float, ...]
    bias: float
    scale: float = 1.0
    offset: float = 0.0
    low: float = 0.5
    high: float = 0.5

    def evidence(self, signals: Signals) -> Float[Tensor, " m"]:
        """Log-odds before people were asked."""
        values = signals.of(self.signals).double()
        return (
            values @ torch.tensor(self.weights, dtype=torch.float64, device=values.device)
            + self.bias
        )

    def probability(self, signals: Signals) -> Float[Tensor, " m"]:
        return torch.sigmoid(self.scale * self.evidence(signals) + self.offset)

    def answers(self, probability: Float[Tensor, " m"]) -> tuple[bool | None, ...]:
        """Yes from `high` on, no below `low`, otherwise undecided."""

        def answer(p: float) -> bool | None:
            if p >= self.high:
                return True
            return False if p < self.low else None

        return tuple(map(answer, probability.tolist()))

    def to_card(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_card(card: Mapping[str, Any]) -> DecisionRule:
        return DecisionRule(
            **{**card, "signals": tuple(card["signals"]), "weights": tuple(card["weights"])}
        )


def learned(
    votes: Mapping[str, float], signals: Signals, truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """Signals in units of their spread over made images, weighted by `votes`, as log-odds that tell
    those images apart.

    The votes are fixed and not fitted: made images are what the members were taught on, so a fit
    would trust the members alone.
    """
    values = signals.of(tuple(votes)).double()
    centre = values.mean(0)
    width = values.std(0).clamp_min(1e-6)
    weights = torch.tensor(list(votes.values()), dtype=torch.float64, device=values.device) / width
    total = (values - centre) @ weights
    slope, bias = logistic(total[:, None], truth).tolist()
    weights = max(slope, 1e-3) * weights
    return DecisionRule(
        signals=tuple(votes), weights=tuple(weights.tolist()), bias=bias - float(weights @ centre)
    )


def logistic(
    values: Float[Tensor, "m s"],
    truth: Bool[Tensor, " m"],
    *,
    tight: float = 1.0,
    prior: Sequence[float] = (),
    alike: bool = True,
    steps: int = 50,
) -> Float[Tensor, " s1"]:
    """Weights and (last) bias of a logistic regression by Newton's method.

    If `alike`, both answers count alike, however many there are of each. `tight` pulls the weights
    towards `prior` (0 if not given), and the bias a hundredth as hard.
    """
    design = torch.cat([values, torch.ones_like(values[:, :1])], 1)
    y = truth.double()
    equal = torch.where(truth, 0.5 / y.mean().clamp(1e-9, 1), 0.5 / (1 - y).mean().clamp(1e-9, 1))
    balance = equal if alike else torch.ones_like(y)
    pull = torch.full((design.shape[1],), tight, dtype=torch.float64, device=values.device)
    pull[-1] = tight / 100
    centre = torch.tensor(
        list(prior) or [0.0] * design.shape[1], dtype=torch.float64, device=values.device
    )

    def loss(at: Tensor) -> Tensor:
        signed = torch.where(truth, -1.0, 1.0) * (design @ at)
        return (balance * functional.softplus(signed)).sum() + (
            pull * (at - centre).square()
        ).sum() / 2

    weights = centre.clone()
    for _ in range(steps):
        p = torch.sigmoid(design @ weights)
        slope = design.T @ (balance * (p - y)) + pull * (weights - centre)
        bend = (design * (balance * p * (1 - p))[:, None]).T @ design + torch.diag(pull)
        move = torch.linalg.solve(bend, slope)
        while float(move.abs().max()) > 1e-10 and bool(loss(weights - move) > loss(weights)):
            move = move / 2
        weights = weights - move
        if float(move.abs().max()) < 1e-10:
            break
    return weights


def agreeing(
    rule: DecisionRule, evidence: Float[Tensor, " m"], truth: Bool[Tensor, " m"]
) -> DecisionRule:
    """`rule` scaled and shifted to what people said; with few labels it stays near what it was."""
    values = evidence[:, None].double()
    prior = (rule.scale, rule.offset)
    scale, offset = logistic(values, truth, tight=4.0, prior=prior, alike=False).tolist()
    return replace(rule, scale=max(scale, 1e-3), offset=offset)


# How good scores are against the truth: AUROC, rates with intervals, reliability.

REPEATS = 2000


def auroc(score: Float[Tensor, "*b m"], truth: Bool[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
    """The chance that a true one scores above a false one, ties counting half;
    NaN where one kind is missing.

    Args:
        score: Higher for what is held to be true.
        truth: What is true.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> hc.judges.auroc(torch.tensor([0.1, 0.9]), torch.tensor([False, True])).item()
        1.0
    """
    order = score.argsort(-1)
    ranks = _mean_ranks(score.gather(-1, order))
    hits = truth.gather(-1, order).to(ranks.dtype)
    yes = hits.sum(-1)
    no = (1 - hits).sum(-1)
    return ((hits * ranks).sum(-1) - yes * (yes + 1) / 2) / (yes * no)


def _mean_ranks(ordered: Float[Tensor, "*b m"]) -> Float[Tensor, "*b m"]:
    """Ranks from 1 of sorted values, equal values sharing the mean of theirs."""
    first = torch.searchsorted(ordered.contiguous(), ordered.contiguous())
    last = torch.searchsorted(ordered.contiguous(), ordered.contiguous(), right=True)
    return (first + last + 1).double() / 2


def auroc_interval(
    score: Float[Tensor, " m"],
    truth: Bool[Tensor, " m"],
    rng: torch.Generator,
    *,
    repeats: int = REPEATS,
) -> dict[str, Any]:
    """AUROC with a 95 % bootstrap interval over the images."""
    score = score.double().cpu()
    truth = truth.cpu()
    counts = {"yes": int(truth.sum()), "no": int((~truth).sum())}
    if not min(counts.values()):
        return {"value": None, "low": None, "high": None, **counts}
    drawn = torch.randint(len(score), (repeats, len(score)), generator=rng)
    values = auroc(score[drawn], truth[drawn])
    low, high = (
        values[values.isfinite()]
        .quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
        .tolist()
    )
    return {"value": float(auroc(score, truth)), "low": low, "high": high, **counts}


def error_rates(answers: Sequence[bool | None], truth: Int[Tensor, " m"]) -> dict[str, Any]:
    """How often yes is said where it is so, and no where it is not;
    undecided and split ones are counted apart.
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


def precision(answers: Sequence[bool | None], truth: Bool[Tensor, " m"]) -> dict[str, Any]:
    """Of those called yes, how many are; of those that are, how many were called so."""
    said = torch.tensor([answer is True for answer in answers], dtype=torch.bool)
    right = int((said & truth.cpu()).sum())
    return {
        "precision": Rate(right, int(said.sum())).to_json(),
        "recall": Rate(right, int(truth.sum())).to_json(),
    }


def reliability(
    probability: Float[Tensor, " m"], truth: Bool[Tensor, " m"], *, bins: int = 10
) -> tuple[list[dict[str, Any]], float | None]:
    """Said and true shares in equal bins of the probability, and their mean gap weighted by count
    (ECE).
    """
    probability = probability.double().cpu()
    truth = truth.cpu()
    place = (probability * bins).long().clamp(0, bins - 1)
    rows = []
    gap = 0.0
    for i in range(bins):
        inside = place == i
        count = int(inside.sum())
        if count:
            said = float(probability[inside].mean())
            hits = int(truth[inside].sum())
            rows.append(
                {
                    "from": i / bins,
                    "to": (i + 1) / bins,
                    "said": said,
                    **Rate(hits, count).to_json(),
                }
            )
            gap += count / len(truth) * abs(said - hits / count)
    return rows, gap if rows else None
