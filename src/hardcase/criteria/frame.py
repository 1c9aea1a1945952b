"""What one look shows to the criteria. Work that several of them need (matrices, extremes, top units) is done once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.strongest import WIDE, strongest
from hardcase.criteria.units import Scaling, Selection
from hardcase.tensors import chunks
from hardcase.types import Probe

CHUNK = 2**18
"""Values worked on at a time, so that they stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive units of a selection as one matrix; `start` is the number of the first."""

    start: int
    values: Float[Tensor, "m u"]

    @property
    def stop(self) -> int:
        return self.start + self.values.shape[1]


@dataclass(frozen=True, slots=True)
class Extremes:
    """The least and the greatest number of each unit in one look; a unit that shows no number has +inf and -inf.

    `broken`: units that show something that is not a number.
    """

    low: Float[Tensor, " u"]
    high: Float[Tensor, " u"]
    broken: Bool[Tensor, " u"]


class Frame:
    """Activations and answers of `m` rows, with the labels and seeds they belong to where these are known."""

    def __init__(
        self,
        activations: Mapping[str, Tensor],
        logits: Float[Tensor, "m k"],
        *,
        labels: Int[Tensor, " m"] | None = None,
        ids: Int[Tensor, " m"] | None = None,
        are_seeds: Bool[Tensor, " m"] | None = None,
    ) -> None:
        self.activations, self.logits = activations, logits
        self.labels, self.ids, self.are_seeds = labels, ids, are_seeds
        self._memo = dict[Hashable, Any]()

    @staticmethod
    def of(probe: Probe) -> Frame:
        same = (probe.x.detach() == probe.origin.x).flatten(1).all(1) if probe.x.shape == probe.origin.x.shape else None
        return Frame(probe.activations, probe.logits, labels=probe.origin.y, ids=probe.origin.id, are_seeds=same)

    @staticmethod
    def join(frames: Sequence[Frame]) -> Frame:
        """The rows of several frames as one; all of them know the same things."""
        names = frames[0].activations
        activations = {name: torch.cat([frame.activations[name] for frame in frames]) for name in names}
        known = {what: [getattr(frame, what) for frame in frames] for what in ("labels", "ids", "are_seeds")}
        joined = {what: None if parts[0] is None else torch.cat(parts) for what, parts in known.items()}
        return Frame(activations, torch.cat([frame.logits for frame in frames]), **joined)

    def only(self, selections: Iterable[Selection]) -> Frame:
        """This frame with nothing but what the selections read."""
        kept = {name: value for s in selections for name, value in s.reduced(self.activations).items()}
        return Frame(kept, self.logits, labels=self.labels, ids=self.ids, are_seeds=self.are_seeds)

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def predicted(self) -> Int[Tensor, " m"]:
        return self.logits.argmax(1)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` returned the first time this frame was asked for `key`."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]

    def layers(self, selection: Selection) -> list[Float[Tensor, "m w"]]:
        values: list[Tensor] = self.once(("layers", selection), lambda: selection.read(self.activations))
        return values

    def matrix(self, selection: Selection) -> Float[Tensor, "m u"]:
        values: Tensor = self.once(("matrix", selection), lambda: torch.cat(self.layers(selection), 1))
        return values

    def blocks(self, selection: Selection) -> list[Block]:
        """The units in blocks: wide layers alone, neighbouring narrow ones together."""
        blocks: list[Block] = self.once(("blocks", selection), lambda: _blocks(selection, self.layers(selection)))
        return blocks

    def extremes(self, selection: Selection) -> Extremes:
        extremes: Extremes = self.once(("extremes", selection), lambda: _extremes(self.blocks(selection)))
        return extremes

    def top(self, selection: Selection, k: int) -> Int[Tensor, "m l k"]:
        """The numbers of each layer's `k` greatest units, greatest first, ties to the lower number; -1 where there is none."""
        top: Tensor = self.once(("top", selection, k), lambda: self._top(selection, k))
        return top

    def _top(self, selection: Selection, k: int) -> Int[Tensor, "m l k"]:
        clean = not bool(self.extremes(selection).broken.any())
        return strongest(self.layers(selection), selection.starts, k, clean=clean)

    def scaled(self, selection: Selection, scaling: Scaling) -> Float[Tensor, "m u"]:
        """The units scaled to [0, 1] by the extremes of their layer in the same row; a constant layer gives 0."""
        values: Tensor = self.once(("scaled", selection, scaling), lambda: self._scaled(selection, scaling))
        return values

    def _scaled(self, selection: Selection, scaling: Scaling) -> Float[Tensor, "m u"]:
        parts = []
        for values, (low, high) in zip(self.layers(selection), selection.ranges(self.activations), strict=True):
            width = high - low + scaling.epsilon
            parts.append((values - low) / torch.where(width > 0, width, 1))
        return torch.cat(parts, 1)


def _blocks(selection: Selection, layers: list[Tensor]) -> list[Block]:
    blocks, pending = list[Block](), list[Tensor]()
    for start, values in zip(selection.starts, layers, strict=True):
        if values.shape[1] > WIDE:
            blocks += [_joined(pending, start), Block(start, values)]
            pending = []
        else:
            pending.append(values)
    blocks.append(_joined(pending, selection.units))
    return [block for block in blocks if block.values.shape[1]]


def _joined(parts: list[Tensor], stop: int) -> Block:
    width = sum(part.shape[1] for part in parts)
    values = torch.cat(parts, 1) if len(parts) > 1 else parts[0] if parts else torch.empty(0, 0)
    return Block(stop - width, values)


def _extremes(blocks: list[Block]) -> Extremes:
    pairs = [(part.amin(0), part.amax(0)) for block in blocks for part in _pieces(block.values.detach())]
    low, high = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    broken = high.isnan()
    if bool(broken.any()):
        marked = [(block.values.detach(), block.values.isnan()) for block in blocks]
        low = torch.cat([values.masked_fill(nan, torch.inf).amin(0) for values, nan in marked])
        high = torch.cat([values.masked_fill(nan, -torch.inf).amax(0) for values, nan in marked])
    return Extremes(low, high, broken)


def _pieces(values: Float[Tensor, "m u"]) -> list[Float[Tensor, "m p"]]:
    """Some units at a time, so that a second pass over them finds them in the cache."""
    return [values[:, part] for part in chunks(values.shape[1], max(1, CHUNK // max(1, len(values))))]
