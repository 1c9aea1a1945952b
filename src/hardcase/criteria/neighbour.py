"""Nearest-neighbour novelty: an input is new if no kept one is near in the space of the watched layer.

A. Odena, C. Olsson, D. Andersen, I. Goodfellow, "TensorFuzz: debugging neural networks with coverage-guided fuzzing",
ICML 2019. The paper speaks of Euclidean distance, the code compares squared distances with the threshold; so does this.
The count of kept vectors grows with every new input and depends on their order: the first of two near ones is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.nearest import Corpus
from hardcase.criteria.units import Selection
from hardcase.tensors import chunks
from hardcase.types import State


class Kept:
    """Vectors no two of which are near, in the order in which they came.

    A fork also remembers every vector that was far from the base, kept or not: only with these can the merge of shards
    keep what one pass over all of them would have kept.
    """

    def __init__(self, width: int, threshold: float, base: Float[Tensor, "n d"] | None = None) -> None:
        self.threshold = threshold
        self.base = torch.empty(0, width) if base is None else base
        self.own, self.far = torch.empty(0, width), torch.empty(0, width)

    def add(self, vectors: Float[Tensor, "m d"]) -> None:
        """Keep, one after the other, those that are far from all kept before."""
        vectors = vectors[vectors.isfinite().all(1)]
        vectors = vectors[_squared(vectors, self.base) > self.threshold]
        self.far = torch.cat([self.far, vectors])
        self.own = self._grown(self.own, vectors)

    def distance(self, vectors: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """Squared distance to the nearest kept vector; infinite if there is none."""
        return torch.minimum(_squared(vectors, self.base), _squared(vectors, self.own))

    def all(self) -> Float[Tensor, "n d"]:
        return torch.cat([self.base, self.own])

    def fork(self) -> Kept:
        return Kept(self.base.shape[1], self.threshold, self.all())

    def delta(self) -> State:
        return {"far": self.far.clone()}

    def merge(self, deltas: Sequence[State]) -> None:
        self.base = self.all()
        for delta in deltas:
            self.base = self._grown(self.base, delta["far"])
        self.own, self.far = (torch.empty(0, self.base.shape[1]) for _ in range(2))

    def _grown(self, kept: Float[Tensor, "n d"], vectors: Float[Tensor, "m d"]) -> Float[Tensor, "k d"]:
        """What is kept once `vectors` have come one by one to those in `kept`."""
        for part in chunks(len(vectors), 1024):
            some = vectors[part]
            some = some[_squared(some, kept) > self.threshold]
            near = torch.cdist(some, some, compute_mode="donot_use_mm_for_euclid_dist").square() <= self.threshold
            kept = torch.cat([kept, some[_first_come(near)]])
        return kept


def _squared(points: Float[Tensor, "m d"], corpus: Float[Tensor, "n d"]) -> Float[Tensor, " m"]:
    if not len(corpus):
        return points.new_full((len(points),), torch.inf)
    return Corpus.of(corpus).nearest(points)[0].square()


def _first_come(near: Bool[Tensor, "m m"]) -> Bool[Tensor, " m"]:
    """Which rows a pass from first to last accepts, if it refuses every row near an accepted one."""
    before = near.tril(-1)
    accepted = torch.zeros(len(near), dtype=torch.bool, device=near.device)
    open_ = ~accepted
    while bool(open_.any()):
        accepted |= open_ & ~(before & open_).any(1)
        open_ = open_ & ~accepted & ~(near & accepted).any(1)
    return accepted


@dataclass(frozen=True)
class Novelty:
    """How many inputs were new: the number of vectors kept."""

    selection: Selection
    threshold: float = 1.0

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Kept:
        return Kept(self.selection.units, self.threshold)

    def observe(self, frame: Frame, memory: Kept) -> None:
        memory.add(frame.matrix(self.selection).cpu())

    def gain(self, frame: Frame, memory: Kept) -> Float[Tensor, " m"]:
        values = frame.matrix(self.selection).cpu()
        return (
            (memory.distance(values) > self.threshold).where(values.isfinite().all(1), False).to(frame.device).float()
        )

    def choose(self, count: int, rng: torch.Generator, memory: Kept) -> dict[str, Tensor]:
        return {}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Kept) -> Float[Tensor, " m"]:
        """Away from the nearest kept vector."""
        values, kept = frame.matrix(self.selection), memory.all().to(frame.device)
        if not len(kept):
            return values.sum(1) * 0
        _, place = Corpus.of(kept).nearest(values.detach())
        return (values - kept[place]).square().sum(1)

    def tally(self, memory: Kept) -> Tally:
        count = len(memory.base) + len(memory.own)
        return Tally(float(count), count)
