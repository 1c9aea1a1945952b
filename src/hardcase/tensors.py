"""Small tensor functions that rooms share, and encoding and decoding of PNG."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from hardcase.errors import HardcaseError

# PNG in a few lines: a writer several times faster than a general one, and a reader for any PNG.

_GREY = 0
_COLOUR = 2
T = TypeVar("T")
MANY_BYTES = 2**22
"""Bytes of images from which on threads compress them."""


def encode(image: UInt8[Tensor, "c h w"]) -> bytes:
    """An 8-bit grey or colour image as PNG; the same image always gives the same bytes."""
    return encode_all(image[None])[0]


def encode_all(images: UInt8[Tensor, "n c h w"]) -> list[bytes]:
    """Each image as PNG, the same bytes as `encode` gives."""
    count, channels, height, width = images.shape
    lines = np.zeros(
        (count, height, width * channels + 1), dtype=np.uint8
    )  # every line starts with filter type 0
    lines[:, :, 1:] = (
        images.permute(0, 2, 3, 1).reshape(count, height, width * channels).cpu().numpy()
    )
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if channels == 1 else _COLOUR, 0, 0, 0)
    head = b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header)
    tail = _chunk(b"IEND", b"")
    pixels = _parallel_map(partial(zlib.compress, level=1), lines, lines.nbytes)
    return [b"".join((head, _chunk(b"IDAT", data), tail)) for data in pixels]


def _parallel_map(work: Callable[[Any], T], items: Any, size: int) -> list[T]:
    """Map `work` over items, in threads if they hold many bytes: zlib releases the interpreter's
    lock."""
    if size < MANY_BYTES:
        return list(map(work, items))
    parts = [items[part] for part in chunks(len(items), 64)]  # a task for each is most of the work
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(chain.from_iterable(threads.map(lambda part: list(map(work, part)), parts)))


LARGEST = 2**26
"""Pixels of an image, at most; a small file can promise any number of them."""


def decode(data: bytes | None, side: tuple[int, ...] | None = None) -> UInt8[Tensor, "c h w"]:
    """The image in a PNG, as one or three channels; nothing else is opened."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data or b""), formats=("PNG",)) as picture:
            width, height = picture.size
            if width * height > LARGEST or (side is not None and side != (height, width)):
                raise ValueError(f"it is {height} x {width}")
            plain = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
            array = np.array(plain)
    except Exception as error:  # the reader raises many kinds for a damaged file
        raise HardcaseError(
            f"a stored image is damaged: {type(error).__name__}: {error}"
        ) from error
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


def decode_all(data: Sequence[bytes | None]) -> UInt8[Tensor, "n c h w"]:
    """The images of PNGs of equal size."""
    if not data:
        return torch.zeros(0, 1, 1, 1, dtype=torch.uint8)
    first = decode(data[0])
    images = torch.empty(len(data), *first.shape, dtype=torch.uint8)

    def put(row: int) -> None:
        image = decode(data[row], first.shape[1:])
        if image.shape != first.shape:
            raise HardcaseError("the stored images have different sizes; they are damaged.")
        images[row] = image

    _parallel_map(put, range(len(data)), images.numel())
    return images


def remade(data: bytes | None) -> bytes:
    """Encode a stored image as a new PNG: whatever bytes were stored, an image leaves."""
    return encode(decode(data))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# Small tensor functions that several rooms share.

TILE = 16
"""Rows to which every network call is padded, so that a row's numbers do not depend on its
neighbours.
"""


def to_grid(x: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """The nearest 8-bit image, straight-through for gradients over rounding and clamping alike."""
    if x.requires_grad and torch.is_grad_enabled():
        grid: Tensor = _Grid.apply(x)  # type: ignore[no-untyped-call]  # torch says no types
        return grid
    return _on_grid(x)


def _on_grid(x: Tensor) -> Tensor:
    return x.detach().clamp(0, 1).mul_(255).round_().div_(255)


class _Grid(torch.autograd.Function):
    """The grid with the gradient of its input, without another pass over the images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _on_grid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def to_bytes(x: Float[Tensor, " *shape"]) -> UInt8[Tensor, " *shape"]:
    return x.detach().clamp(0, 1).mul_(255).round_().to(torch.uint8)


def from_bytes(x: UInt8[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    return x.float() / 255


def to_tensor(array: npt.NDArray[Any]) -> Tensor:
    """A contiguous copy that may be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def pad_rows(x: Tensor, tile: int = TILE) -> Tensor:
    """`x` with its last row repeated up to a multiple of `tile` rows."""
    missing = -len(x) % tile
    return (
        x if missing == 0 or len(x) == 0 else torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])
    )


