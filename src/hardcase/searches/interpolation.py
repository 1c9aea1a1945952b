"""Mixing a seed's code with those of all partners, at one fixed share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.types import Evaluator, Seeds, State

__all__ = ["Interpolation", "Partners"]


@runtime_checkable
class Partners(Protocol):
    """Codes to mix with, by row, and for each class the rows of all others."""

    @property
    def label(self) -> Tensor: ...

    @property
    def by_class(self) -> tuple[Tensor, ...]: ...

    def take(self, rows: Tensor) -> Tensor: ...


@search("interpolation", needs="label", paper="Duan, Dwyer and Yang, 2025 (ARGUS)")
@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolation:
    """Every seed interpolated once with every partner of another class, at one weight.

    The weight of the partner is `mix`; `width` partners are taken per step.

    Args:
        partners: Codes of training images, as `hc.spaces.partners` collects them.
        mix: Interpolation weight of the partner's code.
        width: Partners per step.
    """

    partners: Partners
    mix: float
    width: int = 64

    def init(self, seeds: Seeds, rng: Rng) -> State:
        lists = torch.nn.utils.rnn.pad_sequence(
            list(self.partners.by_class), batch_first=True, padding_value=-1
        )
        return {
            "z": seeds.z.clone(),
            "y": seeds.y.clone(),
            "next": torch.zeros_like(seeds.y),
            "lists": lists.to(seeds.y.device),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        place = state["next"][rows][:, None] + torch.arange(self.width, device=rows.device)  # r w
        partner, there = _others(state["lists"], state["y"][rows], place)
        ended = rows[~there.all(1)]
        line, column = there.nonzero(as_tuple=True)
        own = rows[line]
        other = self.partners.take(partner[line, column])
        evaluate((1 - self.mix) * state["z"][own] + self.mix * other, own)
        evaluate.retire(ended)
        return {
            **state,
            "next": state["next"].index_add(0, rows, torch.full_like(rows, self.width)),
        }


def _others(
    lists: Int[Tensor, "k n"], y: Int[Tensor, " r"], place: Int[Tensor, "r w"]
) -> tuple[Tensor, Tensor]:
    """The partners at these places of each seed's own list, and which places exist."""
    longest = lists.shape[1]
    partner = lists[y[:, None], place.clamp_max(longest - 1)]
    return partner, (partner >= 0) & (place < longest)
