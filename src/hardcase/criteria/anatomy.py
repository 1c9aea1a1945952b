"""What a network is made of, seen from outside: which layers run, in which order, with outputs of which shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import Problem, choice
from hardcase.types import Answer

LayerKind = Literal["conv", "linear", "activation", "pool", "norm", "plumbing", "other"]

_FEW, _MORE = 16, 32
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
    """A network whose layers can be seen: a `Subject` is one."""

    def __call__(self, x: Tensor, *args: Any) -> Answer: ...

    def layers(self) -> Mapping[str, nn.Module]: ...


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as it ran: `shape` is one row's output, `channel` the axis of its channels (features of a token included).

    `rows` says where the rows are: 0 as usual; 1 if the tokens come first; -f if each row was cut into f windows.
    A module that ran again is a layer of its own, `name#2`.
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
        """The output with one row per image in front."""
        if self.rows == 0:
            return output
        return output.movedim(1, 0) if self.rows == 1 else torch.unflatten(output, 0, (-1, -self.rows))


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The layers of a network in the order in which they ran, and the size of the weights between them."""

    layers: tuple[Layer, ...]
    weights: Mapping[str, Float[Tensor, "to from"]] = field(default_factory=dict)

    def named(self, names: Sequence[str]) -> tuple[Layer, ...]:
        known = {layer.name: layer for layer in self.layers}
        missing = [name for name in names if name not in known]
        if missing:
            raise choice("layer", missing[0], list(known))
        return tuple(known[name] for name in names)

    def of_kind(self, *kinds: LayerKind) -> tuple[Layer, ...]:
        return tuple(layer for layer in self.layers if layer.kind in kinds)

    def prefixed(self, prefix: str) -> Anatomy:
        """The same layers under other names: a campaign shows those of a peer as ``peer0/NAME``."""
        weights = {prefix + name: value for name, value in self.weights.items()}
        return Anatomy(tuple(replace(layer, name=prefix + layer.name) for layer in self.layers), weights)


def survey(subject: Layered, x: Float[Tensor, "m c h w"]) -> Anatomy:
    """Run one image through the subject, in a small and in a larger batch, and note every layer that answers with a tensor.

    Layers that never run, or whose output has no axis that grows with the batch, are left out.
    """
    few, more = (_run(subject, x[:1].expand(rows, -1, -1, -1)) for rows in (_FEW, _MORE))
    modules, layers = dict(subject.layers()), list[Layer]()
    for name, shape in few.items():
        layer = _layer(name, modules[name.split("#")[0]], shape, more.get(name, ()), layers)
        layers += [layer] if layer else []
    if not layers:
        raise Problem("no layer of the model ran as a module with a tensor as output, so nothing can be covered.")
    weights = {name: _weights(module) for name, module in modules.items() if _kind(module) in ("conv", "linear")}
    return Anatomy(tuple(layers), weights)


def _run(subject: Layered, x: Tensor) -> dict[str, tuple[int, ...]]:
    shapes = dict[str, tuple[int, ...]]()
    with _watching(subject.layers(), shapes), torch.inference_mode():
        subject(x.clone())
    return shapes


@contextmanager
def _watching(modules: Mapping[str, nn.Module], shapes: dict[str, tuple[int, ...]]) -> Iterator[None]:
    handles = [module.register_forward_hook(_note(name, shapes)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(name: str, shapes: dict[str, tuple[int, ...]]) -> Any:
    calls = 0

    def hook(_module: nn.Module, _args: object, output: object) -> None:
        nonlocal calls
        calls += 1
        if isinstance(output, Tensor) and output.is_floating_point() and output.ndim >= 2:
            shapes[name if calls == 1 else f"{name}#{calls}"] = tuple(output.shape)

    return hook


def _layer(
    name: str, module: nn.Module, few: tuple[int, ...], more: tuple[int, ...], before: Sequence[Layer]
) -> Layer | None:
    grown = [axis for axis, (a, b) in enumerate(zip(few, more, strict=False)) if b == a * _MORE // _FEW and a != b]
    if len(few) != len(more) or len(grown) != 1:
        return None
    kind, windows = _kind(module), few[0] // _FEW
    if grown[0] == 0 and few[0] == _FEW:
        shape, rows = few[1:], 0
    elif grown[0] == 0 and few[0] == windows * _FEW:
        shape, rows = (windows, *few[1:]), -windows
    elif grown[0] == 1 and few[1] == _FEW:
        shape, rows = (few[0], *few[2:]), 1
    else:
        return None
    return Layer(name, kind, shape, _channel_axis(kind, shape, before), rows) if shape else None


def _channel_axis(kind: LayerKind, shape: tuple[int, ...], before: Sequence[Layer]) -> int:
    """Convolutions have channels first, dense layers features last; others follow the layer before them."""
    last = len(shape) - 1
    if kind == "conv":
        return 0
    if kind == "linear":
        return last
    if before and before[-1].shape == shape:
        return before[-1].channel
    return last if len(shape) == 2 else 0


def _kind(module: nn.Module) -> LayerKind:
    if isinstance(module, nn.modules.conv._ConvNd):
        return "conv"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Identity):
        return "plumbing"
    home = type(module).__module__
    return _FOLDERS.get(home.removeprefix("torch.nn.modules."), "other") if home.startswith("torch.nn.") else "other"


def _weights(module: nn.Module) -> Float[Tensor, "to from"]:
    """How strongly each input channel reaches each output channel: sizes of the weights, summed over the kernel."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    size = weight.detach().float().abs()
    return size.cpu() if size.ndim == 2 else size.flatten(2).sum(2).cpu()
