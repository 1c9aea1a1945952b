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


def learned(names: Sequence[str], signals: Signals, truth: Bool[Tensor, " m"], *, tight: float = 1.0) -> Rule:
    """The rule that best tells made images apart, its weights kept from below 0: no signal speaks against itself."""
    values = signals.of(names).double()
    centre, width = values.mean(0), values.std(0).clamp_min(1e-6)
    scaled = (values - centre) / width
    used = torch.ones(len(names), dtype=torch.bool, device=values.device)
    weights = torch.zeros(len(names), dtype=torch.float64, device=values.device)
    bias = torch.zeros((), dtype=torch.float64)
    for _ in names:
        fitted = logistic(scaled[:, used], truth, tight=tight)
        weights = weights.new_zeros(len(names)).masked_scatter(used, fitted[:-1])
        bias = fitted[-1]
        if bool((weights >= 0).all()):
            break
        used = used & (weights > 0)
    plain = weights.clamp_min(0) / width
    return Rule(signals=tuple(names), weights=tuple(plain.tolist()), bias=float(bias - (plain * centre).sum()))


def logistic(
    values: Float[Tensor, "m s"],
    truth: Bool[Tensor, " m"],
    *,
    tight: float = 1.0,
    prior: Sequence[float] = (),
    steps: int = 50,
) -> Float[Tensor, " s1"]:
    """Weights and (last) bias of a logistic regression by Newton's method.

    Both answers count alike, however many there are of each. `tight` pulls the weights towards `prior` (0 if not given),
    and the bias a hundredth as hard.
    """
    design = torch.cat([values, torch.ones_like(values[:, :1])], 1)
    y = truth.double()
    balance = torch.where(truth, 0.5 / y.mean().clamp(1e-9, 1), 0.5 / (1 - y).mean().clamp(1e-9, 1))
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
    scale, offset = logistic(evidence[:, None].double(), truth, tight=4.0, prior=(rule.scale, rule.offset)).tolist()
    return replace(rule, scale=max(scale, 1e-3), offset=offset)
