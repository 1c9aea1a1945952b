"""Strategy vectors in use and what each of them covered, for one group of seeds or for every seed alone."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.guides.breeding import breed, greedy_cover, uniform
from hardcase.types import State


class Pools:
    """Hands out vectors. A group's pool is bred anew, from its last `memory` records, when it has been used up.

    `base` is what earlier rounds recorded; with `each`, every seed is a group of its own and starts from nothing.
    """

    def __init__(self, base: State, units: int, parents: int, memory: int, *, each: bool) -> None:
        self.parents, self.memory, self.each, self.inherited = parents, memory, each, 0
        genes = base["vector"].shape[1]
        self.pool = torch.zeros(0, 2 * parents, genes)
        self.used, self.written = (torch.zeros(0, dtype=torch.int64) for _ in range(2))
        self.vectors = torch.zeros(0, memory, genes)
        self.covers = torch.zeros(0, memory, units, dtype=torch.bool)
        self.current, self.running = torch.zeros(0, genes), torch.zeros(0, units, dtype=torch.bool)
        self.walking = torch.zeros(0, dtype=torch.bool)
        if not each and len(base["vector"]):
            self._grow(torch.zeros(1, dtype=torch.int64))
            self._file(torch.zeros(len(base["vector"]), dtype=torch.int64), base["vector"], base["cover"])
            self.inherited = len(base["vector"])

    def next(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Float[Tensor, "m f"]:
        """The next vector for each of these seeds; what their last ones covered is recorded."""
        self._grow(rows)
        group, turn = self._groups(rows)
        ended = self.walking[rows]
        self._file(group[ended], self.current[rows][ended], self.running[rows][ended])
        size, need = self.pool.shape[1], 1 if self.each else len(rows)
        over = self.used + need > size
        over[group] |= self.used[group] < 0
        self._renew(torch.zeros_like(over).index_fill_(0, group, True).logical_and(over).nonzero().squeeze(1), rng)
        vector = self.pool[group, (self.used[group] + turn) % size]
        self.used = self.used.index_add(0, group, torch.ones_like(group))
        self.current[rows], self.running[rows], self.walking[rows] = vector, False, True
        return vector

    def cover(self, rows: Int[Tensor, " m"], active: Bool[Tensor, "m u"]) -> None:
        """Note what the vectors that these seeds follow have covered."""
        self._grow(rows)
        self.running.index_put_((rows,), self.running[rows] | active)

    def made(self) -> State:
        """The records made here, oldest first, unfinished ones last."""
        if not len(self.written):
            return {"vector": self.vectors.new_zeros(0, self.vectors.shape[2]), "cover": self.covers.new_zeros(0, self.covers.shape[2])}  # fmt: skip
        total = int(self.written[0])
        fresh = min(total - self.inherited, self.memory)
        place = torch.arange(total - fresh, total, device=self.vectors.device) % self.memory
        vector = torch.cat([self.vectors[0, place], self.current[self.walking]])
        cover = torch.cat([self.covers[0, place], self.running[self.walking]])
        return {"vector": vector.cpu(), "cover": cover.cpu()}

    def _groups(self, rows: Int[Tensor, " m"]) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        """The group of each seed, and its turn within the group."""
        nothing = torch.zeros_like(rows)
        return (rows, nothing) if self.each else (nothing, torch.arange(len(rows), device=rows.device))

    def _renew(self, groups: Int[Tensor, " g"], rng: torch.Generator) -> None:
        if not len(groups):
            return
        fresh = uniform(len(groups), self.pool.shape[1], self.pool.shape[2], rng).to(groups.device)
        known = torch.arange(self.memory, device=groups.device) < self.written[groups][:, None]
        if bool(known.any()):
            best = greedy_cover(self.covers[groups], known, self.parents)
            parents = self.vectors[groups].gather(1, best[..., None].expand(-1, -1, fresh.shape[2]))
            fresh = torch.where(known.any(1)[:, None, None], breed(parents, rng), fresh)
        self.pool[groups], self.used[groups] = fresh, 0

    def _file(self, group: Int[Tensor, " m"], vector: Float[Tensor, "m f"], cover: Bool[Tensor, "m u"]) -> None:
        """Write records over the oldest ones of their groups; of more than a group can remember, the last."""
        if not self.each:
            group, vector, cover = (part[-self.memory :] for part in (group, vector, cover))
        turn = torch.zeros_like(group) if self.each else torch.arange(len(group), device=group.device)
        place = (self.written[group] + turn) % self.memory
        self.vectors[group, place], self.covers[group, place] = vector.to(group.device), cover.to(group.device)
        self.written = self.written.index_add(0, group, torch.ones_like(group))

    def _grow(self, rows: Int[Tensor, " m"]) -> None:
        """Room for these seeds, and for their groups, on their device; a new pool counts as used up."""
        seeds = 1 + int(rows.max()) if len(rows) else 0
        groups = seeds if self.each else min(seeds, 1)
        for name, size in (
            *((name, groups) for name in ("pool", "used", "written", "vectors", "covers")),
            *((name, seeds) for name in ("current", "running", "walking")),
        ):
            table: Tensor = getattr(self, name)
            missing, fill = max(0, size - len(table)), -(2**40) if name == "used" else 0
            more = torch.full((missing, *table.shape[1:]), fill, dtype=table.dtype, device=rows.device)
            setattr(self, name, torch.cat([table.to(rows.device), more]) if missing else table.to(rows.device))
