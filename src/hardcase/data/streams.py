"""Labelled images that stay where they are: only the rows that are asked for are decoded."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar
from zlib import crc32

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.data.formats import Bytes, stacked
from hardcase.errors import Problem
from hardcase.randomness import balanced_order
from hardcase.tensors import to_tensor
from hardcase.types import Images

SHARD = 256
"""Images that are in memory at once when a stream is walked; 224 px in colour: 38 MB."""
HELD = 2**28
"""Bytes of images up to which all of them may be: 1,780 photographs of 224 pixels."""
Read = Callable[[int], Bytes]
"""The image of one row as H x W or H x W x 3."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A labelled image set like `Images`, of which only what is asked for is in memory.

    `read` gives the image of a source's row; `rows` are the source's rows in this stream's order;
    `channels` of 0: three if any image that is decoded together has colour, else one.
    """

    read: Read
    rows: Int[Tensor, " n"]
    y: Int[Tensor, " n"]
    classes: tuple[str, ...]
    channels: int
    names: Callable[[int], str] = str
    name: str = "images"
    split: str = "test"
    _seen: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    _known: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def id(self) -> tuple[str, ...]:
        return tuple(self.names(row) for row in self.rows.tolist())

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width, as the first image has them."""
        return self.first(1).images().shape

    def take(self, rows: Int[Tensor, " r"]) -> Stream:
        """Some rows; nothing is decoded."""
        return replace(self, rows=self.rows[rows], y=self.y[rows])

    def first(self, count: int) -> Stream:
        return self.take(torch.arange(min(count, len(self))))

    def sample(self, *, count: int, seed: int = 0) -> Stream:
        """A random choice with the classes taking turns, as `Images.sample` makes it."""
        order, _ = balanced_order(self.y, self.id, seed=seed)
        return self.take(order[:count])

    def images(self) -> Images:
        """All of it decoded, as `Images`."""
        names = list(self.id)
        workers = min(8, os.cpu_count() or 1)
        with ThreadPoolExecutor(workers) as pool:
            images = list(pool.map(self._read, self.rows.tolist()))
        if not images:
            raise Problem(f"{self.name} holds no images.")
        x = _channels(stacked(images, names), self.channels, names)
        return Images(
            to_tensor(x), self.y.clone(), tuple(names), self.classes, self.name, self.split
        )

    def held(self) -> Images | Stream:
        """All of it decoded, unless that is too much to be in memory."""
        if len(self) * math.prod(self.shape) > HELD:
            return self
        return self.images()

    def shards(self, size: int = SHARD) -> Iterator[Images]:
        """All images, `size` at a time; a shard that was walked past is free to go."""
        for start in range(0, len(self), size):
            yield self.take(torch.arange(start, min(start + size, len(self)))).images()

    @property
    def hash(self) -> str:
        """The same as ``images().hash``, computed once, with one shard in memory."""
        if "hash" not in self._known:
            sha = hashlib.sha256()
            for number, shard in enumerate(self.shards(SHARD)):
                if number == 0:
                    head = f"x:{shard.x.dtype}:{(len(self), *shard.shape)}"
                    sha.update(head.encode() + b"\0")
                sha.update(shard.x.contiguous().numpy().tobytes())
            sha.update(b"\0" + f"y:{self.y.dtype}:{tuple(self.y.shape)}".encode() + b"\0")
            sha.update(self.y.contiguous().numpy().tobytes() + b"\0")
            self._known["hash"] = sha.hexdigest()[:16]
        return self._known["hash"]

    def _read(self, row: int) -> Bytes:
        """The image of a source's row, which must stay what it was when it was first read."""
        image = self.read(row)
        check = crc32(np.ascontiguousarray(image).data)
        if self._seen.setdefault(row, check) != check:
            raise Problem(
                f"the image {self.names(row)} of {self.name} has changed since it was first read.",
                "Findings of two different images would be mixed.",
                fix="once more, when nothing writes to these images",
            )
        return image


ImageSet = Images | Stream
"""Labelled images in memory, or still where they are; what needs no pixels costs none."""
LabelledSet = TypeVar("LabelledSet", bound=Images | Stream)
"""The same, where one kind goes in and comes out."""


PEEKED = 64
"""Images, evenly spread, that say whether a set is grey or has colour."""


def peeked(stream: Stream) -> Stream:
    """The stream with its channels settled by the images that are looked at for it."""
    if not len(stream):
        raise Problem(f"{stream.name} holds no images.")
    rows = stream.rows[:: max(1, len(stream) // PEEKED)].tolist()
    grey = all(stream.read(row).ndim == 2 for row in rows)
    return replace(stream, channels=1 if grey else 3)


def _channels(x: Bytes, channels: int, names: Sequence[str]) -> Bytes:
    """Grey shards of a colour set are given three channels; colour in a grey set is an error."""
    if channels in (0, x.shape[1]):
        return x
    if x.shape[1] == 1:
        return np.repeat(x, channels, axis=1)
    raise Problem(
        f"there are colour images in a grey set, near {names[0]}.",
        fix="save all of them in colour, or all in grey",
    )
