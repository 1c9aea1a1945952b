"""An 8-bit copy that computes in whole numbers: torch's own FX quantisation, on a CPU.

The copy of `precision.int8` rounds what layers store and sums in float32; this one runs torch's int8 kernels, with layers fused
and outputs rounded as well. Its ranges come from calibration images once, so a row's answer does not depend on its neighbours.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.fx
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.errors import Problem
from hardcase.tensors import chunks, digest

ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")
"""Torch's int8 engines, the preferred one first."""
Network = TypeVar("Network", bound=nn.Module)


def fx_int8(model: Network, images: Float[Tensor, "n c h w"]) -> Network:
    """A copy whose layers are torch's int8 kernels, calibrated on `images`; it has no gradients and stays on the CPU.

    Where `model` holds its network as ``net`` (a subject, which normalises first), that network is quantised.
    """
    _on_cpu(model)
    if not len(images):
        raise Problem("an 8-bit copy needs images to learn its ranges from, and there are none.")
    small: Any = copy.deepcopy(model)
    inner = small.net if isinstance(getattr(small, "net", None), nn.Module) else small
    with _engine() as engine:
        prepared = _prepared(inner, images[:1], engine)
        whole = _with(small, inner, prepared)
        for part in chunks(len(images), 64):
            with torch.no_grad():
                whole(images[part])
        whole = _with(small, inner, _converted(prepared))
    if hasattr(model, "name") and hasattr(model, "hash"):
        said = digest([repr(whole(images[:16]).logits.tolist())])
        whole.name, whole.hash = f"{model.name}@fx-int8", digest([str(model.hash), "fx-int8", engine, said])
        whole.offers = "scores"
    made: Network = whole
    return made


def _on_cpu(model: nn.Module) -> None:
    places = {value.device.type for value in model.state_dict().values() if isinstance(value, Tensor)} - {"cpu"}
    if places:
        raise Problem(
            f"torch's int8 kernels run on a CPU; the model is on {places.pop()}.",
            fix="--device cpu, or leave out int8=fx: our own rounding runs anywhere",
        )


@contextmanager
def _engine() -> Iterator[str]:
    """The best engine there is, chosen for as long as this lasts: torch keeps the choice in a global setting."""
    known = torch.backends.quantized.supported_engines
    names = [name for name in ENGINES if name in known]
    if not names:
        raise Problem(f"torch {torch.__version__} has no int8 engine on this machine (it knows: {', '.join(known)}).")
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = names[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that these functions will move to another package
            yield names[0]
    finally:
        torch.backends.quantized.engine = before


def _prepared(net: nn.Module, image: Tensor, engine: str) -> torch.fx.GraphModule:
    try:
        from torch.ao.quantization import get_default_qconfig_mapping
        from torch.ao.quantization.quantize_fx import prepare_fx
    except ImportError as error:
        raise Problem(f"torch {torch.__version__} has no FX quantisation any more: {error}") from error
    try:
        prepared: torch.fx.GraphModule = prepare_fx(net.eval(), get_default_qconfig_mapping(engine), (image,))
    except Exception as error:  # tracing runs the model's own code
        raise Problem(f"torch cannot quantise this model: {error}", fix="leave out int8=fx") from error
    return prepared


def _converted(prepared: torch.fx.GraphModule) -> nn.Module:
    from torch.ao.quantization.quantize_fx import convert_fx

    try:
        net: nn.Module = convert_fx(prepared)
    except Exception as error:  # an engine may lack a kernel
        raise Problem(f"torch cannot quantise this model: {error}", fix="leave out int8=fx") from error
    return net


def _with(whole: Any, inner: nn.Module, net: nn.Module) -> Any:
    """`whole` with `net` in the place of its network, or `net` itself."""
    if whole is inner:
        return net
    whole.net = net
    return whole
