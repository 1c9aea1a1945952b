"""Which units count: the layers chosen, every unit or the mean of every channel, and how values are scaled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.anatomy import Anatomy, Layer
from hardcase.criteria.taps import Means, MeansAndRange, Whole, channel_means
from hardcase.errors import Problem
from hardcase.types import Tap

Mode = Literal["unit", "channel"]
Order = Literal["mean-scale", "scale-mean"]


@dataclass(frozen=True)
class Selection:
    """The units that a criterion reads, layer after layer.

    `order` matters only for scaled channel means. `softmax` adds the softmax of the last layer as a layer of its own.
    """

    layers: tuple[Layer, ...]
    mode: Mode = "channel"
    order: Order = "mean-scale"
    softmax: bool = False

    @cached_property
    def widths(self) -> tuple[int, ...]:
        widths = tuple(layer.units if self.mode == "unit" else layer.channels for layer in self.layers)
        return (*widths, widths[-1]) if self.softmax else widths

    @cached_property
    def units(self) -> int:
        return sum(self.widths)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return tuple(sum(self.widths[:i]) for i in range(len(self.widths)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        names = tuple(layer.name for layer in self.layers)
        return (*names, f"softmax({names[-1]})") if self.softmax else names

    @cached_property
    def taps(self) -> dict[str, Tap]:
        taps = {layer.name: self._tap(layer) for layer in self.layers}
        again = {name.split("#")[0]: tap for name, tap in taps.items()}
        return {**again, **taps}

    def _tap(self, layer: Layer) -> Tap:
        ambiguous = layer.channels == 2 and layer.units == 4
        if self.mode == "unit" or len(layer.shape) == 1 or ambiguous:
            return Whole(layer)
        return MeansAndRange(layer) if self.order == "scale-mean" else Means(layer)

    def read(self, activations: Mapping[str, Tensor]) -> list[Float[Tensor, "m w"]]:
        """The chosen units of each layer, from what our own or a richer tap kept."""
        values = list(self.reduced(activations).values())
        return [*values, values[-1].softmax(1)] if self.softmax else values

    def reduced(self, activations: Mapping[str, Tensor]) -> dict[str, Float[Tensor, "m w"]]:
        """The same by name; it can be read again."""
        return {layer.name: self._reduce(layer, _shown(activations, layer)) for layer in self.layers}

    def ranges(self, activations: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The least and the greatest value of each layer, row by row, before channels are averaged or after it."""
        values = self.read(activations)
        if self.order == "scale-mean":
            shown = [_shown(activations, layer) for layer in self.layers]
            values = [
                *(v if s.shape[1] == v.shape[1] else s for v, s in zip(values, shown, strict=False)),
                *values[len(shown) :],
            ]
        return [(v.amin(1, keepdim=True), v.amax(1, keepdim=True)) for v in values]

    def _reduce(self, layer: Layer, shown: Float[Tensor, "m w"]) -> Float[Tensor, "m v"]:
        wanted = layer.units if self.mode == "unit" else layer.channels
        if shown.shape[1] == wanted:
            return shown
        if shown.shape[1] == layer.units:
            return channel_means(layer, torch.unflatten(shown, 1, layer.shape))
        if self.mode == "channel" and shown.shape[1] == wanted + 2:
            return shown[:, :wanted]
        raise Problem(
            f"layer {layer.name!r} shows {shown.shape[1]} values a row, but {wanted} units in {self.mode} mode were expected.",
            "Another reader of the same layer reduced it further.",
            fix="criteria.taps.join_taps over all readers",
        )


def _shown(activations: Mapping[str, Tensor], layer: Layer) -> Float[Tensor, "m w"]:
    if layer.name not in activations:
        raise Problem(f"layer {layer.name!r} is not among the activations shown: {', '.join(activations) or 'none'}.")
    value = activations[layer.name]
    return value if value.ndim == 2 else layer.arranged(value).flatten(1).float()


@dataclass(frozen=True, slots=True)
class Scaling:
    """How values are brought to [0, 1] before they meet a threshold: not at all, within each input, or over the suite."""

    per: Literal["none", "input", "suite"] = "none"
    epsilon: float = 0.0


RAW = Scaling()


def select(anatomy: Anatomy, layers: str, mode: Mode, order: Order = "mean-scale") -> Selection:
    """The layers that `layers` names: a group, or names joined by ``+``."""
    groups = {
        "conv-linear": lambda: anatomy.of_kind("conv", "linear"),
        "dense": lambda: anatomy.of_kind("linear"),
        "hidden-dense": lambda: anatomy.of_kind("linear")[:-1],
        "hidden": lambda: anatomy.of_kind("conv", "linear")[:-1],
        "conv": lambda: anatomy.of_kind("conv"),
        "activated": lambda: activated(anatomy),
        "activated-softmax": lambda: activated(anatomy),
        "last-hidden": lambda: last_hidden(anatomy),
        "last": lambda: anatomy.layers[-1:],
    }
    chosen = groups[layers]() if layers in groups else anatomy.named(layers.split("+"))
    if not chosen:
        raise Problem(
            f"the model has no layer of the group {layers!r}.", f"groups: {', '.join(groups)}; or names joined by +"
        )
    return Selection(chosen, mode, order, softmax=layers == "activated-softmax")


def activated(anatomy: Anatomy) -> tuple[Layer, ...]:
    """Layers as frameworks with built-in activations count them: each with its activation, and the pooling ones."""
    shown = [layer for layer in anatomy.layers if layer.kind not in ("norm", "plumbing")]
    following = [*shown[1:], None]
    return tuple(
        layer
        for layer, after in zip(shown, following, strict=True)
        if layer.kind not in ("conv", "linear")
        or after is None
        or after.kind != "activation"
        or after.shape != layer.shape
    )


def last_hidden(anatomy: Anatomy) -> tuple[Layer, ...]:
    """The last dense layer before the output, or else the last convolution."""
    dense, conv = anatomy.of_kind("linear"), anatomy.of_kind("conv")
    return dense[-2:-1] or conv[-1:] or anatomy.layers[-2:-1]
