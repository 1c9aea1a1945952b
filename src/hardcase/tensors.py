"""Small tensor functions that several rooms share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

TILE = 16
"""Rows to which every network call is padded, so that a row's numbers do not depend on its neighbours."""


def to_grid(x: Float[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    """The nearest 8-bit image, straight-through for gradients over rounding and clamping alike."""
    grid = x.detach().clamp(0, 1).mul_(255).round_().div_(255)
    return x + (grid - x).detach() if x.requires_grad else grid


def to_bytes(x: Float[Tensor, " *shape"]) -> UInt8[Tensor, " *shape"]:
    return x.detach().clamp(0, 1).mul_(255).round_().to(torch.uint8)


def from_bytes(x: UInt8[Tensor, " *shape"]) -> Float[Tensor, " *shape"]:
    return x.float() / 255


def pad_rows(x: Tensor, tile: int = TILE) -> Tensor:
    """`x` with its last row repeated up to a multiple of `tile` rows."""
    missing = -len(x) % tile
    return x if missing == 0 or len(x) == 0 else torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])


def tiled(f: Callable[[Tensor], Tensor], x: Tensor, tile: int = TILE) -> Tensor:
    """``f(x)`` computed on whole tiles of rows; see `TILE`."""
    return f(pad_rows(x, tile))[: len(x)]


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` rows that cover `count` rows."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def flat(x: Tensor) -> Float[Tensor, "m d"]:
    return x.flatten(1)


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """`values` (one a row) shaped to broadcast over the trailing axes of `like`."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def margin(logits: Float[Tensor, "m k"], label: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Best other logit minus the label's own: positive where the label has lost."""
    own = logits.gather(1, label[:, None])
    others = logits.scatter(1, label[:, None], -torch.inf)
    return (others.amax(1, keepdim=True) - own).squeeze(1)


def digest(parts: Iterable[bytes | str]) -> str:
    """A short content hash of `parts` in order."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() if isinstance(part, str) else part)
        sha.update(b"\0")
    return sha.hexdigest()[:16]


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """A content hash of named tensors: equal for equal names, types, shapes and bytes."""

    def parts() -> Iterator[bytes | str]:
        for name, value in sorted(tensors.items()):
            yield f"{name}:{value.dtype}:{tuple(value.shape)}"
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()

    return digest(parts())
