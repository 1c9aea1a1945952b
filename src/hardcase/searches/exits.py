"""Ways out of a class: random walks from every seed, halved to where they leave it, and what they enter there."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardcase.searches.neighbours import LIMIT, Codes, directions, largest, scaled, span
from hardcase.tensors import flat
from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Exits:
    """`walks` straight walks from every seed, all at once: one look at the far end, then `halvings` of those that fail there.

    A walk goes along the difference of two random codes, `reach` times as long as codes vary; without `codes` along the
    prior. With `classes`, walks take turns toward that many near classes, along more or fewer (`cuts`) of the step's
    largest coordinates, of which each walk leaves out others; every fourth goes anywhere. With `answers` a walk has left
    where the subject leaves the seed's label, whatever the oracle says. The state ends with the class that each walk enters
    where it leaves the seed's (-1: it never left) and the share of the walk at which it does; `row` names the seed.
    """

    codes: Codes | None = None
    walks: int = 10
    halvings: int = 6
    reach: float = 4.0
    classes: int = 0
    cuts: tuple[float, ...] = (0.1, 0.3, 1.0)
    answers: bool = False

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        z = flat(seeds.z)
        row = torch.arange(len(z), device=z.device).repeat_interleave(self.walks)
        blank = z.new_zeros(len(row))
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64), "row": row,
            "seed": z.clone(), "label": seeds.y.clone(), "near": blank, "end": blank + 1,
            "far": self._toward(seeds, rng) if self.classes and self.codes else self._far(z, len(row), rng),
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
        out = feedback.predicted != state["label"][row] if self.answers else feedback.failed
        out = out & feedback.looked
        left, stayed = walks[out], walks[~out & feedback.looked]
        if turn >= self.halvings:
            look.retire(look.live.nonzero().squeeze(1))
        return {
            **state,
            "entered": state["entered"].index_copy(0, left, feedback.predicted[out]),
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

    def _toward(self, seeds: Seeds, rng: torch.Generator) -> Tensor:
        assert self.codes is not None
        ways, (low, high) = directions(self.codes, seeds, classes=self.classes, neighbours=50), span(self.codes, seeds)
        lane = torch.arange(self.walks, device=seeds.y.device) % ways.step.shape[1]
        step = ways.step[:, lane].flatten(0, 1)
        turn = (torch.arange(len(step), device=step.device) % self.walks // ways.step.shape[1] % len(self.cuts))[
            :, None
        ]
        cut = sum(largest(step, share) * (turn == i) for i, share in enumerate(self.cuts))
        some = torch.rand(step.shape, generator=rng, device=rng.device) < 0.7
        seed, low, high = (value.repeat_interleave(self.walks, 0) for value in (flat(seeds.z), low, high))
        far = seed + scaled(cut * some, step.abs().sum(1) * self.reach)
        far = torch.minimum(torch.maximum(far, low), high) - seed
        stray = torch.arange(len(far), device=far.device) % 4 == 3
        return torch.where(stray[:, None], self._far(flat(seeds.z), len(far), rng), far)


def lengths(state: State) -> Tensor:
    """The L1 length at which each walk leaves; infinite where it never does."""
    far = state["far"].abs().sum(1)
    return torch.where(state["entered"] >= 0, state["end"] * far, torch.inf)
