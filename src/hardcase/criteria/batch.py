"""What one look shows to the criteria; work that several of them need is done once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.network import Selection
from hardcase.tensors import Copies, chunks, steady
from hardcase.types import Probe

__all__ = ["ActivationBatch", "Extremes", "Memo", "units_at_once"]

Made = TypeVar("Made")

# The greatest units of every layer, row by row: ties to the lower number, wide layers by blocks.

WIDE = 1024
"""Layers with more units are handled one by one on a CPU; narrower ones together."""
WIDE_THERE = 2**14
"""The same on a device, where one large operation costs less than several."""


def widest(device: torch.device) -> int:
    """The most units of a layer that is handled together with others."""
    if steady(device):
        return WIDE
    return WIDE_THERE


def strongest(
    layers: list[Tensor], starts: Sequence[int], k: int, *, clean: bool
) -> Int[Tensor, "m l k"]:
    """The numbers of each layer's `k` greatest units, greatest first; -1 where there is none.

    `starts` is the number of each layer's first unit; `clean` says that every value is a number.
    """
    found: list[Tensor | None] = [None] * len(layers)
    layers = [values.detach() for values in layers]
    if not clean:
        layers = [values.masked_fill(values.isnan(), -torch.inf) for values in layers]
    most = widest(layers[0].device)
    narrow = [i for i, values in enumerate(layers) if values.shape[1] <= most]
    if narrow:
        together = _greatest(_padded([layers[i] for i in narrow], k), k)
        for position, i in enumerate(narrow):
            found[i] = together[:, position]
    for i, values in enumerate(layers):
        if values.shape[1] > most:
            found[i] = _greatest_of_many(values, k)
    index = torch.stack([f for f in found if f is not None], 1)
    first = _starts(tuple(starts)).on(index.device)[0]
    return torch.where(index < 0, index, index + first[:, None])


@lru_cache(maxsize=64)
def _starts(starts: tuple[int, ...]) -> Copies:
    return Copies(torch.tensor(starts))


def _padded(layers: list[Tensor], k: int) -> Float[Tensor, "m l w"]:
    """Layers of different widths side by side, filled up with -inf."""
    width = max(k, *(values.shape[1] for values in layers))
    padded = layers[0].new_full((len(layers[0]), len(layers), width), -torch.inf)
    for i, values in enumerate(layers):
        padded[:, i, : values.shape[1]] = values
    return padded


def _greatest(values: Float[Tensor, "m l w"], k: int) -> Int[Tensor, "m l k"]:
    """Where the `k` greatest values are, ties to the lower index; -1 where only -inf is left.

    Writes over `values`.
    """
    if k > 4:
        best, index = (part[..., :k] for part in values.sort(dim=2, descending=True, stable=True))
        return torch.where(best > -torch.inf, index, -1)
    found = []
    for _ in range(k):
        best, index = values.max(2, keepdim=True)
        values.scatter_(2, index, -torch.inf)
        found.append(torch.where(best > -torch.inf, index, -1))
    return torch.cat(found, 2)


def _greatest_of_many(values: Float[Tensor, "m w"], k: int, block: int = 32) -> Int[Tensor, "m k"]:
    """Return the same for one wide layer: `k` blocks with the greatest maxima hold the values."""
    width = values.shape[1]
    spare = width % block
    whole = values[:, : width - spare]
    if values.stride(0) == 1:  # units lie together: reduce along them
        most = torch.unflatten(whole.t(), 0, (-1, block)).amax(1).t().contiguous()
    else:
        most = torch.unflatten(whole, 1, (-1, block)).amax(2)
    if spare:
        most = torch.cat([most, values[:, width - spare :].amax(1, keepdim=True)], 1)
    blocks = _greatest(most[:, None], min(k, most.shape[1])).squeeze(1).sort(1).values
    places = (blocks[:, :, None] * block + torch.arange(block, device=values.device)).flatten(1)
    picked = values.gather(1, places.clamp(0, width - 1))
    picked.masked_fill_((places < 0) | (places >= width), -torch.inf)
    index = _greatest(picked[:, None], k).squeeze(1)
    return torch.where(index < 0, index, places.gather(1, index.clamp_min(0)))


CHUNK = 2**18
"""Values worked on at a time on a CPU, so that they stay in a core's cache."""
CHUNK_THERE = 2**24
"""The same on a device, so that it is kept busy by few operations."""


