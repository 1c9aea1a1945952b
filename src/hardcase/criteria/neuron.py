"""Neuron coverage: which units were active for some input.

K. Pei, Y. Cao, J. Yang, S. Jana, "DeepXplore: automated whitebox testing of deep learning systems", SOSP 2017.

Differences: the paper writes "for all inputs" where "for some input" is meant. Not-a-number covers nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.criteria.bits import Bits
from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.memory import Folded
from hardcase.criteria.units import RAW, Scaling, Selection
from hardcase.types import State


@dataclass(frozen=True)
class Activated:
    """Units above a threshold for some input: NC. `scaling` per input or over the suite, else raw values."""

    selection: Selection
    threshold: float = 0.0
    scaling: Scaling = RAW

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Bits:
        return Bits(self.selection.units)

    def observe(self, frame: Frame, memory: Bits) -> None:
        if self.scaling.per == "none":
            most = frame.extremes(self.selection).high
        else:
            most = frame.scaled(self.selection, self.scaling).nan_to_num(nan=-torch.inf).amax(0)
        memory.cover((most > self.threshold)[:, None])

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        fresh = ~memory.covered()[:, 0].to(frame.device)
        return ((self._values(frame) > self.threshold) & fresh).sum(1).float()

    def choose(self, count: int, rng: torch.Generator, memory: Bits) -> dict[str, Tensor]:
        return {"unit": memory.pick(count, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        """The unit's own value: up."""
        return self._values(frame).gather(1, aim["unit"][:, None]).squeeze(1)

    def tally(self, memory: Bits) -> Tally:
        covered = memory.count()
        return Tally(covered / memory.rows, covered, memory.rows)

    def _values(self, frame: Frame) -> Float[Tensor, "m u"]:
        plain = self.scaling.per == "none"
        return frame.matrix(self.selection) if plain else frame.scaled(self.selection, self.scaling)


@dataclass(frozen=True)
class SuiteActivated:
    """NC scaled by the extremes that each layer reached over the whole suite: a later input can uncover a unit again."""

    selection: Selection
    threshold: float = 0.5

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Folded:
        nothing = torch.full((self.selection.units,), torch.inf)
        return Folded({"low": nothing, "high": -nothing}, _wider)

    def observe(self, frame: Frame, memory: Folded) -> None:
        extremes = frame.extremes(self.selection)
        memory.add({"low": extremes.low, "high": extremes.high})

    def gain(self, frame: Frame, memory: Folded) -> Float[Tensor, " m"]:
        """Units that the row alone would raise above the threshold, the layers' extremes staying as they are."""
        seen = memory.total()
        low, width = (part.to(frame.device) for part in self._scale(seen))
        above = (frame.matrix(self.selection) - low) > self.threshold * width
        return (above & ~self._covered(seen).to(frame.device)).sum(1).float()

    def choose(self, count: int, rng: torch.Generator, memory: Folded) -> dict[str, Tensor]:
        table = Bits(self.selection.units)
        table.cover(self._covered(memory.total())[:, None])
        return {"unit": table.pick(count, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Folded) -> Float[Tensor, " m"]:
        return frame.matrix(self.selection).gather(1, aim["unit"][:, None]).squeeze(1)

    def tally(self, memory: Folded) -> Tally:
        covered = int(self._covered(memory.total()).sum())
        return Tally(covered / self.selection.units, covered, self.selection.units)

    def _scale(self, seen: State) -> tuple[Float[Tensor, " u"], Float[Tensor, " u"]]:
        lows, highs = (torch.split(seen[name], list(self.selection.widths)) for name in ("low", "high"))
        low = torch.cat([part.amin().expand(len(part)) for part in lows])
        return low, torch.cat([part.amax().expand(len(part)) for part in highs]) - low

    def _covered(self, seen: State) -> Bool[Tensor, " u"]:
        low, width = self._scale(seen)
        return (seen["high"] - low) > self.threshold * width


def _wider(a: State, b: State) -> State:
    return {"low": torch.minimum(a["low"], b["low"]), "high": torch.maximum(a["high"], b["high"])}
