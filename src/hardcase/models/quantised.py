"""Lower-precision copies of a network, by rounding.

Ranges come from calibration images once, never from the batch, so a row's answer does not depend on
its neighbours. Gradients pass straight through the rounding, and sums are taken in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import Problem, choice
from hardcase.models.subject import Subject
from hardcase.tensors import chunks, digest
from hardcase.types import Model

__all__ = ["CALIBRATION", "bfloat16", "copy_for", "float16", "int8", "lowered"]

PRECISIONS = ("float16", "bfloat16", "int8")
CALIBRATION = 256
"""Training images from which an 8-bit copy learns its ranges."""
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


def int8(model: Network, images: Float[Tensor, "n c h w"], *, bits: int = 8) -> Network:
    """A copy with 8-bit weights (symmetric, a scale per output channel) in its convolutions and
    dense layers, and 8-bit inputs to them (the range that `images` span).

    Args:
        model: The network to copy.
        images: Images from which the ranges are learnt, in [0, 1].
        bits: Bits of weights and inputs.
    """
    if not len(images) or not 2 <= bits <= 16:
        raise Problem(
            f"{bits} bits calibrated on {len(images)} images give no copy.",
            fix="2 to 16 bits, some images",
        )
    small = copy.deepcopy(model)
    weighted = (nn.Linear, nn.modules.conv._ConvNd)
    layers = {name: one for name, one in small.named_modules() if isinstance(one, weighted)}
    if not layers:
        raise Problem(
            "the model has no convolution or dense layer, so there is nothing to quantise."
        )
    ranges = _ranges(small, layers, images)
    for name, module in layers.items():
        module.weight = nn.Parameter(_weights(module.weight, bits), requires_grad=False)
        if name in ranges:
            module.register_forward_pre_hook(_Hook(_ToGrid.spanning(*ranges[name], bits)))
    return _renamed(small, model, f"int{bits}", repr(sorted(ranges.items())))


def lowered(model: Network, precision: str, images: Float[Tensor, "n c h w"]) -> Network:
    """The copy that `precision` names; `images` calibrate the one that needs ranges."""
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
    """The copy of the subject that a method compares with; its option ``copy`` may name another
    arithmetic than 8 bits. `images` calibrate it.
    """
    if not isinstance(subject, Subject):
        raise Problem(
            f'method "{method}" compares with an 8-bit copy of the subject, '
            f'which "{subject.name}" cannot give.',
            fix="--peer MODEL",
        )
    return lowered(subject, str(options.get("copy", "int8")), images())


@dataclass(frozen=True, slots=True)
class _Hook:
    """Rounds what goes into a layer, or what comes out of it."""

    rounding: Callable[[Tensor], Tensor]

    def __call__(self, module: nn.Module, *values: Any) -> Any:
        return _tensors(values[-1], self.rounding)  # of (inputs), or of (inputs, output)


@dataclass(frozen=True, slots=True)
class _ToType:
    """Rounds numbers to those that a type has."""

    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        return _straight(x, x.detach().to(self.dtype).to(x.dtype))


@dataclass(frozen=True, slots=True)
class _ToGrid:
    """Affine quantiser: `scale`, zero point `zero`, `top` as the number of levels."""

    scale: float
    zero: int
    top: int

    @staticmethod
    def spanning(low: float, high: float, bits: int) -> _ToGrid:
        low = min(low, 0.0)
        high = max(high, 0.0)
        top = 2**bits - 1
        scale = (high - low) / top or 1.0
        return _ToGrid(scale, round(-low / scale), top)

    def __call__(self, x: Tensor) -> Tensor:
        steps = (x.detach() / self.scale).round().add(self.zero).clamp(0, self.top)
        return _straight(x, (steps - self.zero) * self.scale)


@dataclass(slots=True)
class _Span:
    """Notes the least and the greatest number that goes into a layer."""

    low: float = float("inf")
    high: float = -float("inf")

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        _tensors(inputs, self.note)

    def note(self, x: Tensor) -> Tensor:
        numbers = x[x.isfinite()]
        if len(numbers):
            self.low = min(self.low, float(numbers.min()))
            self.high = max(self.high, float(numbers.max()))
        return x


def _rounded(model: Network, name: str, dtype: torch.dtype) -> Network:
    small = copy.deepcopy(model)
    rounding = _ToType(dtype)
    for value in small.state_dict().values():
        if value.is_floating_point():
            value.copy_(rounding(value))
    for module in small.modules():
        if not list(module.children()):
            module.register_forward_pre_hook(_Hook(rounding))
            module.register_forward_hook(_Hook(rounding))
    return _renamed(small, model, name)


def _ranges(
    model: nn.Module, layers: Mapping[str, nn.Module], images: Tensor
) -> dict[str, tuple[float, float]]:
    spans = {name: _Span() for name in layers}
    handles = [module.register_forward_pre_hook(spans[name]) for name, module in layers.items()]
    device = next((value.device for value in model.state_dict().values()), torch.device("cpu"))
    try:
        for part in chunks(len(images), 64):
            with torch.no_grad():
                model(images[part].to(device))
    finally:
        for handle in handles:
            handle.remove()
    return {name: (span.low, span.high) for name, span in spans.items() if span.low <= span.high}


def _weights(weight: Tensor, bits: int) -> Tensor:
    most = 2 ** (bits - 1) - 1  # symmetric: -128 is not used, so that 0 stays 0
    largest = weight.abs().flatten(1).amax(1).clamp_min(1e-12)
    scale = largest.reshape(-1, *[1] * (weight.ndim - 1)) / most
    rounded: Tensor = (weight / scale).round().clamp(-most, most) * scale
    return rounded


def _tensors(value: Any, change: Any) -> Any:
    """`value` with every floating-point tensor in it changed."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            return change(value)
        return value
    if isinstance(value, tuple):
        return tuple(_tensors(part, change) for part in value)
    return value


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
        own: Any = small
        own.name = f"{model.name}@{precision}"
        own.hash = digest([str(model.hash), precision, details])
    return small
