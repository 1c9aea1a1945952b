"""Ways out of a class: random walks from every seed, halved to where they leave it, and what they enter there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardcase.searches.neighbours import LIMIT, Codes
from hardcase.tensors import flat
from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """`walks` straight walks from every seed, all at once: one look at the far end, then `halvings` of those that fail there.

    A walk goes along the difference of two random codes, `reach` times as long as codes vary; without `codes` along the
    prior. The state ends with the class that each walk enters where it leaves the seed's (-1: it never left) and the L1
    length at which it does; `row` names the seed.
    """

    codes: Codes | None = None
    walks: int = 10
    halvings: int = 6
    reach: float = 4.0

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        z = flat(seeds.z)
        row = torch.arange(len(z), device=z.device).repeat_interleave(self.walks)
        blank = z.new_zeros(len(row))
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64), "row": row, "seed": z.clone(),
            "far": self._far(z, len(row), rng), "near": blank, "end": blank + 1,
            "entered": torch.full_like(row, -1), "turn": torch.zeros(1, dtype=torch.int64),
        }  # fmt: skip

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        turn = int(state["turn"])
        share = state["end"] if turn == 0 else (state["near"] + state["end"]) / 2
        open_ = look.live[state["row"]] & ((state["entered"] >= 0) | (turn == 0))
        walks = open_.nonzero().squeeze(1)
        row = state["row"][walks]
        z = state["seed"][row] + share[walks, None] * state["far"][walks]
        feedback = look(z.reshape(-1, *state["shape"].tolist()), row)
        left, stayed = walks[feedback.failed], walks[~feedback.failed & feedback.looked]
        if turn >= self.halvings:
            look.retire(look.live.nonzero().squeeze(1))
        return {
            **state,
            "entered": state["entered"].index_copy(0, left, feedback.predicted[feedback.failed]),
            "end": state["end"].index_copy(0, left, share[left]),
            "near": state["near"].index_copy(0, stayed, share[stayed]),
            "turn": state["turn"] + 1,
        }

    def _far(self, z: Tensor, count: int, rng: torch.Generator) -> Tensor:
        if self.codes is None:
            return self.reach * torch.randn(count, z.shape[1], generator=rng, device=z.device)
        known = min(LIMIT, len(self.codes.label))
        rows = torch.randint(known, (2, count), generator=rng, device=z.device)
        one, two = (flat(self.codes.take(some)) for some in rows)
        return self.reach / 2**0.5 * (one - two)


def lengths(state: State) -> Tensor:
    """The L1 length at which each walk leaves; infinite where it never does."""
    far = state["far"].abs().sum(1)
    return torch.where(state["entered"] >= 0, state["end"] * far, torch.inf)
