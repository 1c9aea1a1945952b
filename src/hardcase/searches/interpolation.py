"""Mixing a seed's code with those of partners: at one fixed share for all of them, or at the smallest share that works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.tensors import flat, per_row
from hardcase.types import Look, Seeds, State


@runtime_checkable
class Partners(Protocol):
    """Codes to mix with, by row, and for each class the rows of all others."""

    @property
    def label(self) -> Tensor: ...

    @property
    def by_class(self) -> tuple[Tensor, ...]: ...

    def take(self, rows: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolation:
    """Every seed with every partner of another class, once, at a share of `mix`; `width` partners a step."""

    partners: Partners
    mix: float
    width: int = 64

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        return {"z": seeds.z.clone(), "y": seeds.y.clone(), "next": torch.zeros_like(seeds.y)}

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows = look.live.nonzero().squeeze(1)
        place = state["next"][rows][:, None] + torch.arange(self.width, device=rows.device)  # r w
        partner, there = _others(self.partners, state["y"][rows], place)
        own = rows[:, None].expand_as(place)[there]
        code = (1 - self.mix) * state["z"][own] + self.mix * self.partners.take(partner[there])
        look(code, own)
        look.retire(rows[~there.all(1)])
        return {**state, "next": state["next"].index_add(0, rows, torch.full_like(rows, self.width))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """For each other class the nearest partners in turn; for each the smallest share that makes the subject say that class.

    A round takes, for every live seed, the next-nearest partner of every other class and halves the interval of shares
    `halvings` times; after `rounds` rounds a seed is finished.
    """

    partners: Partners
    rounds: int = 3
    halvings: int = 7

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        near = _nearest(self.partners, seeds, self.rounds)  # n k rounds
        whole = torch.zeros(1, dtype=torch.int64)
        blank = torch.zeros(near.shape[:2], device=seeds.z.device)
        return {
            "z": seeds.z.clone(), "y": seeds.y.clone(), "near": near,
            "low": blank, "high": blank + 1, "turn": whole, "round": whole.clone(),
        }  # fmt: skip

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows, turn, number = look.live.nonzero().squeeze(1), int(state["turn"]), int(state["round"])
        partner = state["near"][rows, :, number]
        there = partner >= 0
        own, goal = rows[:, None].expand_as(partner)[there], _classes(partner)[there]
        low, high = state["low"][rows][there], state["high"][rows][there]
        share = high if turn == 0 else (low + high) / 2
        base, other = state["z"][own], self.partners.take(partner[there])
        feedback = look(base + per_row(share, base) * (other - base), own)
        hit = feedback.failed & (feedback.predicted == goal)
        low, high = torch.where(hit, low, share), torch.where(hit, share, high)
        state = {**state, "low": _put(state["low"], own, goal, low), "high": _put(state["high"], own, goal, high)}
        return self._advance(state, look, rows)

    def _advance(self, state: State, look: Look, rows: Int[Tensor, " r"]) -> State:
        turn = state["turn"] + 1
        if int(turn) <= self.halvings:
            return {**state, "turn": turn}
        if int(state["round"]) + 1 >= self.rounds:
            look.retire(rows)
        fresh = torch.zeros_like(state["low"])
        return {**state, "turn": turn * 0, "round": state["round"] + 1, "low": fresh, "high": fresh + 1}


def _others(partners: Partners, y: Int[Tensor, " r"], place: Int[Tensor, "r w"]) -> tuple[Tensor, Tensor]:
    """The partners at these places of each seed's own list, and which places exist."""
    lists = partners.by_class
    longest = max(len(rows) for rows in lists)
    table = torch.stack([torch.nn.functional.pad(rows, (0, longest - len(rows)), value=-1) for rows in lists]).to(
        y.device
    )
    partner = table[y[:, None], place.clamp_max(longest - 1)]
    return partner, (partner >= 0) & (place < longest)


def _nearest(partners: Partners, seeds: Seeds, count: int) -> Int[Tensor, "n k c"]:
    """For each seed and class, the `count` nearest partners of that class (-1: none, and for the seed's own class)."""
    label = partners.label.to(seeds.y.device)
    near = torch.full((len(seeds), int(label.max()) + 1, count), -1, device=seeds.y.device)
    for c in range(near.shape[1]):
        rows = (label == c).nonzero().squeeze(1)
        codes = flat(partners.take(rows))
        ranked: Float[Tensor, "n r"] = torch.cdist(flat(seeds.z), codes) if len(rows) else flat(seeds.z)[:, :0]
        best = rows[ranked.argsort(dim=1, stable=True)[:, :count]]
        near[:, c, : best.shape[1]] = torch.where((seeds.y == c)[:, None], -1, best)
    return near


def _classes(partner: Int[Tensor, "r k"]) -> Int[Tensor, "r k"]:
    return torch.arange(partner.shape[1], device=partner.device).expand_as(partner)


def _put(values: Float[Tensor, "n k"], row: Tensor, column: Tensor, new: Tensor) -> Float[Tensor, "n k"]:
    return values.index_put((row, column), new)
