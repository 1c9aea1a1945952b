"""Carlini and Wagner's search for the smallest change: distance plus a weighted margin,
the weight found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.tensors import per_row
from hardcase.types import Look, Seeds, State


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
        stride: Adam's step size.
        steps: Adam steps per trade-off weight.
        rounds: Trade-off weights that are tried.
        weight: First trade-off weight.
        confidence: Logit margin by which the wrong class must lead.

    Example:
        >>> import hardcase as hc
        >>> hc.searches.CarliniWagner(rounds=3).weight
        1.0
    """

    stride: float = 0.02
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

    def step(self, state: State, look: Look, rng: Rng) -> State:
        rows = look.live.nonzero().squeeze(1)
        count = int(state["step"])
        feedback, slope = look.gradient(state["z"][rows], rows)
        pull = (feedback.score < self.confidence) & feedback.looked
        change = (
            2 * (feedback.z - state["seed"][rows])
            - per_row(state["weight"][rows] * pull, slope) * slope
        )
        moved = self._adam(state, rows, change, count % self.steps + 1)
        z = state["z"].index_copy(0, rows, feedback.z - moved.pop("move"))
        hit = state["hit"].index_copy(0, rows, state["hit"][rows] | feedback.failed)
        state = {**state, **moved, "z": z, "hit": hit, "step": state["step"] + 1}
        if (count + 1) % self.steps:
            return state
        if (count + 1) // self.steps >= self.rounds:
            look.retire(rows)
        return self._restart(state)

    def _adam(self, state: State, rows: Tensor, change: Tensor, t: int) -> State:
        mean = 0.9 * state["mean"][rows] + 0.1 * change
        square = 0.999 * state["square"][rows] + 0.001 * change.square()
        move = self.stride * (mean / (1 - 0.9**t)) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
        return {
            "move": move,
            "mean": state["mean"].index_copy(0, rows, mean),
            "square": state["square"].index_copy(0, rows, square),
        }

    def _restart(self, state: State) -> State:
        """Bisect each seed's weight by whether its walk hit,
        and put every walk back to its seed.
        """
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
