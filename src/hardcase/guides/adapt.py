"""ADAPT's neuron selection: strategy vectors over unit features, learnt while fuzzing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.guides.units import Hits, UnitGuide, Units, grown, row_of, unseen
from hardcase.randomness import Rng
from hardcase.registry import guide
from hardcase.types import Oracle, Probe, State, Targets

# S. Lee, S. Cha, D. Lee, H. Oh, "Effective white-box testing of deep neural networks with adaptive
# neuron-selection strategy", ISSTA 2020. Features 0 to 16 never change; 17 to 28 follow the search.
# A score is the sum of a strategy vector's entries at the features that a unit has, so nothing of
# size units times 29 is ever built for a batch.

FEATURES = 29
CONSTANT = 17
KINDS = ("norm", "pool", "conv", "linear", "activation", "join", "other")


def constant(
    widths: Sequence[int], kinds: Sequence[str], weight: Float[Tensor, " u"]
) -> Float[Tensor, "u 17"]:
    """The fixed features of the units of layers with these widths and kinds.

    0-3: quarter of the network's depth. 4-9: rank of the mean incoming weight over the network
    (first to fifth tenth, lower half). 10-16: kind of layer.
    """
    units = sum(widths)
    table = torch.zeros(sum(widths), CONSTANT)
    number = torch.arange(units)
    layer = torch.arange(len(widths)).repeat_interleave(torch.tensor(widths))
    table[number, (4 * layer // len(widths)).clamp_max(3)] = 1
    heavy = (~weight.isnan()).nonzero().squeeze(1)
    order = heavy[weight[heavy].argsort(descending=True, stable=True)]
    tenth = (10 * torch.arange(len(order)) // max(1, len(order))).clamp_max(5)
    table[order, 4 + tenth] = 1
    places = dict(zip(KINDS, range(len(KINDS))))
    kind = torch.tensor([places.get(k, len(KINDS) - 1) for k in kinds])
    table[number, 10 + kind[layer]] = 1
    return table


def score(
    vector: Float[Tensor, "m 29"],
    fixed: Float[Tensor, "u 17"],
    failing: Bool[Tensor, "m u"],
    hits: Int[Tensor, "m u"],
) -> Float[Tensor, "m u"]:
    """What each row's strategy vector thinks of each unit.

    17: was active in a failing input. 18: never covered. 19-28: tenth of the hit count among
    covered units, most hit first.
    """
    base = vector[:, :CONSTANT] @ fixed.T
    tenth = tenths(hits)
    place = torch.where(tenth < 0, 18, 19 + tenth)
    return base + failing * vector[:, 17:18] + vector.gather(1, place)


def tenths(hits: Int[Tensor, "m u"]) -> Int[Tensor, "m u"]:
    """The tenth of the covered units in which each is by its hits; -1: never covered."""
    order = hits.argsort(dim=1, descending=True, stable=True)
    number = torch.arange(hits.shape[1], device=hits.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, number)
    covered = (hits > 0).sum(1, keepdim=True)
    return torch.where(hits > 0, 10 * rank // covered.clamp_min(1), -1)


# How ADAPT breeds strategy vectors, for `g` groups at once: all images together, or each alone.

LIMIT = 5.0
"""Entries of a strategy vector lie between minus and plus this."""


def greedy_cover(
    covered: Bool[Tensor, "g r u"], known: Bool[Tensor, "g r"], count: int
) -> Int[Tensor, "g c"]:
    """`count` records of each group: those that together cover most, taken greedily (ties to the
    earlier), then, once nothing is left to add, those that cover most alone, in order; these may
    repeat.
    """
    alone = covered.sum(2).masked_fill(~known, -1)
    order = alone.argsort(dim=1, descending=True, stable=True)
    left = covered & known[..., None]
    filled = torch.zeros(len(covered), dtype=torch.int64, device=covered.device)
    picks = []
    for _ in range(count):
        fresh = left.sum(2)
        adds = fresh.amax(1)
        best = (fresh == adds[:, None]).int().argmax(1)  # the first place that adds most
        spare = order.gather(1, filled[:, None]).squeeze(1)
        # Once every unit is covered, records are repeated in the order of what they cover alone.
        pick = torch.where(adds > 0, best, spare)
        filled = (filled + (adds == 0).long()) % known.sum(1).clamp_min(1)
        left = left & ~covered.gather(1, pick[:, None, None].expand(-1, 1, covered.shape[2]))
        picks.append(pick)
    return torch.stack(picks, 1)


def breed(
    parents: Float[Tensor, "g c f"], groups: Int[Tensor, " g"], rng: Rng
) -> Float[Tensor, "g p f"]:
    """Two children of each pair of shuffled parents: mixed genes plus normal noise, clipped."""

    def shuffled() -> Float[Tensor, "g c f"]:
        order = rng.permutation(groups, parents.shape[1])
        return parents.gather(1, order[..., None].expand_as(parents))

    first, second = (shuffled().repeat_interleave(2, 1) for _ in range(2))
    mask = rng.uniform(groups, first.shape[1:]) < 0.5
    noise = rng.normal(groups, first.shape[1:])
    return (torch.where(mask, first, second) + noise).clamp(-LIMIT, LIMIT)


# Strategy vectors in use and what each of them covered.


class Pools:
    """Hands out vectors; a used-up pool is bred anew from its group's last `memory` records."""

    def __init__(self, base: State, units: int, parents: int, memory: int, *, each: bool) -> None:
        self.parents = parents
        self.memory = memory
        self.each = each
        self.inherited = 0
        genes = base["vector"].shape[1]
        self.pool = torch.zeros(0, 2 * parents, genes)
        self.used, self.written = (torch.zeros(0, dtype=torch.int64) for _ in range(2))
        self.vectors = torch.zeros(0, memory, genes)
        self.covers = torch.zeros(0, memory, units, dtype=torch.bool)
        self.current = torch.zeros(0, genes)
        self.running = torch.zeros(0, units, dtype=torch.bool)
        self.walking = torch.zeros(0, dtype=torch.bool)
        if not each and len(base["vector"]):
            group = torch.zeros(len(base["vector"]), dtype=torch.int64)
            self._grow(group)
            self._file(group, base["vector"], base["cover"])
            self.inherited = len(group)

    def next(self, rows: Int[Tensor, " m"], rng: Rng) -> Float[Tensor, "m f"]:
        """The next vector for each of these images; what their last ones covered is recorded."""
        self._grow(rows)
        group, turn = self._groups(rows)
        ended = self.walking[rows]
        self._file(group[ended], self.current[rows][ended], self.running[rows][ended])
        size = self.pool.shape[1]
        need = len(rows)
        if self.each:
            need = 1
        over = (self.used + need > size) | (self.used < 0)
        in_group = torch.zeros_like(over).index_fill_(0, group, True)
        self._renew((over & in_group).nonzero().squeeze(1), rng)
        vector = self.pool[group, (self.used[group] + turn) % size]
        self.used = self.used.index_add(0, group, torch.ones_like(group))
        self.current[rows] = vector
        self.running[rows] = False
        self.walking[rows] = True
        return vector

    def cover(self, rows: Int[Tensor, " m"], active: Bool[Tensor, "m u"]) -> None:
        """Note what the vectors that these images follow have covered."""
        self._grow(rows)
        self.running.index_put_((rows,), self.running[rows] | active)

    def made(self) -> State:
        """The records of this guide, oldest first, unfinished ones last."""
        if not len(self.written):
            return {"vector": self.vectors.flatten(0, 1), "cover": self.covers.flatten(0, 1)}
        total = int(self.written[0])
        fresh = min(total - self.inherited, self.memory)
        place = torch.arange(total - fresh, total, device=self.vectors.device) % self.memory
        vector = torch.cat([self.vectors[0, place], self.current[self.walking]])
        cover = torch.cat([self.covers[0, place], self.running[self.walking]])
        return {"vector": vector.cpu(), "cover": cover.cpu()}

    def _groups(self, rows: Int[Tensor, " m"]) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        """The group of each image, and its turn within the group."""
        turn = torch.arange(len(rows), device=rows.device)
        return rows * self.each, turn * (not self.each)

    def _renew(self, groups: Int[Tensor, " g"], rng: Rng) -> None:
        if not len(groups):
            return
        fresh = (rng.uniform(groups, self.pool.shape[1:]) * 2 - 1) * LIMIT
        written = torch.arange(self.memory, device=groups.device) < self.written[groups][:, None]
        if bool(written.any()):
            best = greedy_cover(self.covers[groups], written, self.parents)
            parents = self.vectors[groups].gather(1, best[..., None].expand(-1, -1, fresh.shape[2]))
            fresh = torch.where(written.any(1)[:, None, None], breed(parents, groups, rng), fresh)
        self.pool[groups] = fresh
        self.used[groups] = 0

    def _file(
        self, group: Int[Tensor, " m"], vector: Float[Tensor, "m f"], cover: Bool[Tensor, "m u"]
    ) -> None:
        """Write records over the oldest ones of their groups."""
        if not self.each:
            group, vector, cover = (part[-self.memory :] for part in (group, vector, cover))
        _, turn = self._groups(group)
        place = (self.written[group] + turn) % self.memory
        self.vectors[group, place] = vector.to(group.device)
        self.covers[group, place] = cover.to(group.device)
        self.written = self.written.index_add(0, group, torch.ones_like(group))

    def _grow(self, rows: Int[Tensor, " m"]) -> None:
        """Make room for these images and their groups; a new pool counts as used up."""
        groups, _ = self._groups(rows)
        for name in ("pool", "written", "vectors", "covers"):
            setattr(self, name, grown(getattr(self, name), groups))
        self.used = grown(self.used, groups, -(2**40))
        for name in ("current", "running", "walking"):
            setattr(self, name, grown(getattr(self, name), rows))