_steady = {"cpu"}
"""Kinds of device on which padding to whole tiles is enough for a row's numbers to depend on that
row alone.
"""
_constant: dict[str, int] = {}
"""Kinds of device on which every call has a constant shape, and the rows of that tile."""


def steady(device: torch.device) -> bool:
    """Whether rows have the same bits in any number of complete tiles, as on a CPU; elsewhere every
    call needs a constant shape.
    """
    return device.type in _steady


def use_tile(kind: str, rows: int | None) -> None:
    """From now on every network call on this kind of device has `rows` rows; None:
    padded as on a CPU.
    """
    _constant.pop(kind, None)
    if rows is not None:
        _constant[kind] = rows


def tile_in_use(kind: str) -> int | None:
    """The rows of every call on this kind of device, if they are constant."""
    return _constant.get(kind)


@contextmanager
def any_rows(device: torch.device) -> Iterator[None]:
    """Calls on this device are padded as on a CPU, while this lasts."""
    before = _constant.pop(device.type, None)
    try:
        yield
    finally:
        use_tile(device.type, before)


def tile_rows(device: torch.device) -> int:
    """The rows of a tile on this device."""
    return _constant.get(device.type, TILE)


def in_tiles(*rows: Tensor) -> Iterator[tuple[Any, ...]]:
    """Aligned rows in parts of complete tiles, padded, each with how many of its rows are real:
    what is computed of such a part depends, row by row, on that row alone.

    On a CPU a single part, padded to a multiple of `TILE` rows; on a device with a constant tile a
    part per tile.
    """
    count = len(rows[0])
    kind = rows[0].device.type
    size = _constant.get(kind, TILE)
    for part in chunks(count, _constant.get(kind, max(count, 1))):
        yield *(pad_rows(part_rows[part], size) for part_rows in rows), part.stop - part.start


