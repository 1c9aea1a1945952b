"""Carlini and Wagner's search for the smallest change: the margin's weight is bisected."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.searches.gradient import adam
from hardcase.tensors import per_row
from hardcase.types import Evaluator, Seeds, State

__all__ = ["CarliniWagner"]


@search("carlini-wagner", needs="gradients", paper="Carlini and Wagner, IEEE S&P 2017")
@dataclass(frozen=True, slots=True, kw_only=True)
class CarliniWagner:
    """Adam on distance plus weighted logit margin, the weight found by bisection.

    Adam on ``‖z - seed‖² + weight · max(0, confidence - score)``; after every `steps` steps each
    seed's weight is halved toward the largest that failed or multiplied by ten, and the walk starts
    again from the seed.

    All seeds walk at once, each with its own weight. The score is a logit margin, positive where
    the subject fails.

    Args:
        step_size: Adam's step size.
        steps: Adam steps per trade-off weight.
        rounds: Trade-off weights that are tried.
        weight: First trade-off weight.
        confidence: Logit margin by which the wrong class must lead.
    """

    step_size: float = 0.02
    steps: int = 60
    rounds: int = 6
    weight: float = 1.0
    confidence: float = 0.0

    def init(self, seeds: Seeds, rng: Rng) -> State:
        blank = torch.zeros_like(seeds.z)
        ones = torch.ones(len(seeds), device=seeds.z.device)
        return {
            "seed": seeds.z.clone(),
            "z": seeds.z.clone(),
            "mean": blank,
            "square": blank.clone(),
            "weight": ones * self.weight,
            "low": ones * 0,
            "high": ones * torch.inf,
            "hit": torch.zeros_like(seeds.y, dtype=torch.bool),
            "step": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        count = int(state["step"])
        feedback, slope = evaluate.gradient(state["z"][rows], rows)
        short = (feedback.score < self.confidence) & feedback.evaluated
        change = (
            2 * (feedback.z - state["seed"][rows])
            - per_row(state["weight"][rows] * short, slope) * slope
        )
        move, moments = adam(state, rows, change, count % self.steps + 1, size=self.step_size)
        z = state["z"].index_copy(0, rows, feedback.z - move)
        hit = state["hit"].index_copy(0, rows, state["hit"][rows] | feedback.failed)
        state = {**state, **moments, "z": z, "hit": hit, "step": state["step"] + 1}
        if (count + 1) % self.steps:
            return state
        if (count + 1) // self.steps >= self.rounds:
            evaluate.retire(rows)
        return self._restart(state)

    def _restart(self, state: State) -> State:
        """Bisect each seed's weight by whether its walk hit, and restart from the seed."""
        hit = state["hit"]
        weight = state["weight"]
        high = torch.where(hit, weight.minimum(state["high"]), state["high"])
        low = torch.where(hit, state["low"], weight)
        next_weight = torch.where(high.isfinite(), (low + high) / 2, weight * 10)
        blank = torch.zeros_like(state["mean"])
        return {
            **state,
            "z": state["seed"].clone(),
            "mean": blank,
            "square": blank.clone(),
            "weight": next_weight,
            "low": low,
            "high": high,
            "hit": torch.zeros_like(hit),
        }
