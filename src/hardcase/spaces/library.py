"""Codes of many images, encoded once into a memory-mapped file: partners to mix seeds with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from hardcase.errors import Problem
from hardcase.tensors import chunks, flat, from_bytes
from hardcase.types import Images


@dataclass(frozen=True)
class Library:
    """`codes` may be larger than memory; `take` copies only the rows asked for."""

    codes: Float[Tensor, "l *code"]
    label: Int[Tensor, " l"]

    def take(self, rows: Int[Tensor, " *shape"]) -> Tensor:
        picked = self.codes.index_select(0, rows.reshape(-1).to(self.codes.device)).to(rows.device)
        return picked.reshape(*rows.shape, *self.codes.shape[1:])

    def mean(self, rows: Int[Tensor, "n c"]) -> Float[Tensor, "n d"]:
        """The mean code of each line of rows."""
        return embedding_bag(rows.to(self.codes.device), flat(self.codes), mode="mean").to(rows.device)

    @cached_property
    def by_class(self) -> tuple[Int[Tensor, " o"], ...]:
        """For each class, the rows of all other classes, classes taking turns."""
        turns = torch.zeros_like(self.label)
        for label in set(self.label.tolist()):
            turns[self.label == label] = torch.arange(int((self.label == label).sum()))
        order = (turns * (int(self.label.max()) + 1) + self.label).argsort(stable=True)
        return tuple(order[self.label[order] != c] for c in range(int(self.label.max()) + 1))

    def __reduce__(self) -> tuple[object, ...]:
        return (Library, (torch.from_numpy(self.codes.cpu().numpy().copy()), self.label))


def collect(
    images: Images, encode: Callable[[Tensor], Tensor], *, device: torch.device, limit: int = 30_000
) -> Library:
    """Encode up to `limit` of `images` (classes balanced) into a temporary file that vanishes with the library; on a GPU with
    room for them, codes stay there."""
    images = images.sample(count=min(limit, len(images)), seed=0)
    if len(set(images.y.tolist())) < 2:
        raise Problem(f"{images.name} has images of one class only; interpolation needs partners of another class.")
    with torch.no_grad():
        first = encode(from_bytes(images.x[:16].to(device)))
        shape = (len(images), *first.shape[1:])
        codes = torch.empty(shape, device=device) if _roomy(shape, device) else _mapped(shape)
        for part in chunks(len(images), 256):
            codes[part] = encode(from_bytes(images.x[part].to(device))).to(codes.device)
    return Library(codes, images.y)


def _roomy(shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether codes of this shape take no more than a quarter of what is free on a GPU."""
    return device.type == "cuda" and 4 * prod(shape) <= torch.cuda.mem_get_info(device)[0] // 4


def _mapped(shape: tuple[int, ...]) -> Tensor:
    count = prod(shape)
    handle, name = tempfile.mkstemp(prefix="hardcase-codes-")
    os.close(handle)
    codes = torch.from_file(name, shared=True, size=count, dtype=torch.float32).reshape(shape)
    Path(name).unlink()
    return codes
