"""Several gradient walks from every seed, each with an aim of its own: one for every unit, filter or layer, as MaXplore goes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.searches import aims
from hardcase.searches.gradient import Direction, raw
from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Fan:
    """`walks` walks of `steps` steps from each seed, `width` of them at a time; a walk that fails stops if `stop`.

    The seed is looked at first, so that guides know it. A walk's aim is chosen by its number: guides that `follow` are told
    ``walk`` and ``row``, and so is every look.
    """

    walks: int
    stride: float
    steps: int
    direction: Direction = raw
    width: int = 16
    stop: bool = True

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        width, count = min(self.width, self.walks), torch.zeros(1, dtype=torch.int64)
        return {
            "seed": seeds.z.clone(),
            "z": seeds.z.repeat_interleave(width, 0),
            "stopped": torch.zeros(len(seeds) * width, dtype=torch.bool, device=seeds.z.device),
            "wave": count - 1,
            "step": count,
        }

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        if int(state["wave"]) < 0:
            rows = look.live.nonzero().squeeze(1)
            look(state["seed"][rows], rows, {"row": rows})
            return self._next_wave(state, look)
        places, rows = self._walking(state, look)
        z, aim = state["z"][places], {**aims.held(state, places), "row": rows, "walk": self._number(state, places)}
        if int(state["step"]) == self.steps:
            look(z, rows, aim)
            return self._next_wave(state, look)
        feedback, slope = look.gradient(z, rows, aim)
        moved = state["z"].index_copy(0, places, feedback.z + self.stride * self.direction(slope))
        stopped = state["stopped"].index_copy(0, places, feedback.failed & self.stop)
        return {**state, "z": moved, "stopped": stopped, "step": state["step"] + 1}

    def _walking(self, state: State, look: Look) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        """The places in the table of walks that still go on, and the seeds they belong to."""
        width = len(state["z"]) // len(state["seed"])
        place = torch.arange(len(state["z"]), device=state["z"].device)
        exists = place % width + int(state["wave"]) * width < self.walks
        going = look.live[place // width] & ~state["stopped"] & exists
        return place[going], (place // width)[going]

    def _next_wave(self, state: State, look: Look) -> State:
        width = len(state["z"]) // len(state["seed"])
        state = {
            **state,
            "z": state["seed"].repeat_interleave(width, 0),
            "stopped": torch.zeros_like(state["stopped"]),
            "wave": state["wave"] + 1,
            "step": torch.zeros_like(state["step"]),
        }
        if int(state["wave"]) * width >= self.walks:
            look.retire(look.live.nonzero().squeeze(1))
            return state
        places, rows = self._walking(state, look)
        asked = look.choose(rows, {"walk": self._number(state, places), "row": rows})
        return aims.keep(state, places, asked, len(state["z"]))

    def _number(self, state: State, places: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
        width = len(state["z"]) // len(state["seed"])
        return places % width + int(state["wave"]) * width
