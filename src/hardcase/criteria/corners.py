"""Neuron boundary coverage (NBC), strong neuron activation coverage (SNAC), and SNAC by layer: units beyond their range.

L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018; Layer-SNAC: the
MaXplore report (Topk-MaXplore). The texts write closed corners; here a corner is open unless the convention says
otherwise. The counting of units with both corners seen is that of the project "Adversarial image generation based on various
neuron coverage". Not-a-number reaches no corner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.criteria.bits import Bits
from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.memory import Counted, Folded, summed
from hardcase.criteria.ranges import Range
from hardcase.criteria.units import Selection


@dataclass(frozen=True)
class Corners:
    """Units seen beyond their training range: NBC (both sides) and SNAC (above).

    `widen` moves the bounds out by that many standard deviations; `equal` says where a value on the bound counts; `count`
    what is counted: every corner, units with both corners seen, or with either.
    """

    selection: Selection
    range: Range
    sides: Literal["both", "above"] = "both"
    widen: float = 0.0
    equal: Literal["none", "above", "both"] = "none"
    count: Literal["corners", "both", "either"] = "corners"

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    @property
    def columns(self) -> int:
        return 2 if self.sides == "both" else 1

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.columns)

    def observe(self, frame: Frame, memory: Bits) -> None:
        extremes = frame.extremes(self.selection)
        memory.cover(self._beyond(extremes.high, extremes.low))

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        values = frame.matrix(self.selection)
        return (self._beyond(values, values) & ~memory.covered().to(frame.device)).flatten(1).sum(1).float()

    def choose(self, count: int, rng: torch.Generator, memory: Bits) -> dict[str, Tensor]:
        return {"corner": memory.pick(count, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        """Beyond the bound: up for an upper corner, down for a lower one, measured in widths of the unit's range."""
        unit, below = aim["corner"] // self.columns, aim["corner"] % self.columns == 1
        low, high = (bound.to(frame.device)[unit] for bound in self.bounds)
        value = frame.matrix(self.selection).gather(1, unit[:, None]).squeeze(1)
        return torch.where(below, low - value, value - high) / torch.where(high > low, high - low, 1)

    def tally(self, memory: Bits) -> Tally:
        cells = memory.covered()
        counted = {"corners": cells, "both": cells.all(1), "either": cells.any(1)}[self.count]
        covered = int(counted.sum())
        names = ("above", "below")[: self.columns]
        return Tally(
            covered / counted.numel(), covered, counted.numel(), dict(zip(names, cells.sum(0).tolist(), strict=True))
        )

    @property
    def bounds(self) -> tuple[Float[Tensor, " u"], Float[Tensor, " u"]]:
        margin = self.widen * self.range.variance.sqrt()
        return self.range.low - margin, self.range.high + margin

    def _beyond(self, high: Float[Tensor, "*m u"], low: Float[Tensor, "*m u"]) -> Bool[Tensor, "*m u s"]:
        """Which corners are reached by these greatest and least values: above first, then below."""
        least, most = (bound.to(high.device) for bound in self.bounds)
        above = (high > most) if self.equal == "none" else (high >= most)
        if self.sides == "above":
            return above[..., None]
        return torch.stack([above, (low <= least) if self.equal == "both" else (low < least)], -1)


@dataclass(frozen=True)
class LayerCorners:
    """SNAC of each layer, over the suite and as the mean over inputs: Layer-SNAC.

    Differences: MaXplore fills its table from zero and raises it to each seed's own values first; here the bound is the
    training maximum alone. Its first layer is left out in its plots; here every chosen layer is reported.
    """

    corners: Corners

    @property
    def selections(self) -> tuple[Selection, ...]:
        return self.corners.selections

    def memory(self) -> Counted:
        layers = len(self.corners.selection.widths)
        zeros = {"beyond": torch.zeros(layers, dtype=torch.int64), "inputs": torch.zeros(1, dtype=torch.int64)}
        return Counted(self.corners.memory(), Folded(zeros, summed))

    def observe(self, frame: Frame, memory: Counted) -> None:
        self.corners.observe(frame, memory.bits)
        values = frame.layers(self.corners.selection)
        bounds = torch.split(self.corners.bounds[1].to(frame.device), list(self.corners.selection.widths))
        beyond = torch.stack(
            [((v > b) if self.corners.equal == "none" else (v >= b)).sum() for v, b in zip(values, bounds, strict=True)]
        )
        memory.sums.add({"beyond": beyond, "inputs": torch.tensor([len(frame)])})

    def gain(self, frame: Frame, memory: Counted) -> Float[Tensor, " m"]:
        return self.corners.gain(frame, memory.bits)

    def choose(self, count: int, rng: torch.Generator, memory: Counted) -> dict[str, Tensor]:
        return self.corners.choose(count, rng, memory.bits)

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Counted) -> Float[Tensor, " m"]:
        return self.corners.pull(frame, aim, memory.bits)

    def tally(self, memory: Counted) -> Tally:
        """The mean over layers of the share of units seen above their range; the layers themselves in `detail`."""
        selection, sums = self.corners.selection, memory.sums.total()
        parts = torch.split(memory.bits.covered()[:, 0], list(selection.widths))
        shares, inputs = [part.double().mean().item() for part in parts], max(1, int(sums["inputs"]))
        means = (sums["beyond"].double() / inputs / torch.tensor(selection.widths)).tolist()
        layers = {
            name: {"suite": s, "mean input": i} for name, s, i in zip(selection.names, shares, means, strict=True)
        }
        covered = memory.bits.count()
        return Tally(sum(shares) / len(shares), covered, selection.units, {"layers": layers})
