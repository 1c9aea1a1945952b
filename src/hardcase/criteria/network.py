"""The structure of a network: layers, units, and taps on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import HardcaseError, choice
from hardcase.tensors import any_rows, steady
from hardcase.types import Answer, Tap

LayerKind = Literal["conv", "linear", "activation", "pool", "norm", "plumbing", "other"]

_FEW = 16
_MORE = 32
_FOLDERS: Mapping[str, LayerKind] = {
    "activation": "activation",
    "pooling": "pool",
    "batchnorm": "norm",
    "instancenorm": "norm",
    "normalization": "norm",
    "flatten": "plumbing",
    "dropout": "plumbing",
    "padding": "plumbing",
}


@runtime_checkable
class Layered(Protocol):
    """A network whose layers are accessible, such as a `Subject`."""

    def __call__(self, x: Tensor, *args: Any) -> Answer: ...

    def layers(self) -> Mapping[str, nn.Module]: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as it ran: the output `shape` of a row, and the axis of its channels (features).

    `rows` says where the rows are: 0 as usual; 1 if the tokens come first; -f if each row was cut
    into f windows. A module that ran again is a separate layer, `name#2`.
    """

    name: str
    kind: LayerKind
    shape: tuple[int, ...]
    channel: int
    rows: int = 0

    @property
    def units(self) -> int:
        return torch.Size(self.shape).numel()

    @property
    def channels(self) -> int:
        return self.shape[self.channel]

    def arranged(self, output: Tensor) -> Float[Tensor, "m *shape"]:
        """The output with a row per image in front."""
        if self.rows == 0:
            return output
        if self.rows == 1:
            return output.movedim(1, 0)
        return torch.unflatten(output, 0, (-1, -self.rows))


@dataclass(frozen=True, slots=True)
class LayerGraph:
    """The layers of a network in running order.

    Args:
        layers: Layers in the order in which they run.
    """

    layers: tuple[Layer, ...]

    def named(self, names: Sequence[str]) -> tuple[Layer, ...]:
        by_name = {layer.name: layer for layer in self.layers}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise choice("layer", missing[0], list(by_name))
        return tuple(by_name[name] for name in names)

    def of_kind(self, *kinds: LayerKind) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def prefixed(self, prefix: str) -> LayerGraph:
        """The same layers under other names: a run shows those of a peer as ``peer0/NAME``."""
        return LayerGraph(tuple(replace(layer, name=prefix + layer.name) for layer in self.layers))


def trace_layers(subject: Layered, x: Float[Tensor, "m c h w"]) -> LayerGraph:
    """Run an image in a small and a larger batch, and note every layer with a tensor output.

    Layers that never run, or whose output has no axis that grows with the batch, are left out.

    Args:
        subject: A network whose layers can be tapped.
        x: An image, in [0, 1].

    Example:
        >>> import hardcase as hc
        >>> from hardcase.tensors import from_bytes
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> subject = toy_subject()
        >>> graph = hc.criteria.trace_layers(subject, from_bytes(toy_images(1).x))
        >>> [layer.name for layer in graph.layers]
        ['mean', 'relu', 'out']
    """
    small_batch, more = (_run(subject, x[:1].expand(rows, -1, -1, -1)) for rows in (_FEW, _MORE))
    modules = dict(subject.layers())
    layers = list[Layer]()
    for name, shape in small_batch.items():
        layer = _layer(name, modules[name.split("#")[0]], shape, more.get(name, ()), layers)
        if layer is not None:
            layers.append(layer)
    if not layers:
        raise HardcaseError(
            "no layer of the model ran as a module with a tensor as output, so nothing can be"
            " covered."
        )
    return LayerGraph(tuple(layers))


def _run(subject: Layered, x: Tensor) -> dict[str, tuple[int, ...]]:
    """The shape of what each layer returns; ``NAME#2`` where a module runs a second time."""
    shapes = dict[str, tuple[int, ...]]()
    calls = Counter[str]()

    def note(name: str, _module: nn.Module, _args: object, output: object) -> None:
        calls[name] += 1
        if isinstance(output, Tensor) and output.is_floating_point() and output.ndim >= 2:
            again = f"#{calls[name]}" * (calls[name] > 1)
            shapes[name + again] = tuple(output.shape)

    modules = subject.layers().items()
    handles = [module.register_forward_hook(partial(note, name)) for name, module in modules]
    try:
        with any_rows(x.device), torch.inference_mode():
            subject(x.clone())
    finally:
        for handle in handles:
            handle.remove()
    return shapes


