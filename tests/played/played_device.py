"""A GPU played on the CPU, for machines that have none: what is hard about a device, and no speed.

On a GPU the last bits of an answer and of a sum along each row depend on the shape of the batch,
large batches may mix rows, memory ends at some size, and an error is told at the next
synchronisation instead of where it happened. `PlayedDevice` makes every network of this process
behave so, through hooks that torch calls for all modules, and every sum along rows: the code under
test is that of a real device, tiles, shards and halved batches included.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from hardcase import tensors

VARIABLE = "HARDCASE_PLAYED_DEVICE"
"""Environment variable that says how a device is played, e.g. ``tile=64 memory=100000``."""
SYNCHRONISING = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__")
"""What waits for a device, and is told of its errors."""
SUMS = (
    *((torch.Tensor, name) for name in ("sum", "mean", "norm")),
    *((torch, name) for name in ("sum", "mean", "norm")),
    (torch.linalg, "vector_norm"),
)
"""What adds along an axis, in an order that a device chooses by the shape."""
PRODUCTS = (
    *((torch.Tensor, name) for name in ("matmul", "__matmul__", "mm")),
    *((torch, name) for name in ("matmul", "mm", "cdist")),
)
"""What multiplies matrices, row by row of the first."""
WAITING = (
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"),
    *("_unique2", "unique_dim", "bincount", "repeat_interleave"),
)
"""Operations of torch whose result, or its shape, the processor must know before it goes on."""


class PlayedDevice:
    """While this context is open, the CPU counts as a device whose calls need one constant shape.

    Args:
        drift: How far, relatively, the number of rows of a call moves the output of each layer.
        tile: Rows of every call, as a run's own test of tiles would settle it; None: left to
            that test.
        mixing: Rows above which rows of a call see each other.
        memory: Bytes for what is kept for gradients and for the input of a call.
        fails: Calls of layers after which the device is lost; None: never.
    """

    def __init__(
        self,
        *,
        drift: float = 1e-5,
        tile: int | None = None,
        mixing: int | None = None,
        memory: int | None = None,
        fails: int | None = None,
    ) -> None:
        self.drift, self.tile, self.mixing = drift, tile, mixing
        self.memory, self.fails = memory, fails
        self.calls = self.held = 0
        self._open = ExitStack()

    @classmethod
    def from_text(cls, text: str) -> PlayedDevice:
        """A device as the environment variable describes it: ``NAME=NUMBER`` separated by spaces."""
        pairs = (word.split("=") for word in text.split() if "=" in word)
        return cls(**{name: (float if name == "drift" else int)(value) for name, value in pairs})

    def __enter__(self) -> PlayedDevice:
        undo = self._open
        tensors._steady.discard("cpu")
        undo.callback(tensors._steady.add, "cpu")
        tensors.use_tile("cpu", self.tile)
        undo.callback(tensors.use_tile, "cpu", None)
        undo.callback(register_module_forward_pre_hook(self._before).remove)
        undo.callback(register_module_forward_hook(self._after).remove)
        for home, name in SUMS:
            self._replace(home, name, _reordered(getattr(home, name)))
        for home, name in PRODUCTS:
            self._replace(home, name, self._drifting(getattr(home, name)))
        if self.memory is not None:
            keep = partial(_SavedTensor, self)
            undo.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, _SavedTensor.value))
        if self.fails is not None:
            for name in SYNCHRONISING:
                self._wait_at(name)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if _computes(module) and args and isinstance(args[0], Tensor):
            self._take(args[0].nbytes, kept=False)

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The layer's output as a call of so many rows gives it."""
        if not _computes(module) or not isinstance(output, Tensor) or not output.ndim:
            return None
        self.calls += 1
        moved = self.drifted(output)
        if self.mixing is not None and len(output) > self.mixing:
            moved = moved + self.drift * output.roll(1, 0)
        return moved

    def drifted(self, output: Tensor) -> Tensor:
        """What a call of so many rows gives in place of `output`."""
        return output * (1 + self.drift * (len(output) * 2654435761 % 97) / 97)

    def _take(self, size: int, *, kept: bool) -> None:
        if self.memory is not None and self.held + size > self.memory:
            held = f"{self.held:,} bytes are held and {size:,} wanted of {self.memory:,}"
            raise torch.OutOfMemoryError(f"CUDA out of memory, as played: {held}")
        self.held += size if kept else 0

    def _drifting(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def product(rows: Tensor, *args: Any, **how: Any) -> Any:
            made = usual(rows, *args, **how)
            return self.drifted(made) if made.ndim and len(made) == len(rows) else made

        return product

    def _wait_at(self, name: str) -> None:
        """From now on `name` tells of an error that happened before."""
        usual: Callable[..., Any] = getattr(torch.Tensor, name)

        def waiting(this: Tensor, *args: Any, **how: Any) -> Any:
            if self.fails is not None and self.calls >= self.fails:
                raise torch.AcceleratorError("CUDA error: an illegal memory access, as played")
            return usual(this, *args, **how)

        self._replace(torch.Tensor, name, waiting)

    def _replace(self, home: Any, name: str, other: Callable[..., Any]) -> None:
        """`other` in place of a function of torch until this context is closed."""
        usual = getattr(home, name)
        own = name in vars(home)
        setattr(home, name, other)
        self._open.callback(*((setattr, home, name, usual) if own else (delattr, home, name)))


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it bare
    """Counts how often the code inside would wait for a device: for a number, or for a size."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it bare
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.count += name in WAITING or (
            name in ("index", "index_put", "index_put_")
            and any(place is not None and place.dtype == torch.bool for place in args[1])
        )
        return func(*args, **(kwargs or {}))


class _SavedTensor:
    """A tensor that waits for the backward pass, and the memory it takes until then."""

    def __init__(self, device: PlayedDevice, tensor: Tensor) -> None:
        self.size = 0
        size = 0 if isinstance(tensor, nn.Parameter) else tensor.nbytes
        device._take(size, kept=True)
        self.device = device
        self.tensor = tensor
        self.size = size

    def value(self) -> Tensor:
        return self.tensor

    def __del__(self) -> None:
        if self.size:
            self.device.held -= self.size


def _reordered(usual: Callable[..., Any]) -> Callable[..., Any]:
    """A sum that begins elsewhere along the axis, by the number of rows."""

    def adding(x: Tensor, *args: Any, **how: Any) -> Any:
        dim = how.get("dim", args[0] if args else None)
        if isinstance(dim, int) and x.is_floating_point() and dim % x.ndim:
            x = x.roll(len(x) * 7 % 97, dim)
        return usual(x, *args, **how)

    return adding


def _computes(module: nn.Module) -> bool:
    """Whether a module multiplies by weights of its own."""
    return any(weight is not None for weight in module._parameters.values())


def play_for_good() -> None:
    """Play the device that the environment describes until this process ends."""
    PlayedDevice.from_text(os.environ[VARIABLE]).__enter__()
