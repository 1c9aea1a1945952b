"""Mixing a seed with others: with partners' codes, or with another class's conditioning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.types import Evaluator, Seeds, State

__all__ = ["AnchoredSteps", "GrowingMix", "Interpolation", "Partners"]


@runtime_checkable
class Partners(Protocol):
    """Codes of labelled images by row: `by_class` has for each class the rows of all others, `take`
    copies rows, `mean` averages each line of rows.
    """

    @property
    def label(self) -> Tensor: ...

    @property
    def by_class(self) -> tuple[Tensor, ...]: ...

    def take(self, rows: Tensor) -> Tensor: ...

    def mean(self, rows: Tensor) -> Tensor: ...


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
        return {
            "z": seeds.z.clone(),
            "y": seeds.y.clone(),
            "next": torch.zeros_like(seeds.y),
            "lists": _other_classes(self.partners, seeds.y.device),
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


@search("anchored-steps", needs="label", paper="ours, after Duan, Dwyer and Yang, 2026 (Latte)")
@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredSteps:
    """Single steps from every seed's code toward randomly drawn codes of other classes.

    A candidate is z + t (anchor - z); none starts from another, so all stay around the seed.

    Args:
        partners: Codes of training images, as `hc.spaces.partners` collects them.
        anchors: Anchors drawn for each seed, with replacement.
        step_sizes: The values of t, tried for each anchor.
    """

    partners: Partners
    anchors: int = 100
    step_sizes: tuple[float, ...] = (0.2, 0.4, 0.6)

    def init(self, seeds: Seeds, rng: Rng) -> State:
        lists = _other_classes(self.partners, seeds.y.device)[seeds.y]
        rows = torch.arange(len(seeds), device=seeds.y.device)
        drawn = rng.integers(rows, (lists >= 0).count_nonzero(1)[:, None], (self.anchors,))
        return {
            "z": seeds.z.clone(),
            "anchor": lists.gather(1, drawn),  # n anchors
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        turn = int(state["turn"])
        rows = evaluate.live.nonzero().squeeze(1)
        z = state["z"][rows]
        direction = self.partners.take(state["anchor"][rows, turn]) - z
        candidates = torch.cat([z + t * direction for t in self.step_sizes])
        evaluate(candidates, rows.repeat(len(self.step_sizes)))
        if turn + 1 >= self.anchors:
            evaluate.retire(rows)
        return {**state, "turn": state["turn"] + 1}


@search("growing-mix", needs="label", paper="ours, after Weißl et al., 2024 (Mimicry)")
@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingMix:
    """The smallest mix of each other class that fails: grown from the last stage on, then bisected.

    Codes are those of `hc.spaces.Styles`. A mix of 1.5 means: the last stage is conditioned wholly
    on the other class, the one before it by half, all earlier ones not at all.

    Args:
        steps: Mixes that are tried per stage.
        halvings: Bisection steps between the last mix that passed and the first that failed.
    """

    steps: int = 4
    halvings: int = 3

    def init(self, seeds: Seeds, rng: Rng) -> State:
        n, classes, stages = seeds.z.shape
        label = torch.arange(classes, device=seeds.y.device)
        return {
            "other": label != seeds.y[:, None],  # n classes
            "low": seeds.z.new_zeros(n, classes),
            "high": seeds.z.new_full((n, classes), torch.inf),
            "from_last": torch.arange(stages, device=seeds.y.device).flip(0),
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        turn = int(state["turn"])
        from_last, low, high = (state[name] for name in ("from_last", "low", "high"))
        growing = self.steps * len(from_last)
        failed_before = high.isfinite()
        if turn < growing:
            mix = torch.full_like(low, (turn + 1) / self.steps)
            tracks = state["other"] & ~failed_before
        else:
            mix = (low + high) / 2
            tracks = failed_before
        track = (tracks & evaluate.live[:, None]).nonzero(as_tuple=True)
        row, other = track
        z = low.new_zeros(len(row), low.shape[1], len(from_last))
        z[torch.arange(len(row)), other] = (mix[track][:, None] - from_last).clamp(0, 1)
        failed = evaluate(z, row).failed
        if turn + 1 >= growing + self.halvings:
            evaluate.retire(evaluate.live.nonzero().squeeze(1))
        return {
            **state,
            "low": low.index_put(track, torch.where(failed, low[track], mix[track])),
            "high": high.index_put(track, torch.where(failed, mix[track], high[track])),
            "turn": state["turn"] + 1,
        }


def _other_classes(partners: Partners, device: torch.device) -> Int[Tensor, "k p"]:
    """For each class the rows of all others, padded with -1."""
    return torch.nn.utils.rnn.pad_sequence(
        list(partners.by_class), batch_first=True, padding_value=-1
    ).to(device)


def _others(
    lists: Int[Tensor, "k n"], y: Int[Tensor, " r"], place: Int[Tensor, "r w"]
) -> tuple[Tensor, Tensor]:
    """The partners at these places of each seed's own list, and which places exist."""
    longest = lists.shape[1]
    partner = lists[y[:, None], place.clamp_max(longest - 1)]
    return partner, (partner >= 0) & (place < longest)
