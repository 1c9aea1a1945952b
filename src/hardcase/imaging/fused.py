"""What images go through on a GPU: each kind of change in one pass over memory.

The plain functions of this room are the reference: written in torch, a pass over memory for every
product and sum, which costs a photograph as much time as a network. Where a kernel of
``kernels.cu`` can stand in for one (a CUDA device, float32, no gradient wanted) it does, with the
same images bit by bit. Anything that is missing here (a compiler library, a driver) leaves the
plain functions at work. ``HARDCASE_PLAIN_IMAGES=1`` switches the kernels off.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.cache import cache_folder, write_atomically
from hardcase.errors import HardcaseError

__all__ = ["plainly", "usable"]

THREADS = 256
"""Threads of a block."""
ROWS = 2**16 - 1
"""Rows of blocks, at most: a row of them for an image, or for a channel of it."""
KERNELS = ("content", "pose", "resample", "light", "mirrored", "grain", "compress")
SWITCH = "HARDCASE_PLAIN_IMAGES"
"""A variable of the environment with which the plain functions stay at work."""

_log = logging.getLogger(__name__)
_off = False

Batch = Float[Tensor, "m c h w"]


def usable(x: Tensor, *others: Tensor) -> bool:
    """Whether a kernel can do what is asked of these tensors: nothing is differentiated."""
    tensors = (x, *others)
    if _off or not x.is_cuda or x.dtype != torch.float32 or not 0 < len(x) * x.shape[1] <= ROWS:
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return _kernels(x.device.index or 0) is not None


@contextmanager
def plainly() -> Iterator[None]:
    """The plain functions are at work while this lasts: what kernels are compared with."""
    global _off
    before = _off
    _off = True
    try:
        yield
    finally:
        _off = before


# One function for each kernel; what it computes is said where the plain function stands.


def content(x: Batch) -> Int[Tensor, " m"]:
    """Sums of weighed bytes, modulo 2**32, as signed numbers."""
    sums = torch.zeros(len(x), dtype=torch.int32, device=x.device)
    numbers = x[0].numel()
    blocks = min(-(-numbers // THREADS), 32)
    _launch("content", (blocks, len(x)), x.contiguous(), sums, numbers)
    return sums


def pose(
    places: Float[Tensor, "m 2 h w"], rows: Sequence[Float[Tensor, " m"]]
) -> Float[Tensor, "m 2 h w"]:
    """`resample.pose`; `rows` are its ten numbers of every row."""
    shared = places.stride(0) == 0
    start = places[:1] if shared else places
    poses = torch.stack(list(rows), 1)
    out = places.new_empty(places.shape)
    pixels = places.shape[2] * places.shape[3]
    arguments = (start.contiguous(), poses, out, pixels, int(shared))
    _launch("pose", (_blocks(pixels), len(places)), *arguments)
    return out


def resample(x: Batch, places: Float[Tensor, "m 2 h w"]) -> Batch:
    """`resample.resample`."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    pixels = x.shape[2] * x.shape[3]
    arguments = (x.contiguous(), places.contiguous(), out, *x.shape[1:])
    _launch("resample", (_blocks(pixels), len(x)), *arguments)
    return out


def light(
    x: Batch,
    rows: Sequence[Float[Tensor, " m"]],
    balance: Float[Tensor, "m 3 1 1"] | None,
    shade: Float[Tensor, "m 1 p w"],
    down: Float[Tensor, "h p"],
    limit: float,
    encoding: float,
) -> Batch:
    """`colour.lit`: exposure, gamma less 1 and contrast of every row; `shade` at control points
    down and at every pixel across.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    numbers = torch.stack(list(rows), 1)
    stops = numbers if balance is None else balance.contiguous()
    pixels = x.shape[2] * x.shape[3]
    arguments = (x.contiguous(), numbers, stops, shade.contiguous(), down.contiguous(), out)
    sizes = (*x.shape[1:], shade.shape[2], float(limit), _reciprocal(encoding, x.device))
    _launch("light", (_blocks(pixels), len(x)), *arguments, *sizes)
    return out


def mirrored(x: Batch, margin: int, size: Sequence[int]) -> Float[Tensor, "m c h2 w2"]:
    """Images reflected at all edges, and zeros up to a size."""
    count, channels, height, width = x.shape
    out = x.new_empty(count, channels, *size)
    blocks = (_blocks(size[0] * size[1]), count * channels)
    _launch("mirrored", blocks, x.contiguous(), out, height, width, margin, size[0], size[1])
    return out


def grain(x: Batch, key: Int[Tensor, " m"], strength: Float[Tensor, " m"], unit: float) -> Batch:
    """`noise.grainy`; `unit` is the deviation of the sum of its numbers."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    pixels = x.shape[2] * x.shape[3]
    arguments = (x.contiguous(), key.long().contiguous(), strength.contiguous(), out)
    _launch(
        "grain",
        (_blocks(pixels), len(x)),
        *arguments,
        x.shape[1],
        pixels,
        _reciprocal(unit, x.device),
    )
    return out


