"""From signals to a probability, and from a probability to one of three answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from hardcase.judges.panel import Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A weighted sum of signals, scaled and shifted to agree with people, and the two thresholds of its answers.

    `weights` and `bias` come from real and made images, `scale` and `offset` (and the thresholds) from people.
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
        return values @ torch.tensor(self.weights, dtype=torch.float64, device=values.device) + self.bias

    def probability(self, signals: Signals) -> Float[Tensor, " m"]:
        return torch.sigmoid(self.scale * self.evidence(signals) + self.offset)

    def answers(self, probability: Float[Tensor, " m"]) -> tuple[bool | None, ...]:
        """Yes from `high` on, no below `low`, otherwise undecided."""
        return tuple(True if p >= self.high else False if p < self.low else None for p in probability.tolist())

    def to_card(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_card(card: Mapping[str, Any]) -> Rule:
        return Rule(**{**card, "signals": tuple(card["signals"]), "weights": tuple(card["weights"])})


def learned(votes: Mapping[str, float], signals: Signals, truth: Bool[Tensor, " m"]) -> Rule:
    """Signals in units of their spread over made images, weighted by `votes`, as log-odds that tell those images apart.

    The votes are fixed and not fitted: made images are what the members were taught on, so a fit would trust the members
    alone.
    """
    values = signals.of(tuple(votes)).double()
    centre, width = values.mean(0), values.std(0).clamp_min(1e-6)
    weights = torch.tensor(list(votes.values()), dtype=torch.float64, device=values.device) / width
    total = (values - centre) @ weights
    slope, bias = logistic(total[:, None], truth).tolist()
    weights = max(slope, 1e-3) * weights
    return Rule(signals=tuple(votes), weights=tuple(weights.tolist()), bias=bias - float(weights @ centre))


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

    If `alike`, both answers count alike, however many there are of each. `tight` pulls the weights towards `prior` (0 if
    not given), and the bias a hundredth as hard.
    """
    design = torch.cat([values, torch.ones_like(values[:, :1])], 1)
    y = truth.double()
    equal = torch.where(truth, 0.5 / y.mean().clamp(1e-9, 1), 0.5 / (1 - y).mean().clamp(1e-9, 1))
    balance = equal if alike else torch.ones_like(y)
    pull = torch.full((design.shape[1],), tight, dtype=torch.float64, device=values.device)
    pull[-1] = tight / 100
    centre = torch.tensor(list(prior) or [0.0] * design.shape[1], dtype=torch.float64, device=values.device)

    def loss(at: Tensor) -> Tensor:
        signed = torch.where(truth, -1.0, 1.0) * (design @ at)
        return (balance * functional.softplus(signed)).sum() + (pull * (at - centre).square()).sum() / 2

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


def agreeing(rule: Rule, evidence: Float[Tensor, " m"], truth: Bool[Tensor, " m"]) -> Rule:
    """`rule` scaled and shifted to what people said; with few labels it stays near what it was."""
    values, prior = evidence[:, None].double(), (rule.scale, rule.offset)
    scale, offset = logistic(values, truth, tight=4.0, prior=prior, alike=False).tolist()
    return replace(rule, scale=max(scale, 1e-3), offset=offset)
