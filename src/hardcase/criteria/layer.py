"""Criteria that look at a layer as a whole: which units are its strongest (TKNC), and in which combinations (TKNP).

L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018. Ties go to the unit with
the lower number; not-a-number is never among the strongest. TKNP is a count of distinct patterns, not a ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.bits import Bits, Patterns
from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.units import Selection
from hardcase.randomness import stream


@dataclass(frozen=True)
class Strongest:
    """Units that were among the `k` strongest of their layer for some input: TKNC. `ranked`: each (unit, rank) counts."""

    selection: Selection
    k: int = 3
    ranked: bool = False

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.k if self.ranked else 1)

    def observe(self, frame: Frame, memory: Bits) -> None:
        found = torch.zeros(self.selection.units + 1, memory.columns, dtype=torch.bool, device=frame.device)
        top = frame.top(self.selection, self.k)
        rank = torch.arange(self.k, device=frame.device).expand_as(top) if self.ranked else torch.zeros_like(top)
        found[top.flatten(), rank.flatten()] = True  # -1, no unit, falls on the spare last row
        memory.cover(found[:-1])

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        free = ~memory.covered().to(frame.device)
        fresh = torch.cat([free, torch.zeros_like(free[:1])])  # the spare last row is -1, no unit
        top = frame.top(self.selection, self.k)
        rank = torch.arange(self.k, device=frame.device).expand_as(top) if self.ranked else torch.zeros_like(top)
        return fresh[top, rank].flatten(1).sum(1).float()

    def choose(self, count: int, rng: torch.Generator, memory: Bits) -> dict[str, Tensor]:
        return {"unit": memory.pick(count, rng) // memory.columns}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        return rise(frame.matrix(self.selection), self.selection, aim["unit"], self.k)

    def tally(self, memory: Bits) -> Tally:
        covered, total = memory.count(), memory.rows * memory.columns
        return Tally(covered / total, covered, total)


@dataclass(frozen=True)
class Combinations:
    """How many different combinations of strongest units over all layers: TKNP. `ordered`: their ranks matter too."""

    selection: Selection
    k: int = 3
    ordered: bool = False

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Patterns:
        return Patterns()

    def observe(self, frame: Frame, memory: Patterns) -> None:
        hashes, known = self._hashes(frame)
        memory.add(hashes[known])

    def gain(self, frame: Frame, memory: Patterns) -> Float[Tensor, " m"]:
        hashes, known = self._hashes(frame)
        return (memory.news(hashes).to(frame.device) & known).float()

    def choose(self, count: int, rng: torch.Generator, memory: Patterns) -> dict[str, Tensor]:
        """Any unit: made strong, it changes the combination unless it is strong already."""
        return {"unit": torch.randint(self.selection.units, (count,), generator=rng, device=rng.device)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Patterns) -> Float[Tensor, " m"]:
        return rise(frame.matrix(self.selection), self.selection, aim["unit"], self.k)

    def tally(self, memory: Patterns) -> Tally:
        return Tally(float(memory.count()), memory.count())

    def _hashes(self, frame: Frame) -> tuple[Int[Tensor, " m"], Bool[Tensor, " m"]]:
        """The sum of a random number for each unit named (and its rank, if that matters), and which rows name any unit."""
        top = frame.top(self.selection, self.k)
        rank = (
            torch.arange(self.k, device=frame.device)
            if self.ordered
            else torch.zeros(self.k, dtype=torch.int64, device=frame.device)
        )
        return self._keys.to(frame.device)[rank, top].flatten(1).sum(1), (top >= 0).flatten(1).any(1)

    @cached_property
    def _keys(self) -> Int[Tensor, "k u"]:
        shape = (self.k if self.ordered else 1, self.selection.units + 1)
        return torch.randint(-(2**63), 2**63 - 1, shape, generator=stream(0, "patterns"))


def rise(values: Float[Tensor, "m u"], selection: Selection, unit: Int[Tensor, " m"], k: int) -> Float[Tensor, " m"]:
    """How far a unit is above the `k`-th strongest of the others in its layer: positive once it is among the strongest."""
    starts = torch.tensor([*selection.starts, selection.units], device=values.device)
    layer = torch.searchsorted(starts, unit, right=True) - 1
    number = torch.arange(selection.units, device=values.device)
    inside = (number >= starts[layer][:, None]) & (number < starts[layer + 1][:, None])
    others = values.masked_fill(~inside | (number == unit[:, None]) | values.isnan(), -torch.inf)
    rival = others.topk(min(k, selection.units), dim=1).values[:, -1]
    rival = rival.where(rival > -torch.inf, 0)  # a layer no wider than k: nothing to overtake
    return values.gather(1, unit[:, None]).squeeze(1) - rival
