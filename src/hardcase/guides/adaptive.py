"""ADAPT's neuron selection: strategy vectors that score units by their features, and learn which of them cover most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.guides.features import FEATURES, score
from hardcase.guides.hits import Hits, Sight, Units, row_of, unseen
from hardcase.guides.pools import Pools
from hardcase.types import Aim, Oracle, Probe, State, Tap


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Twice `parents` vectors at a time; the last `memory` records breed the next ones. `alone`: every seed learns for itself;
    otherwise the seeds of a shard share one pool and hand on what they learnt. Coverage is every seed's own either way, or
    the shard's if `together`."""

    parents: int = 50
    memory: int = 300
    alone: bool = False
    together: bool = False


class Adaptive:
    """Picks, for each list, the `count` units that its strategy vector scores highest; a list that starts again takes the next
    vector. What a vector covered from start to end of its list is its record."""

    def __init__(
        self,
        name: str,
        units: Units,
        fixed: Float[Tensor, "u 17"],
        oracle: Oracle,
        count: int,
        learning: Learning,
        *,
        hits: Hits | None = None,
        failing: Hits | None = None,
        records: State | None = None,
    ) -> None:
        self.name, self.units, self.fixed, self.oracle, self.learning = name, units, fixed, oracle, learning
        self.count, self.sight = min(count, units.count), Sight(units)
        self.hits, self.failing = (table or Hits(units.count, each=not learning.together) for table in (hits, failing))
        self.base = records or {
            "vector": torch.empty(0, FEATURES),
            "cover": torch.empty(0, units.count, dtype=torch.bool),
        }
        self.pools = Pools(self.base, units.count, learning.parents, learning.memory, each=learning.alone)

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.units.taps

    def choose(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        return self._aim(rows, self.pools.next(rows, rng))

    def follow(self, rows: Int[Tensor, " m"], aim: Aim, rng: torch.Generator) -> Aim:
        """A list that goes on keeps its vector, but what the vector likes best may have changed."""
        return self._aim(rows, aim[f"{self.name}/vector"])

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        rows = row_of(probe)
        return (self.sight.of(probe)[1] & (self.hits.of(rows) == 0)).sum(1).float()

    def update(self, probe: Probe) -> None:
        new = unseen(probe)
        rows, active, failing = row_of(probe)[new], self.sight.of(probe)[1][new], self.oracle(probe)[new]
        self.sight.forget()
        self.hits.add(rows, active)
        self.failing.add(rows, active & failing[:, None])
        if "row" in probe.aim:
            self.pools.cover(rows, active)

    def fork(self) -> Adaptive:
        parts = (self.name, self.units, self.fixed, self.oracle, self.count, self.learning)
        return Adaptive(*parts, hits=self.hits.fork(), failing=self.failing.fork(), records=self.base)

    def delta(self) -> State:
        tables = {"hits": self.hits.delta()["hits"], "failing": self.failing.delta()["hits"]}
        return tables if self.learning.alone else {**tables, **self.pools.made()}

    def merge(self, deltas: Sequence[State]) -> None:
        self.hits.merge([{"hits": delta["hits"]} for delta in deltas])
        self.failing.merge([{"hits": delta["failing"]} for delta in deltas])
        if not self.learning.alone:
            joined = {key: torch.cat([self.base[key], *(delta[key] for delta in deltas)]) for key in self.base}
            self.base = {key: value[-self.learning.memory :] for key, value in joined.items()}

    def _aim(self, rows: Int[Tensor, " m"], vector: Float[Tensor, "m 29"]) -> Aim:
        scores = score(vector, self.fixed.to(vector.device), self.failing.of(rows) > 0, self.hits.of(rows))
        unit = scores.argsort(dim=1, descending=True, stable=True)[:, : self.count]
        return {f"{self.name}/unit": unit, f"{self.name}/vector": vector}
