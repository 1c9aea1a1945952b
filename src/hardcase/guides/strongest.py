"""MaXplore's targets: single units, or those that are strongest on the seed, filter by filter or layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.types import Aim, Probe, State, Tap


class Strongest:
    """For walk number w, the `k` units of group w (``groups[w]``: the first of its units and their number) that are strongest on
    the seed. Groups of one unit each are One-MaXplore. It remembers the seeds of a shard and hands nothing on."""

    def __init__(
        self,
        name: str,
        read: Callable[[Probe], Float[Tensor, "m u"]],
        taps: Mapping[str, Tap],
        groups: Int[Tensor, "w 2"],
        k: int,
    ) -> None:
        self.name, self.read, self.taps, self.groups = name, read, taps, groups
        self.k = min(k, int(groups[:, 1].min()))
        self.units = torch.zeros(0, len(groups), self.k, dtype=torch.int64)

    @property
    def walks(self) -> int:
        return len(self.groups)

    def choose(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        """A group drawn at random, where no walk was named."""
        walk = torch.randint(len(self.groups), (len(rows),), generator=rng, device=rng.device).to(rows.device)
        return self.follow(rows, {"walk": walk}, rng)

    def follow(self, rows: Int[Tensor, " m"], aim: Aim, rng: torch.Generator) -> Aim:
        if "walk" not in aim:
            return {f"{self.name}/unit": aim[f"{self.name}/unit"]}
        self._grow(rows)
        return {f"{self.name}/unit": self.units[rows, aim["walk"]]}

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        return torch.zeros(len(probe.logits), device=probe.logits.device)

    def update(self, probe: Probe) -> None:
        """Note the strongest units of each group when a seed itself is looked at."""
        if "row" not in probe.aim or f"{self.name}/unit" in probe.aim:
            return
        rows, values = probe.aim["row"], self.read(probe)
        self._grow(rows)
        start, size = (part.to(values.device)[:, None] for part in self.groups.t())
        inside = torch.arange(int(size.max()), device=values.device)
        shown = values[:, (start + inside).clamp_max(values.shape[1] - 1)]  # m w s
        best = shown.masked_fill(inside >= size, -torch.inf).argsort(dim=2, descending=True, stable=True)
        self.units[rows] = start + best[..., : self.k]

    def fork(self) -> Strongest:
        return Strongest(self.name, self.read, self.taps, self.groups, self.k)

    def delta(self) -> State:
        return {}

    def merge(self, deltas: Sequence[State]) -> None:
        """Seeds are looked at afresh in every shard."""

    def _grow(self, rows: Int[Tensor, " m"]) -> None:
        missing = max(0, (1 + int(rows.max()) if len(rows) else 0) - len(self.units))
        more = torch.zeros(missing, *self.units.shape[1:], dtype=torch.int64, device=rows.device)
        self.units = torch.cat([self.units.to(rows.device), more])