def tiled(f: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """``f(*rows)`` computed `in_tiles`."""
    parts = [f(*padded)[:count] for *padded, count in in_tiles(*rows)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def total(x: Float[Tensor, " *shape"], dim: int = 1) -> Float[Tensor, " *rest"]:
    """The sum along an axis, added in an order that depends on the length of that axis alone.

    The sum of a CPU does so; a kernel of another device may choose the order by the number of rows,
    so there halves are added to halves.
    """
    if x.device.type in _steady or not x.shape[dim]:
        return x.sum(dim)
    while x.shape[dim] > 1:
        if x.shape[dim] % 2:
            x = torch.cat([x, torch.zeros_like(x.narrow(dim, 0, 1))], dim)
        half = x.shape[dim] // 2
        x = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
    return x.squeeze(dim)


def length(x: Float[Tensor, " *shape"], dim: int = 1) -> Float[Tensor, " *rest"]:
    """The L2 norm along an axis, its squares added as `total` does; its gradient at 0 is 0."""
    if x.device.type in _steady:
        norm: Tensor = torch.linalg.vector_norm(x, dim=dim)
        return norm
    square = total(x.square(), dim)
    positive = square > 0
    return torch.where(positive, square, 1).sqrt() * positive


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` rows that cover `count` rows."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


AHEAD = 2
"""Parts that wait in pinned memory while a GPU works on those before."""


def sent(x: Tensor, parts: Iterable[slice], device: torch.device) -> Iterator[Tensor]:
    """These parts of `x` on a device, in turn.

    To a GPU they go through pinned memory, which another thread fills meanwhile: neither the device
    nor this thread waits for a copy.
    """
    if device.type != "cuda" or x.device.type != "cpu":
        yield from (x[part].to(device) for part in parts)
        return
    waiting = deque[Future[Tensor]]()
    with ThreadPoolExecutor(1) as filler:
        for part in parts:
            waiting.append(filler.submit(lambda some: x[some].pin_memory(), part))
            if len(waiting) > AHEAD:
                yield waiting.popleft().result().to(device, non_blocking=True)
        while waiting:
            yield waiting.popleft().result().to(device, non_blocking=True)


@lru_cache(maxsize=256)
def constant(values: tuple[Any, ...], like: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as a tensor on a device, copied once: a copy to a device waits for its whole queue,
    and nothing that waits can be captured (`hardcase.graphs`).
    """
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=like, device=device)


class Copies:
    """Tensors and their copies on other devices, each copied once: a copy to a device waits
    for its queue.

    Args:
        tensors: What is copied; elsewhere, pickled or not, it starts without copies.
    """

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors
        self._made = dict[torch.device, tuple[Tensor, ...]]()

    def __reduce__(self) -> tuple[type[Copies], tuple[Tensor, ...]]:
        return Copies, self.tensors

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        if device not in self._made:
            self._made[device] = tuple(part.to(device) for part in self.tensors)
        return self._made[device]


def flat(x: Tensor) -> Float[Tensor, "m d"]:
    return x.flatten(1)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """`values` (a number per row) shaped to broadcast over the trailing axes of `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def ordinal(groups: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
    """How many earlier entries are of the same group, for each entry."""
    if steady(groups.device) and bool((groups[1:] > groups[:-1]).all()):
        return torch.zeros_like(groups)  # as most are: each group once, and in order
    order = groups.argsort(stable=True)
    ranked = groups[order]
    starts = torch.ones_like(ranked, dtype=torch.bool)
    starts[1:] = ranked[1:] != ranked[:-1]
    position = torch.arange(len(groups), device=groups.device)
    first = torch.where(starts, position, 0).cummax(0).values
    return torch.empty_like(order).index_put_((order,), position - first)


def margin(logits: Float[Tensor, "m k"], label: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Best other logit minus the logit of the label: positive where the label has lost."""
    at_label = logits.gather(1, label[:, None])
    others = logits.scatter(1, label[:, None], -torch.inf)
    return (others.amax(1, keepdim=True) - at_label).squeeze(1)


def digest(parts: Iterable[bytes | str | memoryview]) -> str:
    """A short content hash of `parts` in order."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part)
        sha.update(b"\0")
    return sha.hexdigest()[:16]


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A content hash of named tensors: equal for equal names, types, shapes and bytes.

    Of state that is no tensor, which a network may hold besides its weights, the type counts.
    """
    parts = list[bytes | str | memoryview]()
    for name, value in sorted(tensors.items()):
        if not isinstance(value, Tensor):
            parts.append(f"{name}:{type(value).__name__}")
            continue
        plain = value.detach().cpu()
        if plain.is_quantized:
            plain = plain.dequantize()
        elif plain.layout is not torch.strided:
            plain = plain.to_dense()
        content = plain.contiguous().reshape(-1).view(torch.uint8).numpy().data
        parts += [f"{name}:{value.dtype}:{tuple(value.shape)}", content]
    return digest(parts)


def digest_values(tensors: Iterable[Tensor]) -> str:
    """A hash of what tensors hold, whatever their names, shapes and order; empty if there are none.

    Example:
        >>> a = torch.ones(2, 3)
        >>> b = torch.zeros(4)
        >>> digest_values([a, b]) == digest_values([b, a.T.contiguous()])
        True
    """
    parts = [value.detach().cpu().contiguous().reshape(-1) for value in tensors]
    hashes = sorted(digest([part.view(torch.uint8).numpy().tobytes()]) for part in parts)
    return digest(hashes) if hashes else ""


def fingerprints(x: UInt8[Tensor, "n c h w"]) -> Int[Tensor, " n"]:
    """A number for the content of every image: what a judge has learned from, and what a store
    holds.

    Example:
        >>> images = torch.arange(8, dtype=torch.uint8).reshape(2, 1, 2, 2)
        >>> bool(fingerprints(images)[1] == fingerprints(images[1:])[0])
        True
    """
    rows = x.flatten(1).cpu().contiguous().numpy()
    words = [hashlib.blake2b(row, digest_size=8).digest() for row in rows]
    return torch.tensor(
        [int.from_bytes(word, "big", signed=True) for word in words], dtype=torch.int64
    )


DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Kinds of devices that can be named."""


def usable_device(name: str) -> str:
    """A device that exists here; ``auto`` is a GPU if available."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind not in DEVICES:
        available = f"--device {'cuda' if torch.cuda.is_available() else 'cpu'}"
        raise HardcaseError(
            f"there is no device {name!r}.", f"known: auto, {', '.join(DEVICES)}", fix=available
        )
    try:
        if torch.zeros(1, device=name).is_meta:
            raise RuntimeError("it computes no values")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise HardcaseError(
            f"device {name!r} cannot be used: {reason}", fix="--device cpu"
        ) from error
    return name