def units_at_once(values: Float[Tensor, "m u"]) -> int:
    """Columns of a matrix that are worked on at a time."""
    size = CHUNK_THERE
    if steady(values.device):
        size = CHUNK
    return max(1, size // max(1, len(values)))


@dataclass(frozen=True, slots=True)
class UnitBlock:
    """Consecutive units of a selection as one matrix; `start` is the number of the first."""

    start: int
    values: Float[Tensor, "m u"]

    @property
    def stop(self) -> int:
        return self.start + self.values.shape[1]


@dataclass(frozen=True, slots=True)
class Extremes:
    """The least and the greatest number of each unit; +inf and -inf where it shows none.

    `broken`: units that show something that is not a number.
    """

    low: Float[Tensor, " u"]
    high: Float[Tensor, " u"]
    broken: Bool[Tensor, " u"]


class Memo:
    """Keeps what was made for a key: work that several criteria need is done once."""

    def __init__(self) -> None:
        self._made = dict[Hashable, Any]()

    def __call__(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what `make` made the first time `key` was asked for."""
        if key not in self._made:
            self._made[key] = make()
        made: Made = self._made[key]
        return made


class ActivationBatch:
    """Activations and answers of `m` rows, with their labels and seeds where these are known."""

    def __init__(
        self,
        activations: Mapping[str, Tensor],
        logits: Float[Tensor, "m k"],
        *,
        labels: Int[Tensor, " m"] | None = None,
        ids: Int[Tensor, " m"] | None = None,
        are_seeds: Bool[Tensor, " m"] | None = None,
    ) -> None:
        self.activations = activations
        self.logits = logits
        self.labels = labels
        self.ids = ids
        self.are_seeds = are_seeds
        self.once = Memo()

    @staticmethod
    def of(probe: Probe) -> ActivationBatch:
        batch = ActivationBatch(
            probe.activations, probe.logits, labels=probe.origin.y, ids=probe.origin.id
        )
        if probe.x.shape == probe.origin.x.shape:
            batch.are_seeds = (probe.x.detach() == probe.origin.x).flatten(1).all(1)
        return batch

    @staticmethod
    def join(batches: Sequence[ActivationBatch]) -> ActivationBatch:
        """The rows of several frames as one; all of them know the same things."""
        first = batches[0]
        activations = {
            name: torch.cat([batch.activations[name] for batch in batches])
            for name in first.activations
        }
        known = [
            name for name in ("labels", "ids", "are_seeds") if getattr(first, name) is not None
        ]
        joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in known}
        return ActivationBatch(
            activations, torch.cat([batch.logits for batch in batches]), **joined
        )

    def only(self, selection: Selection) -> ActivationBatch:
        """This batch with nothing but what the selection reads."""
        kept = selection.reduced(self.activations)
        return ActivationBatch(
            kept, self.logits, labels=self.labels, ids=self.ids, are_seeds=self.are_seeds
        )

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def device(self) -> torch.device:
        return self.logits.device

    @property
    def predicted(self) -> Int[Tensor, " m"]:
        return self.logits.argmax(1)

    def layers(self, selection: Selection) -> list[Float[Tensor, "m w"]]:
        return self.once(("layers", selection), lambda: selection.read(self.activations))

    def matrix(self, selection: Selection) -> Float[Tensor, "m u"]:
        return self.once(("matrix", selection), lambda: torch.cat(self.layers(selection), 1))

    def blocks(self, selection: Selection) -> list[UnitBlock]:
        """The units in blocks: wide layers alone, neighbouring narrow ones together."""
        return self.once(("blocks", selection), lambda: _blocks(selection, self.layers(selection)))

    def extremes(self, selection: Selection) -> Extremes:
        return self.once(("extremes", selection), lambda: _extremes(self.blocks(selection)))

    def top(self, selection: Selection, k: int) -> Int[Tensor, "m l k"]:
        """Each layer's `k` greatest units, ties to the lower number; -1 where none is left."""
        return self.once(("top", selection, k), lambda: self._top(selection, k))

    def _top(self, selection: Selection, k: int) -> Int[Tensor, "m l k"]:
        waits = steady(self.device)  # elsewhere to ask costs more than to be careful
        clean = waits and not bool(self.extremes(selection).broken.any())
        return strongest(self.layers(selection), selection.starts, k, clean=clean)

    def scaled(self, selection: Selection, epsilon: float) -> Float[Tensor, "m u"]:
        """Return the units scaled to [0, 1] by their layer's extremes in the row; constant: 0."""
        return self.once(("scaled", selection, epsilon), lambda: self._scaled(selection, epsilon))

    def _scaled(self, selection: Selection, epsilon: float) -> Float[Tensor, "m u"]:
        parts = []
        for values, (low, high) in zip(
            self.layers(selection), selection.ranges(self.activations), strict=True
        ):
            width = high - low + epsilon
            parts.append((values - low) / torch.where(width > 0, width, 1))
        return torch.cat(parts, 1)


def _blocks(selection: Selection, layers: list[Tensor]) -> list[UnitBlock]:
    blocks = list[UnitBlock]()
    pending = list[Tensor]()
    most = widest(layers[0].device)
    for start, values in zip(selection.starts, layers, strict=True):
        if values.shape[1] > most:
            blocks += [_joined(pending, start), UnitBlock(start, values)]
            pending = []
        else:
            pending.append(values)
    blocks.append(_joined(pending, selection.units))
    return [block for block in blocks if block.values.shape[1]]


def _joined(parts: list[Tensor], stop: int) -> UnitBlock:
    if not parts:
        return UnitBlock(stop, torch.empty(0, 0))
    values = parts[0]
    if len(parts) > 1:  # one part is not copied
        values = torch.cat(parts, 1)
    return UnitBlock(stop - values.shape[1], values)


def _extremes(blocks: list[UnitBlock]) -> Extremes:
    pairs = []
    for block in blocks:
        values = block.values.detach()
        # some units at a time, so that the second pass over them finds them in the cache
        for units in chunks(values.shape[1], units_at_once(values)):
            pairs.append((values[:, units].amin(0), values[:, units].amax(0)))
    low, high = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    broken = high.isnan()
    if not steady(high.device) or bool(broken.any()):
        marked = [(block.values.detach(), block.values.isnan()) for block in blocks]
        low = torch.cat([values.masked_fill(nan, torch.inf).amin(0) for values, nan in marked])
        high = torch.cat([values.masked_fill(nan, -torch.inf).amax(0) for values, nan in marked])
    return Extremes(low, high, broken)