# ADAPT's neuron selection.


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How strategy vectors are learnt.

    Args:
        parents: Vectors that breed; a pool has twice as many.
        memory: Last records, which breed the next pool.
        alone: Every seed learns for itself; else a shard shares a pool and hands it on.
    """

    parents: int = 50
    memory: int = 300
    alone: bool = False


@guide("adapt", needs="gradients", paper="Lee, Cha, Lee and Oh, ISSTA 2020")
class Adaptive(UnitGuide):
    """Picks, for each list, the `count` units that its strategy vector scores highest; a list that
    starts again takes the next vector. What a vector covered from start to end of its list is its
    record.

    Args:
        name: The target by which it names units.
        units: The neurons to choose from.
        fixed: The features that never change.
        oracle: Says which candidates fail.
        count: Units that are pushed at a time.
        learning: How vectors are learnt.
        hits: How often each unit was covered.
        failing: The same by failing candidates.
        records: What each vector covered.
    """

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
        super().__init__(name, units, count, hits or Hits(units.count, each=True))
        self.failing = failing or Hits(units.count, each=True)
        self.fixed = fixed
        self.oracle = oracle
        self.learning = learning
        self.base = records or {
            "vector": torch.empty(0, FEATURES),
            "cover": torch.empty(0, units.count, dtype=torch.bool),
        }
        self.pools = Pools(
            self.base, units.count, learning.parents, learning.memory, each=learning.alone
        )

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        return self._targets(rows, self.pools.next(rows, rng))

    def follow(self, rows: Int[Tensor, " m"], targets: Targets, rng: Rng) -> Targets:
        """A list that goes on keeps its vector, but what the vector likes best may have changed."""
        return self._targets(rows, targets[f"{self.name}/vector"])

    def update(self, probe: Probe) -> None:
        new = unseen(probe)
        rows = row_of(probe)[new]
        active = self.active(probe)[new]
        failing = self.oracle(probe)[new]
        self.hits.add(rows, active)
        self.failing.add(rows, active & failing[:, None])
        if "row" in probe.targets:
            self.pools.cover(rows, active)

    def fork(self) -> Adaptive:
        parts = (self.name, self.units, self.fixed, self.oracle, self.count, self.learning)
        return Adaptive(
            *parts, hits=self.hits.fork(), failing=self.failing.fork(), records=self.base
        )

    def delta(self) -> State:
        tables = {"hits": self.hits.delta()["hits"], "failing": self.failing.delta()["hits"]}
        if self.learning.alone:
            return tables
        return {**tables, **self.pools.made()}

    def merge(self, deltas: Sequence[State]) -> None:
        self.hits.merge([{"hits": delta["hits"]} for delta in deltas])
        self.failing.merge([{"hits": delta["failing"]} for delta in deltas])
        if not self.learning.alone:
            joined = {
                key: torch.cat([self.base[key], *(delta[key] for delta in deltas)])
                for key in self.base
            }
            self.base = {key: value[-self.learning.memory :] for key, value in joined.items()}

    def _targets(self, rows: Int[Tensor, " m"], vector: Float[Tensor, "m 29"]) -> Targets:
        scores = score(
            vector, self.fixed.to(vector.device), self.failing.of(rows) > 0, self.hits.of(rows)
        )
        unit = scores.argsort(dim=1, descending=True, stable=True)[:, : self.count]
        return {f"{self.name}/unit": unit, f"{self.name}/vector": vector}