def _layer(
    name: str,
    module: nn.Module,
    small_batch: tuple[int, ...],
    more: tuple[int, ...],
    before: Sequence[Layer],
) -> Layer | None:
    sizes = enumerate(zip(small_batch, more, strict=False))
    grown = [axis for axis, (a, b) in sizes if b == a * _MORE // _FEW and a != b]
    if len(small_batch) != len(more) or len(grown) != 1:
        return None
    kind = _kind(module)
    windows = small_batch[0] // _FEW
    if grown[0] == 0 and small_batch[0] == _FEW:
        shape = small_batch[1:]
        rows = 0
    elif grown[0] == 0 and small_batch[0] == windows * _FEW:
        shape = (windows, *small_batch[1:])
        rows = -windows
    elif grown[0] == 1 and small_batch[1] == _FEW:
        shape = (small_batch[0], *small_batch[2:])
        rows = 1
    else:
        return None
    if not shape:
        return None
    return Layer(name, kind, shape, _channel_axis(kind, shape, before), rows)


def _channel_axis(kind: LayerKind, shape: tuple[int, ...], before: Sequence[Layer]) -> int:
    """Convolutions: channels first; dense layers: features last; others: as the layer before."""
    last = len(shape) - 1
    if kind == "conv":
        return 0
    if kind == "linear":
        return last
    if before and before[-1].shape == shape:
        return before[-1].channel
    if len(shape) == 2:
        return last
    return 0


def _kind(module: nn.Module) -> LayerKind:
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Identity):
        return "plumbing"
    home = type(module).__module__
    folder = home.removeprefix("torch.nn.modules.")
    if folder == home:  # a module of somebody else's
        return "other"
    return _FOLDERS.get(folder, "other")


# Taps are values: equal ones are interchangeable, and of two different ones on the same layer the
# richer one serves both readers (`join_taps`).


_RICHER = ("means", "means and range", "whole")


@dataclass(frozen=True, slots=True)
class LayerTap:
    """The reading of a layer, a row per image: every channel's mean, these and then the least and
    the greatest value of the layer, or every unit (the layer's output, not a copy).
    """

    layer: Layer
    kept: Literal["means", "means and range", "whole"]

    @property
    def width(self) -> int:
        channels = self.layer.channels
        return {"means": channels, "means and range": channels + 2, "whole": self.layer.units}[
            self.kept
        ]

    def __call__(self, output: Tensor) -> Float[Tensor, "m w"]:
        output = self.layer.arranged(output)
        if self.kept == "whole":
            return output.flatten(1).float()
        means = channel_means(self.layer, output)
        if self.kept == "means":
            return means.float()
        return torch.cat([means, row_extremes(output)], 1).float()


def join_taps(taps: Iterable[Mapping[str, Tap]]) -> dict[str, Tap]:
    """Return a tap per layer that serves every reader; a copy where others take part."""
    joined = dict[str, Tap]()
    for mapping in taps:
        for name, tap in mapping.items():
            joined[name] = _richer(joined.get(name, tap), tap)
    return joined


def _richer(a: Tap, b: Tap) -> Tap:
    if a == b:
        return a
    if isinstance(a, LayerTap) and isinstance(b, LayerTap):
        return max(a, b, key=lambda tap: _RICHER.index(tap.kept))
    return torch.clone


