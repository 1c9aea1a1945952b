"""Adam on the code, uphill in the score, and from the first failure back toward the seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.tensors import per_row
from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamAscent:
    """Steps of about `stride` a coordinate, each seed with its own moments, until it fails.

    Then `retreat` halvings of the way between the seed and the failure, each keeping to the failing side, and the seed is
    finished. With 0 of them the campaign must stop seeds at their first failure.
    """

    stride: float = 0.01
    first: float = 0.9
    second: float = 0.999
    retreat: int = 0

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        blank, none = torch.zeros_like(seeds.z), torch.zeros(len(seeds), device=seeds.z.device)
        return {
            "z": seeds.z.clone(),
            "mean": blank,
            "square": blank.clone(),
            "start": seeds.z.clone(),
            "low": none,
            "high": none + torch.inf,
            "halved": torch.zeros_like(seeds.y),
            "step": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        back = state["high"].isfinite()
        state = self._climb(state, look, (look.live & ~back).nonzero().squeeze(1))
        return self._halve(state, look, (look.live & back).nonzero().squeeze(1))

    def _climb(self, state: State, look: Look, rows: Int[Tensor, " r"]) -> State:
        if not len(rows):
            return state
        t = int(state["step"]) + 1
        feedback, slope = look.gradient(state["z"][rows], rows)
        mean = self.first * state["mean"][rows] + (1 - self.first) * slope
        square = self.second * state["square"][rows] + (1 - self.second) * slope.square()
        move = (mean / (1 - self.first**t)) / ((square / (1 - self.second**t)).sqrt() + 1e-8)
        stays = per_row(feedback.failed, move)
        z = torch.where(stays, feedback.z, feedback.z + self.stride * move)
        return {
            **state,
            "z": state["z"].index_copy(0, rows, z),
            "mean": state["mean"].index_copy(0, rows, mean),
            "square": state["square"].index_copy(0, rows, square),
            "high": state["high"].index_copy(0, rows, torch.where(feedback.failed, 1.0, torch.inf)),
            "step": state["step"] + 1,
        }

    def _halve(self, state: State, look: Look, rows: Int[Tensor, " r"]) -> State:
        """`low` and `high` are shares of the way from the seed to its first failure; it fails at `high`."""
        if not len(rows):
            return state
        low, high, start = state["low"][rows], state["high"][rows], state["start"][rows]
        share = (low + high) / 2
        fails = look(start + per_row(share, start) * (state["z"][rows] - start), rows).failed
        halved = state["halved"].index_add(0, rows, torch.ones_like(rows))
        look.retire(rows[halved[rows] >= self.retreat])
        return {
            **state,
            "low": state["low"].index_copy(0, rows, torch.where(fails, low, share)),
            "high": state["high"].index_copy(0, rows, torch.where(fails, share, high)),
            "halved": halved,
        }
