"""Adam on the code, uphill in the score."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamAscent:
    """Steps of about `stride` a coordinate, each seed with its own moments; seeds that fail stop by themselves."""

    stride: float = 0.01
    first: float = 0.9
    second: float = 0.999

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        blank = torch.zeros_like(seeds.z)
        return {"z": seeds.z.clone(), "mean": blank, "square": blank.clone(), "step": torch.zeros(1, dtype=torch.int64)}

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows, t = look.live.nonzero().squeeze(1), int(state["step"]) + 1
        feedback, slope = look.gradient(state["z"][rows], rows)
        mean = self.first * state["mean"][rows] + (1 - self.first) * slope
        square = self.second * state["square"][rows] + (1 - self.second) * slope.square()
        move = (mean / (1 - self.first**t)) / ((square / (1 - self.second**t)).sqrt() + 1e-8)
        return {
            "z": state["z"].index_copy(0, rows, feedback.z + self.stride * move),
            "mean": state["mean"].index_copy(0, rows, mean),
            "square": state["square"].index_copy(0, rows, square),
            "step": state["step"] + 1,
        }
