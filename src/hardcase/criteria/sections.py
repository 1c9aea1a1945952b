"""k-multisection neuron coverage (KMNC): which parts of each unit's training range were seen.

L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018. Values outside the
training range fill nothing. Tools differ in who owns a cut point; the default is right-open with the last section closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.bits import Bits
from hardcase.criteria.frame import CHUNK, Extremes, Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.ranges import Range
from hardcase.criteria.units import Selection
from hardcase.tensors import chunks


@dataclass(frozen=True)
class Sections:
    """Which of the `k` equal parts of each unit's training range were seen: KMNC.

    `cuts` says who owns the interior cut points: the section above ("right-open"), below ("left-open", which also drops
    the lowest value) or both ("closed"). `top`: the highest value fills the last section ("last") or none ("corner").
    `constant`: units whose range is a point are left out ("skip"), never hit ("never"), or filled whole when hit ("all").
    """

    selection: Selection
    range: Range
    k: int = 1000
    cuts: Literal["right-open", "left-open", "closed"] = "right-open"
    top: Literal["last", "corner"] = "last"
    constant: Literal["skip", "never", "all"] = "skip"

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    @cached_property
    def still(self) -> Bool[Tensor, " u"]:
        """Units whose training range is a point (dead ones among them), or not finite: it cannot be cut into sections."""
        width = (self.range.high - self.range.low) / self.k
        return ~(width.isfinite() & (width > 0))

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.k)

    def observe(self, frame: Frame, memory: Bits) -> None:
        for start, cells in self._cells(frame):
            memory.mark(start, cells)
        if self.constant == "all":
            hit = self._touched(frame).any(0)
            memory.cover(hit[:, None].expand(-1, self.k))

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        gain = torch.zeros(len(frame), device=frame.device)
        for start, cells in self._cells(frame):
            gain += memory.news(start, cells).sum(0)
        if self.constant == "all":
            free = (~memory.covered()).sum(1).to(frame.device)
            gain += (self._touched(frame) * free).sum(1)
        return gain

    def choose(self, count: int, rng: torch.Generator, memory: Bits) -> dict[str, Tensor]:
        return {"section": memory.pick(count, rng, usable=~self.still)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        """Toward the centre of the section, measured in widths of the unit's range."""
        unit, section = aim["section"] // self.k, aim["section"] % self.k
        low, _, width = (part.to(frame.device)[unit, 0] for part in self._geometry)
        value = frame.matrix(self.selection).gather(1, unit[:, None]).squeeze(1)
        return -(((value - low) / width - (section + 0.5)) / self.k).square()

    def tally(self, memory: Bits) -> Tally:
        units = memory.rows - (int(self.still.sum()) if self.constant == "skip" else 0)
        covered, total = memory.count(), units * self.k
        return Tally(covered / max(total, 1), covered, total, {"constant units": int(self.still.sum())})

    def _cells(self, frame: Frame) -> Iterator[tuple[int, Int[Tensor, "u m"]]]:
        """The section of every value, from 1, or 0 outside the range; for some units at a time, from number `start` on."""
        beyond = self._beyond(frame.extremes(self.selection))
        for block in frame.blocks(self.selection):
            columns = block.values.detach().t()
            for part in chunks(len(columns), max(1, CHUNK // max(1, len(frame)))):
                start = block.start + part.start
                values = columns[part].contiguous()
                outside = self._outside(values, start, beyond[start : start + len(values)])
                for cut in self._cuts:
                    cells = self._place(values, start, cut)
                    cells[outside] = 0
                    yield start, cells

    @property
    def _cuts(self) -> tuple[str, ...]:
        return ("right-open", "left-open") if self.cuts == "closed" else (self.cuts,)

    def _place(self, values: Float[Tensor, "u m"], start: int, cut: str) -> Int[Tensor, "u m"]:
        """Sections of values that are known not to lie above the range; those below it get 0."""
        low, _, width = (part[start : start + len(values)].to(values.device) for part in self._geometry)
        place = (values - low).div_(width)
        place = place.floor_().add_(1) if cut == "right-open" else place.ceil_()
        return place.clamp_(0, self.k).int().long()

    def _beyond(self, extremes: Extremes) -> Bool[Tensor, " u"]:
        """Units with a value above their range in this look, or with one that is not a number: their rows need a closer look."""
        top = self._geometry[1].squeeze(1).to(extremes.high.device)
        return ~((extremes.high < top) if self.top == "corner" else (extremes.high <= top)) | extremes.broken

    def _outside(
        self, values: Float[Tensor, "u m"], start: int, beyond: Bool[Tensor, " u"]
    ) -> tuple[Int[Tensor, " o"], Int[Tensor, " o"]]:
        """Where the values above the range are, and those that are no numbers, among the units known to have some."""
        units = beyond.nonzero().squeeze(1)
        top = self._geometry[1].to(values.device)[start + units]
        inside = (values[units] < top) if self.top == "corner" else (values[units] <= top)
        unit, row = (~inside).nonzero(as_tuple=True)
        return units[unit], row

    @cached_property
    def _geometry(self) -> tuple[Float[Tensor, "u 1"], Float[Tensor, "u 1"], Float[Tensor, "u 1"]]:
        """Where each range begins, where it ends (before everything, for a constant unit), and the width of a section."""
        still, low, high = self.still[:, None], self.range.low[:, None], self.range.high[:, None]
        return (
            low.masked_fill(still, 0),
            high.masked_fill(still, -torch.inf),
            ((high - low) / self.k).masked_fill(still, 1),
        )

    def _touched(self, frame: Frame) -> Bool[Tensor, "m u"]:
        """Where a constant unit shows its one value."""
        return (frame.matrix(self.selection) == self.range.low.to(frame.device)) & self.still.to(frame.device)
