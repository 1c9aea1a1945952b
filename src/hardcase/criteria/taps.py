"""Taps reduce a layer's output while the layer runs.

They are values: equal ones are interchangeable, and of two different ones on the same layer the richer one serves both
readers (`join_taps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.anatomy import Layer
from hardcase.types import Tap


@dataclass(frozen=True, slots=True)
class Whole:
    """Every unit, one row per image: the layer's own output, not a copy."""

    layer: Layer

    def __call__(self, output: Tensor) -> Float[Tensor, "m u"]:
        return self.layer.arranged(output).flatten(1).float()


@dataclass(frozen=True, slots=True)
class Means:
    """The mean of every channel."""

    layer: Layer

    def __call__(self, output: Tensor) -> Float[Tensor, "m c"]:
        return channel_means(self.layer, self.layer.arranged(output)).float()


@dataclass(frozen=True, slots=True)
class MeansAndRange:
    """The mean of every channel, then the least and the greatest value of the whole layer."""

    layer: Layer

    def __call__(self, output: Tensor) -> Float[Tensor, "m w"]:
        output = self.layer.arranged(output)
        least, most = (f(output.flatten(1), 1)[:, None] for f in (torch.amin, torch.amax))
        return torch.cat([channel_means(self.layer, output), least, most], 1).float()


_RICHER = (Means, MeansAndRange, Whole)


def join_taps(taps: Iterable[Mapping[str, Tap]]) -> dict[str, Tap]:
    """One tap per layer that serves every reader: the richest of ours, a whole copy where others take part."""
    joined = dict[str, Tap]()
    for mapping in taps:
        for name, tap in mapping.items():
            joined[name] = _richer(joined[name], tap) if name in joined else tap
    return joined


def _richer(a: Tap, b: Tap) -> Tap:
    if a == b:
        return a
    if isinstance(a, _RICHER) and isinstance(b, _RICHER):
        return max(a, b, key=lambda tap: _RICHER.index(type(tap)))
    return torch.clone


def channel_means(layer: Layer, values: Tensor) -> Float[Tensor, "m c"]:
    """Channel means, to the last bit the same whichever tap the values come through: laid out alike before they are summed."""
    others = [axis + 1 for axis in range(len(layer.shape)) if axis != layer.channel]
    return values.contiguous().mean(others) if others else values.clone()
