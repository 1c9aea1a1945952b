"""How often each unit was covered, for all seeds together or for each of them alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.types import Probe, State, Tap


@runtime_checkable
class Units(Protocol):
    """The units of a network: their values scaled to [0, 1], and which of them a look covers."""

    @property
    def taps(self) -> Mapping[str, Tap]: ...

    @property
    def count(self) -> int: ...

    def scaled(self, probe: Probe) -> Float[Tensor, "m u"]: ...

    def active(self, probe: Probe, scaled: Float[Tensor, "m u"] | None = None) -> Bool[Tensor, "m u"]: ...


class Sight:
    """What a look covers, worked out once for a gain and the update that follows it."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self._last: tuple[Probe, Tensor, Tensor] | None = None

    def of(self, probe: Probe) -> tuple[Float[Tensor, "m u"], Bool[Tensor, "m u"]]:
        """The units' scaled values, and which of them are covered."""
        if self._last is None or self._last[0] is not probe:
            scaled = self.units.scaled(probe)
            self._last = (probe, scaled, self.units.active(probe, scaled))
        return self._last[1], self._last[2]

    def forget(self) -> None:
        self._last = None


class Hits:
    """Hit counts of `units`: one table for all seeds, or (`each`) a row of it for every seed of a shard.

    A shared table merges by addition. Tables of single seeds belong to their shard and are not handed on; their sums are.
    """

    def __init__(self, units: int, *, each: bool = False, base: Int[Tensor, " u"] | None = None) -> None:
        self.units, self.each = units, each
        self.base = torch.zeros(units, dtype=torch.int64) if base is None else base
        self.own = torch.zeros(1, units, dtype=torch.int64)

    def of(self, rows: Int[Tensor, " m"]) -> Int[Tensor, "m u"]:
        """The counts that matter to these seeds."""
        if not self.each:
            return (self.base.to(rows.device) + self._table(rows, 1)[0]).expand(len(rows), -1)
        return self._table(rows, 1 + int(rows.max()) if len(rows) else 1)[rows]

    def add(self, rows: Int[Tensor, " m"], active: Bool[Tensor, "m u"]) -> None:
        if self.each and len(rows):
            self._table(rows, 1 + int(rows.max())).index_add_(0, rows, active.long())
        elif len(rows):
            self._table(rows, 1)[0] += active.sum(0)

    def fork(self) -> Hits:
        return Hits(self.units, each=self.each, base=self.base + self.own.sum(0).to(self.base.device))

    def delta(self) -> State:
        return {"hits": self.own.sum(0).cpu()}

    def merge(self, deltas: Sequence[State]) -> None:
        self.base = self.base + self.own.sum(0).to(self.base.device)
        for delta in deltas:
            self.base = self.base + delta["hits"].to(self.base.device)
        self.own = torch.zeros(1, self.units, dtype=torch.int64)

    def _table(self, rows: Tensor, size: int) -> Int[Tensor, "g u"]:
        missing = max(0, size - len(self.own))
        self.own = torch.nn.functional.pad(self.own.to(rows.device), (0, 0, 0, missing))
        return self.own


def row_of(probe: Probe) -> Int[Tensor, " m"]:
    """The seeds' places in their shard as the search told them; the first one's where it did not."""
    told = probe.aim.get("row")
    return torch.zeros_like(probe.origin.y) if told is None else told


def unseen(probe: Probe) -> Bool[Tensor, " m"]:
    """Rows that are looked at for the first time, as far as the search tells."""
    told = probe.aim.get("seen")
    return torch.ones_like(probe.origin.y, dtype=torch.bool) if told is None else ~told