def channel_means(layer: Layer, values: Tensor) -> Float[Tensor, "m c"]:
    """Channel means, laid out alike before they are summed: the same bits through any tap."""
    others = [axis + 1 for axis in range(len(layer.shape)) if axis != layer.channel]
    if not others:
        return values.clone()
    values = values.contiguous()
    if not steady(values.device):
        return values.mean(others)
    # On a CPU a mean is this sum, divided. Said in two steps its gradient is never spread out in
    # memory: a share of it is added to all pixels of a channel at once.
    return values.sum(others) / (layer.units // layer.channels)


def row_extremes(values: Float[Tensor, "m *shape"]) -> Float[Tensor, "m 2"]:
    """The least and the greatest value of each row."""
    flat_values = values.flatten(1)
    return torch.stack([flat_values.amin(1), flat_values.amax(1)], 1)


# Which units count, and how values are scaled.

Mode = Literal["unit", "channel"]
Order = Literal["mean-scale", "scale-mean"]


@dataclass(frozen=True)
class Selection:
    """The units that a criterion reads, layer after layer.

    Args:
        layers: Layers in the order in which they run.
        mode: ``channel`` or ``unit``.
        order: Whether channel means come before or after scaling, where values are scaled.
        softmax: Add the softmax of the last layer as a separate layer.
    """

    layers: tuple[Layer, ...]
    mode: Mode = "channel"
    order: Order = "mean-scale"
    softmax: bool = False

    @cached_property
    def widths(self) -> tuple[int, ...]:
        widths = tuple(map(self._width, self.layers))
        return widths + widths[-1:] * self.softmax

    def _width(self, layer: Layer) -> int:
        return {"unit": layer.units, "channel": layer.channels}[self.mode]

    @cached_property
    def units(self) -> int:
        return sum(self.widths)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        return tuple(sum(self.widths[:i]) for i in range(len(self.widths)))

    @cached_property
    def names(self) -> tuple[str, ...]:
        names = tuple(layer.name for layer in self.layers)
        return names + tuple(f"softmax({name})" for name in names[-1:]) * self.softmax

    @cached_property
    def taps(self) -> dict[str, LayerTap]:
        taps = {layer.name: self._tap(layer) for layer in self.layers}
        again = {name.split("#")[0]: tap for name, tap in taps.items()}
        return {**again, **taps}

    def _tap(self, layer: Layer) -> LayerTap:
        ambiguous = layer.channels == 2 and layer.units == 4
        if self.mode == "unit" or len(layer.shape) == 1 or ambiguous:
            return LayerTap(layer, "whole")
        if self.order == "scale-mean":
            return LayerTap(layer, "means and range")
        return LayerTap(layer, "means")

    def read(self, activations: Mapping[str, Tensor]) -> list[Float[Tensor, "m w"]]:
        """The chosen units of each layer, from the reading of this or a richer tap."""
        values = list(self.reduced(activations).values())
        if self.softmax:
            values.append(values[-1].softmax(1))
        return values

    def reduced(self, activations: Mapping[str, Tensor]) -> dict[str, Float[Tensor, "m w"]]:
        """The same by name; it can be read again."""
        return {
            layer.name: self._reduce(layer, _shown(activations, layer)) for layer in self.layers
        }

    def ranges(self, activations: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Each layer's least and greatest value by row, before or after channels are averaged."""
        values = self.read(activations)
        if self.order == "scale-mean":
            for i, layer in enumerate(self.layers):
                shown = _shown(activations, layer)
                if shown.shape[1] != values[i].shape[1]:
                    values[i] = shown
        return [(v.amin(1, keepdim=True), v.amax(1, keepdim=True)) for v in values]

    def _reduce(self, layer: Layer, shown: Float[Tensor, "m w"]) -> Float[Tensor, "m v"]:
        wanted = self._width(layer)
        if shown.shape[1] == wanted:
            return shown
        if shown.shape[1] == layer.units:
            return channel_means(layer, torch.unflatten(shown, 1, layer.shape))
        if self.mode == "channel" and shown.shape[1] == wanted + 2:
            return shown[:, :wanted]
        raise HardcaseError(
            f"layer {layer.name!r} shows {shown.shape[1]} values a row, but {wanted} units in"
            f" {self.mode} mode were expected.",
            "Another reader of the same layer reduced it further.",
            fix="criteria.taps.join_taps over all readers",
        )


def _shown(activations: Mapping[str, Tensor], layer: Layer) -> Float[Tensor, "m w"]:
    if layer.name not in activations:
        raise HardcaseError(
            f"layer {layer.name!r} is not among the activations shown:"
            f" {', '.join(activations) or 'none'}."
        )
    value = activations[layer.name]
    if value.ndim == 2:
        return value
    return layer.arranged(value).flatten(1).float()


def select(graph: LayerGraph, layers: str, mode: Mode, order: Order = "mean-scale") -> Selection:
    """The layers that `layers` names: a group, or names joined by ``+``.

    Args:
        graph: The network's layers, see `trace_layers`.
        layers: A group (``dense``, ``hidden``, ``conv``, ``last``, …) or names joined by ``+``.
        mode: ``channel``: the mean of every channel; ``unit``: every unit.
        order: Whether channel means come before or after scaling.
    """
    groups = {
        "conv-linear": lambda: graph.of_kind("conv", "linear"),
        "dense": lambda: graph.of_kind("linear"),
        "hidden-dense": lambda: graph.of_kind("linear")[:-1],
        "hidden": lambda: graph.of_kind("conv", "linear")[:-1],
        "conv": lambda: graph.of_kind("conv"),
        "activated": lambda: activated(graph),
        "activated-softmax": lambda: activated(graph),
        "last-hidden": lambda: last_hidden(graph),
        "last": lambda: graph.layers[-1:],
    }
    chosen = groups.get(layers, lambda: graph.named(layers.split("+")))()
    if not chosen:
        raise HardcaseError(
            f"the model has no layer of the group {layers!r}.",
            f"groups: {', '.join(groups)}; or names joined by +",
        )
    return Selection(chosen, mode, order, softmax=layers == "activated-softmax")


def activated(graph: LayerGraph) -> tuple[Layer, ...]:
    """Layers as frameworks with built-in activations count them, pooling ones included."""
    shown = [layer for layer in graph.layers if layer.kind not in ("norm", "plumbing")]
    following = [*shown[1:], None]
    return tuple(
        layer
        for layer, after in zip(shown, following, strict=True)
        if layer.kind not in ("conv", "linear")
        or after is None
        or after.kind != "activation"
        or after.shape != layer.shape
    )


def last_hidden(graph: LayerGraph) -> tuple[Layer, ...]:
    """The last hidden dense layer, or else the last convolution, after its activation."""
    dense = graph.of_kind("linear")
    conv = graph.of_kind("conv")
    chosen = dense[-2:-1] or conv[-1:] or graph.layers[-2:-1]
    return tuple(_after_activation(graph, layer) for layer in chosen)


def _after_activation(graph: LayerGraph, layer: Layer) -> Layer:
    """The activation of `layer`, passing over norms; the layer itself if it has none."""
    for after in graph.layers[graph.layers.index(layer) + 1 :]:
        if after.kind == "activation" and after.shape == layer.shape:
            return after
        if after.kind not in ("norm", "plumbing"):
            break
    return layer
