"""SINVAD's hill climbing: coordinates move by chance, one by one, if the score rises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.tensors import flat
from hardcase.types import Evaluator, Seeds, State

__all__ = ["HillClimbing"]


@search("hill-climbing", needs="label", paper="Kang, Feldt and Yoo, SBST 2020")
@dataclass(frozen=True, slots=True, kw_only=True)
class HillClimbing:
    """One coordinate after the other moved at random; a move stays if the score rises.

    `passes` over all coordinates, all seeds side by side; a move is normal noise of the seed's
    current `step_size`.

    It starts from the seed, or from the standard normal prior. After each pass the step size
    becomes ("accepted") the mean size of the moves that were kept, but at least the share of moves
    that were kept, or ("halved", or where none was kept) half of what it was.

    Args:
        passes: Passes over all coordinates.
        step_size: First standard deviation of a move.
        adapt: How the move's size changes after a pass.
        start: Climb from the ``seed`` or from the ``prior``.
    """

    passes: int = 3
    step_size: float = 1.0
    adapt: Literal["accepted", "halved", "never"] = "accepted"
    start: Literal["seed", "prior"] = "seed"

    def init(self, seeds: Seeds, rng: Rng) -> State:
        z = flat(seeds.z)
        start = z.clone()
        if self.start == "prior":
            start = rng.normal(torch.arange(len(z), device=z.device), z.shape[1:])
        blank = z.new_zeros(len(z))
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64),
            "z": start,
            "score": blank - torch.inf,
            "step_size": blank + self.step_size,
            "kept": blank.clone(),
            "moved": blank.clone(),
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        turn = int(state["turn"])
        width = state["z"].shape[1]
        z = state["z"][rows]
        move = rng.normal(rows) * state["step_size"][rows]
        if turn:
            place = torch.zeros(width, dtype=torch.bool, device=z.device)
            place[(turn - 1) % width] = True
            z = torch.where(place, z + move[:, None], z)
        feedback = evaluate(z.reshape(-1, *state["shape"].tolist()), rows)
        better = feedback.score > state["score"][rows]
        size = move.abs() * (turn > 0)
        state = self._keep(state, rows, flat(feedback.z), feedback.score, better, size)
        if turn and turn % width == 0:
            state = self._adapted(state, width)
        if turn >= self.passes * width:
            evaluate.retire(rows)
        return {**state, "turn": state["turn"] + 1}

    def _keep(
        self, state: State, rows: Tensor, z: Tensor, score: Tensor, better: Tensor, size: Tensor
    ) -> State:
        won = rows[better]
        return {
            **state,
            "z": state["z"].index_copy(0, won, z[better]),
            "score": state["score"].index_copy(0, won, score[better]),
            "kept": state["kept"].index_add(0, won, (size[better] > 0).to(size.dtype)),
            "moved": state["moved"].index_add(0, won, size[better]),
        }

    def _adapted(self, state: State, width: int) -> State:
        kept = state["kept"]
        blank = torch.zeros_like(state["kept"])
        half = state["step_size"] / 2
        typical = torch.maximum(state["moved"] / kept.clamp_min(1), kept / width)
        step_size = {
            "accepted": torch.where(kept > 0, typical, half),
            "halved": half,
            "never": state["step_size"],
        }[self.adapt]
        return {**state, "step_size": step_size, "kept": blank, "moved": blank.clone()}
