"""What one look shows to the criteria; work that several of them need is done once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from hardcase.criteria.network import Selection
from hardcase.tensors import chunks, steady
from hardcase.types import Probe

Made = TypeVar("Made")


WIDE = 1024
"""Units of a layer from which on only the blocks that hold the greatest are looked through."""
BLOCK = 32


def strongest(values: Float[Tensor, "m w"], k: int, *, clean: bool) -> Int[Tensor, "m k"]:
    """Where the `k` greatest values of each row are, ties to the lower place; -1 where none is.

    `clean` says that every value is a number.
    """
    values = values.detach()
    if not clean:
        values = values.masked_fill(values.isnan(), -torch.inf)
    if values.shape[1] <= WIDE or not steady(values.device):
        return _greatest(values.clone(), k)
    width = values.shape[1] - values.shape[1] % BLOCK
    if values.stride(0) == 1:  # units lie together: reduce along them
        most = torch.unflatten(values[:, :width].t(), 0, (-1, BLOCK)).amax(1).t().contiguous()
    else:
        most = torch.unflatten(values[:, :width], 1, (-1, BLOCK)).amax(2)
    if width < values.shape[1]:
        most = torch.cat([most, values[:, width:].amax(1, keepdim=True)], 1)
    blocks = _greatest(most, min(k, most.shape[1])).sort(1).values  # in order, for ties
    places = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    picked = values.gather(1, places.clamp(0, values.shape[1] - 1))
    picked.masked_fill_((places < 0) | (places >= values.shape[1]), -torch.inf)
    index = _greatest(picked, k)
    return torch.where(index < 0, index, places.gather(1, index.clamp_min(0)))


def _greatest(values: Float[Tensor, "m w"], k: int) -> Int[Tensor, "m k"]:
    """The same by taking one after the other away from `values`, which are written over."""
    places = []
    for _ in range(min(k, values.shape[1])):
        best, place = values.max(1, keepdim=True)  # of equal ones the first
        values.scatter_(1, place, -torch.inf)
        places.append(torch.where(best > -torch.inf, place, -1))
    return pad(torch.cat(places, 1), (0, k - len(places)), value=-1)


def units_at_once(values: Float[Tensor, "m u"]) -> int:
    """Columns of a matrix that are worked on at a time, so that they stay in a core's cache."""
    size = 2**24
    if steady(values.device):
        size = 2**18
    return max(1, size // max(1, len(values)))


@dataclass(frozen=True, slots=True)
class Extremes:
    """The least and the greatest number of each unit; +inf and -inf where it shows none.

    `clean`: known to hold nothing but numbers.
    """

    low: Float[Tensor, " u"]
    high: Float[Tensor, " u"]
    clean: bool


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

    def extremes(self, selection: Selection) -> Extremes:
        return self.once(("extremes", selection), lambda: _extremes(self.layers(selection)))

    def top(self, selection: Selection, k: int) -> Int[Tensor, "m l k"]:
        """Each layer's `k` greatest units, ties to the lower number; -1 where none is left."""

        def top() -> Tensor:
            clean = self.extremes(selection).clean
            found = [strongest(values, k, clean=clean) for values in self.layers(selection)]
            starts = zip(found, selection.starts, strict=True)
            return torch.stack([torch.where(f < 0, f, f + start) for f, start in starts], 1)

        return self.once(("top", selection, k), top)

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


def _extremes(layers: list[Tensor]) -> Extremes:
    low, high = _bounds(layers, layers)
    # only on a CPU, where asking costs less than looking at every value again
    if steady(low.device) and not bool(high.isnan().any()):
        return Extremes(low, high, clean=True)
    missing = [values.isnan() for values in layers]
    floors = [values.masked_fill(nan, torch.inf) for values, nan in zip(layers, missing)]
    tops = [values.masked_fill(nan, -torch.inf) for values, nan in zip(layers, missing)]
    return Extremes(*_bounds(floors, tops), clean=False)


def _bounds(floors: list[Tensor], tops: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The least of the first and the greatest of the second, unit by unit."""
    low = list[Tensor]()
    high = list[Tensor]()
    for floor, top in zip(floors, tops, strict=True):
        # some units at a time, so that the second pass over them finds them in the cache
        for units in chunks(floor.shape[1], units_at_once(floor)):
            low.append(floor.detach()[:, units].amin(0))
            high.append(top.detach()[:, units].amax(0))
    return torch.cat(low), torch.cat(high)