def compress(
    x: Batch,
    steps: Float[Tensor, "c 8 8"],
    cosines: Float[Tensor, "8 8"],
    scale: Float[Tensor, " m"],
    to: Float[Tensor, "3 3"],
    back: Float[Tensor, "3 3"],
) -> Batch:
    """`colour.compressed` at full resolution of colour."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    height, width = x.shape[2:]
    blocks = -(-height // 8) * -(-width // 8)
    arguments = (x.contiguous(), steps, cosines.contiguous(), scale.contiguous(), to, back, out)
    _launch(
        "compress", (-(-blocks // 4), len(x)), *arguments, *x.shape[1:], _reciprocal(255, x.device)
    )
    return out


@cache
def _reciprocal(number: float, device: torch.device) -> float:
    """What torch multiplies by where it divides by a constant on this device."""
    # On a GPU torch divides by a constant as a product with its reciprocal in float32. The kernels
    # do the same, so that both give equal bits.
    return float(torch.ones(1, device=device) / number)


def _blocks(numbers: int) -> int:
    return -(-numbers // THREADS)


# Compiled once for a kind of device, by the library that comes with torch, and kept in the cache.


def _launch(name: str, blocks: tuple[int, int], *given: Any) -> None:
    """Queue a kernel on the current stream; tensors are handed over by their addresses."""
    first = next(argument for argument in given if isinstance(argument, Tensor))
    kernels = _kernels(first.device.index or 0)
    assert kernels is not None
    # cuLaunchKernel takes an array of addresses of the arguments, not the arguments: `values` must
    # stay alive until the call has returned.
    values = [_argument(argument) for argument in given]
    pointers = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values)
    )
    stream = ctypes.c_void_p(torch.cuda.current_stream(first.device).cuda_stream)
    size = (*blocks, 1, THREADS, 1, 1, 0)
    with torch.cuda.device(first.device):
        _done(_driver().cuLaunchKernel(kernels[name], *size, stream, pointers, None), name)


def _argument(value: Any) -> Any:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_double(value)
    return ctypes.c_int(value)


@cache
def _kernels(device: int) -> Mapping[str, ctypes.c_void_p] | None:
    """The kernels of a device by name; None where they cannot be had."""
    if os.environ.get(SWITCH) or torch.version.hip:
        return None
    try:
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # makes the context that modules are loaded into
            module = ctypes.c_void_p()
            code = _compiled(device)
            _done(_driver().cuModuleLoadData(ctypes.byref(module), code), "load")
            kernels = {}
            for name in KERNELS:
                kernel = ctypes.c_void_p()
                lookup = _driver().cuModuleGetFunction(ctypes.byref(kernel), module, name.encode())
                _done(lookup, name)
                kernels[name] = kernel
    except (OSError, RuntimeError, AttributeError) as error:
        _log.info("images are changed by the plain functions: %s", error)
        return None
    return kernels


def _compiled(device: int) -> bytes:
    """The machine code for a device."""
    source = files("hardcase.imaging").joinpath("kernels.cu").read_bytes()
    major, minor = torch.cuda.get_device_capability(device)
    options = (f"--gpu-architecture=sm_{major}{minor}".encode(),)
    # The name holds everything that the machine code depends on, so that a new release or another
    # GPU compiles anew and an old file is never read.
    about = sha256(b"\0".join((source, *options, str(torch.version.cuda).encode())))
    path = cache_folder() / "kernels" / f"images-{about.hexdigest()[:16]}.cubin"
    with suppress(OSError):
        return path.read_bytes()
    code = _compile(source, options)
    with suppress(OSError, HardcaseError):  # the next command compiles again
        write_atomically(path, code, flush=False)
    return code


def _compile(source: bytes, options: Sequence[bytes]) -> bytes:
    """Compile CUDA C by NVRTC."""
    library = _nvrtc()
    program = ctypes.c_void_p()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernels.cu", 0, None, None
    )
    _done(created, "nvrtc")
    try:
        texts = (ctypes.c_char_p * len(options))(*options)
        if library.nvrtcCompileProgram(program, len(options), texts):
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            text = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, text)
            raise RuntimeError(text.value.decode(errors="replace"))
        size = ctypes.c_size_t()
        _done(library.nvrtcGetCUBINSize(program, ctypes.byref(size)), "cubin")
        code = ctypes.create_string_buffer(size.value)
        _done(library.nvrtcGetCUBIN(program, code), "cubin")
        return code.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc() -> ctypes.CDLL:
    """The compiler library of the CUDA release that torch was built with."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{major}"
    with suppress(OSError):
        return ctypes.CDLL(name)
    from importlib.util import find_spec
    from pathlib import Path

    spec = find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob(f"*/lib/{name}")):
            return ctypes.CDLL(str(path))
    raise OSError(f"{name} is not here")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _done(code: int, what: str) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code}: {what}")
