"""Lower-precision copies of a network, by rounding.

Ranges come from calibration images once, never from the batch, so a row's answer does not depend on
its neighbours. Gradients pass straight through the rounding, and sums are in float32.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import HardcaseError, choice
from hardcase.models.subject import Subject
from hardcase.tensors import chunks, digest
from hardcase.types import Model

PRECISIONS = ("float16", "bfloat16", "int8")
CALIBRATION = 256
"""Training images from which an 8-bit copy learns its ranges."""
LEVELS = 2**8 - 1
"""Steps between the least and the greatest 8-bit input."""
LARGEST = 2**7 - 1
"""The largest 8-bit weight; -128 is not used, so that 0 stays 0."""
Network = TypeVar("Network", bound=nn.Module)


def float16(model: Network) -> Network:
    """A copy whose weights, and the inputs and outputs of whose layers, are rounded to float16.

    Args:
        model: The network to copy.
    """
    return _rounded(model, "float16", torch.float16)


def bfloat16(model: Network) -> Network:
    """A copy whose weights, and the inputs and outputs of whose layers, are rounded to bfloat16.

    Args:
        model: The network to copy.
    """
    return _rounded(model, "bfloat16", torch.bfloat16)


def int8(model: Network, images: Float[Tensor, "n c h w"]) -> Network:
    """A copy with 8-bit weights (symmetric, a scale per output channel) in its convolutions and
    dense layers, and 8-bit inputs to them (the range that `images` span).

    Args:
        model: The network to copy.
        images: Images from which the ranges are learnt, in [0, 1].
    """
    small = copy.deepcopy(model)
    weighted = (nn.Linear, nn.modules.conv._ConvNd)
    layers = {name: one for name, one in small.named_modules() if isinstance(one, weighted)}
    if not layers or not len(images):
        raise HardcaseError(
            f"an 8-bit copy is made of layers and images: the model has {len(layers)} convolutions"
            f" and dense layers, and {len(images)} images are given."
        )
    ranges = _ranges(small, layers, images)
    for name, module in layers.items():
        module.weight = nn.Parameter(_eight_bit(module.weight), requires_grad=False)
        if name in ranges:
            low, high = min(ranges[name][0], 0.0), max(ranges[name][1], 0.0)
            scale = (high - low) / LEVELS or 1.0
            rounding = partial(_to_grid, scale, round(-low / scale))
            module.register_forward_pre_hook(partial(_round_values, rounding))
    return _renamed(small, model, "int8", repr(sorted(ranges.items())))


def lowered(model: Network, precision: str, images: Float[Tensor, "n c h w"]) -> Network:
    """The copy that `precision` names; `images` calibrate a precision that needs ranges."""
    if precision not in PRECISIONS:
        raise choice("precision", precision, PRECISIONS)
    if precision == "int8":
        return int8(model, images)
    return {"float16": float16, "bfloat16": bfloat16}[precision](model)


def copy_for(
    method: str,
    subject: Model,
    options: Mapping[str, Any],
    images: Callable[[], Float[Tensor, "n c h w"]],
) -> Model:
    """The copy of the model that a method compares with; its option ``copy`` may name another
    arithmetic than 8 bits. `images` calibrate it.
    """
    if not isinstance(subject, Subject):
        raise HardcaseError(
            f'method "{method}" compares with an 8-bit copy of the model, '
            f'which "{subject.name}" cannot give.',
            fix="--peer MODEL",
        )
    return lowered(subject, str(options.get("copy", "int8")), images())


def _rounded(model: Network, name: str, dtype: torch.dtype) -> Network:
    small = copy.deepcopy(model)
    rounding = partial(_to_type, dtype)
    for value in small.state_dict().values():
        if value.is_floating_point():
            value.copy_(rounding(value))
    for module in small.modules():
        if not list(module.children()):
            module.register_forward_pre_hook(partial(_round_values, rounding))
            module.register_forward_hook(partial(_round_values, rounding))
    return _renamed(small, model, name)


def _ranges(
    model: nn.Module, layers: Mapping[str, nn.Module], images: Tensor
) -> dict[str, tuple[float, float]]:
    """The least and the greatest finite number that goes into each layer."""
    spans: dict[str, tuple[float, float]] = {}

    def note(name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        for x in inputs:
            numbers = x[x.isfinite()]
            if len(numbers):
                low, high = spans.get(name, (math.inf, -math.inf))
                spans[name] = (min(low, float(numbers.min())), max(high, float(numbers.max())))

    handles = [
        module.register_forward_pre_hook(partial(note, name)) for name, module in layers.items()
    ]
    device = next((value.device for value in model.state_dict().values()), torch.device("cpu"))
    try:
        for part in chunks(len(images), 64):
            with torch.no_grad():
                model(images[part].to(device))
    finally:
        for handle in handles:
            handle.remove()
    return spans


def _eight_bit(weight: Tensor) -> Tensor:
    largest = weight.abs().flatten(1).amax(1).clamp_min(1e-12)
    scale = largest.reshape(-1, *[1] * (weight.ndim - 1)) / LARGEST
    rounded: Tensor = (weight / scale).round().clamp(-LARGEST, LARGEST) * scale
    return rounded


# Hooks and roundings are partial functions of this module, so that copies can be pickled.


def _round_values(rounding: Callable[[Tensor], Tensor], module: nn.Module, *values: Any) -> Any:
    """Round what goes into a layer, or what comes out of it: (inputs), or (inputs, output)."""
    return _each_tensor(values[-1], rounding)


def _each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return change(value)
    if isinstance(value, tuple):
        return tuple(_each_tensor(part, change) for part in value)
    return value


def _to_type(dtype: torch.dtype, x: Tensor) -> Tensor:
    return _straight(x, x.detach().to(dtype).to(x.dtype))


def _to_grid(scale: float, zero: int, x: Tensor) -> Tensor:
    steps = (x.detach() / scale).round().add(zero).clamp(0, LEVELS)
    return _straight(x, (steps - zero) * scale)


class _StraightThrough(torch.autograd.Function):
    """The rounded value, to the last bit, with the gradient of the value itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0], None


def _straight(x: Tensor, rounded: Tensor) -> Tensor:
    if not x.requires_grad:
        return rounded
    passed: Tensor = _StraightThrough.apply(x, rounded)  # type: ignore[no-untyped-call]
    return passed


def _renamed(small: Network, model: nn.Module, precision: str, details: str = "") -> Network:
    """A copy that says what it is, where networks have names and hashes."""
    if hasattr(model, "name") and hasattr(model, "hash"):
        renamed: Any = small
        renamed.name = f"{model.name}@{precision}"
        renamed.hash = digest([str(model.hash), precision, details])
    if isinstance(small, Subject):
        small.forget()  # what was answered before it was rounded is no answer of the copy
    return small
