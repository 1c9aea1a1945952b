"""Walks from a list of images that grows by what is new: the loop of DLFuzz and ADAPT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.searches import gradient
from hardcase.searches.gradient import Direction, raw
from hardcase.tensors import flat, length, per_row
from hardcase.types import Evaluator, Feedback, Seeds, State, Targets


@search(
    "worklist",
    needs="gradients",
    paper="Guo et al., ESEC/FSE 2018; Lee et al., ISSTA 2020",
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Worklist:
    """Short gradient walks from a list that grows by candidates that are new and near.

    Each seed has a list of entries, first come first served, that begins with the seed itself. A
    walk starts at the next entry with targets of its own; a candidate joins the list (as a copy) if
    it adds more than `gain` to what the guides know and lies within `radius` of the seed.

    Evaluations carry among their targets ``row``, the seed's place, and ``seen``, whether the image
    was evaluated before (walks start from pictures that were).

    Args:
        step_size: Size of one step.
        direction: How a gradient becomes a step: `sign`, `unit`, `rms` or `raw`.
        steps: Gradient steps of one walk.
        gain: Least gain that makes a candidate an entry.
        radius: Largest L2 distance of an entry from its seed, relative to the seed's length.
        capacity: Entries per seed.
        restart: Start again from the seed when the list is empty; otherwise it retires.
        peek: Query an entry before guides choose what to push from it.
        decay: What the least gain is divided by: 1 plus the ``entries`` walked before, or 1 plus
            the number of the seed (``seeds``).
    """

    step_size: float
    direction: Direction = raw
    steps: int = 3
    gain: float = 0.0
    radius: float = 0.5
    capacity: int = 16
    restart: bool = True
    peek: bool = False
    decay: Literal["none", "entries", "seeds"] = "none"

    def init(self, seeds: Seeds, rng: Rng) -> State:
        count = torch.zeros(len(seeds), dtype=torch.int64, device=seeds.z.device)
        return {
            "seed": seeds.z.clone(),
            "length": length(flat(seeds.z)),
            "z": seeds.z.clone(),
            "queue": torch.zeros(
                len(seeds), self.capacity, *seeds.z.shape[1:], device=seeds.z.device
            ),
            "first": count,
            "size": count.clone(),
            "entries": count.clone(),
            "number": seeds.id.clone(),
            "phase": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        """Evaluate every live seed's candidate, with its gradient until its walk has ended."""
        phase = int(state["phase"])
        if phase == 0:
            state = self._next_entry(state, evaluate)
        rows = evaluate.live.nonzero().squeeze(1)
        seen = ((state["entries"][rows] > 1) | self.peek) & (phase == 0)
        z = state["z"][rows]
        targets = {**gradient.held(state, rows), "row": rows, "seen": seen}
        if phase < self.steps:
            feedback, slope = evaluate.gradient(z, rows, targets)
            moved = feedback.z + self.step_size * self.direction(slope)
            state = {**state, "z": state["z"].index_copy(0, rows, moved)}
        else:
            feedback = evaluate(z, rows, targets)
        if phase:
            state = self._join(state, rows, feedback)
        return {**state, "phase": (state["phase"] + 1) % (self.steps + 1)}

    def _next_entry(self, state: State, evaluate: Evaluator) -> State:
        """Take the first entry of every list; seeds whose list is empty start again or retire."""
        rows = evaluate.live.nonzero().squeeze(1)
        empty = state["size"][rows] == 0
        if not self.restart:
            over = empty & (state["entries"][rows] > 0)
            evaluate.retire(rows[over])
            rows = rows[~over]
            empty = empty[~over]
        z = torch.where(
            per_row(empty, state["z"]),
            state["seed"][rows],
            state["queue"][rows, state["first"][rows]],
        )
        taken = (~empty).long()
        state = {
            **state,
            "z": state["z"].index_copy(0, rows, z),
            "first": state["first"].index_add(0, rows, taken) % self.capacity,
            "size": state["size"].index_add(0, rows, -taken),
            "entries": state["entries"].index_add(0, rows, torch.ones_like(taken)),
        }
        if self.peek and len(rows):
            seen = state["entries"][rows] > 1
            evaluate(z, rows, {**gradient.held(state, rows), "row": rows, "seen": seen})
        return self._targets(state, evaluate, rows, empty)

    def _targets(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " m"], fresh: Bool[Tensor, " m"]
    ) -> State:
        """Targets chosen afresh where a list starts, and following the last where it goes on."""
        for some, following in ((rows[fresh], False), (rows[~fresh], True)):
            if len(some):
                before: Targets | None = None
                if following:
                    before = {**gradient.held(state, some), "row": some}
                state = gradient.keep(state, some, evaluate.choose(some, before), len(state["z"]))
        return state

    def _join(self, state: State, rows: Int[Tensor, " m"], feedback: Feedback) -> State:
        """Append copies of the candidates that are new and near; a full list takes no more."""
        seed = state["seed"][rows]
        size = state["size"][rows]
        near = length(flat(feedback.z - seed)) < self.radius * state["length"][rows]
        gained = feedback.gain > self._asked(state, rows)
        new = feedback.evaluated & near & gained & (size < self.capacity)
        slot = (state["first"][rows] + size) % self.capacity
        state["queue"][rows[new], slot[new]] = feedback.z[new]
        return {**state, "size": state["size"].index_add(0, rows, new.long())}

    def _asked(self, state: Mapping[str, Tensor], rows: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        before = {
            "none": 0 * rows,
            "entries": state["entries"][rows] - 1,
            "seeds": state["number"][rows],
        }
        return self.gain / (1 + before[self.decay])
