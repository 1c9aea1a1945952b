"""Images in files, as 8-bit arrays: encoded images, turned as the camera was held and brought to
the same size (``?resize=224&crop=center``), the formats of the public data sets, and labelled
images that stay in their files until they are needed. Nothing here unpickles.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from hardcase.cache import regular, unpacked
from hardcase.errors import HardcaseError, reading
from hardcase.randomness import balanced_order
from hardcase.tensors import LARGEST, chunks, to_tensor
from hardcase.types import Images

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Part = tuple[Bytes, Labels]
"""Images N x C x H x W and their labels."""


# Encoded images of any size.

USUAL_SIDE = 224
"""Side that most networks for photographs take."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is opened. Others, such as PostScript, are programs that an interpreter would run."""
GREY = ("1", "L", "LA", "La")
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")


class MixedSizes(HardcaseError):  # noqa: N818 - what is wrong
    """Images of different sizes, the shortest side of which is `side`."""

    def __init__(self, seen: str, side: int, taken: Sequence[int] = ()) -> None:
        fitting = [width for width in (USUAL_SIDE, *sorted(taken, reverse=True)) if width in taken]
        best = next((width for width in fitting if width <= side), min(taken, default=0))
        shown_side = best or min(side, USUAL_SIDE)
        if len(taken) > 1:
            why = f"the model takes images of {min(taken)} to {max(taken)} pixels"
        elif taken:
            why = f"the model takes {best} pixels"
        else:
            why = f"if the model takes {shown_side} pixels"
        super().__init__(
            f"the images have different sizes: {seen}.",
            "A classifier is tested on images of one size.",
            fix=f"?resize={shown_side}&crop=center after the path, {why}",
        )
        self.seen = seen
        self.side = side


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How an encoded image gets the wanted size; 0 leaves it.

    Args:
        resize: Without `crop`, the side of the square into which the entire image is drawn, out of
            proportion if it has to be; with `crop`, the length of its shorter side.
        crop: Side of the square that is cut from the middle.
    """

    resize: int = 0
    crop: int = 0

    def __post_init__(self) -> None:
        if min(self.resize, self.crop) < 0:
            raise HardcaseError(
                f"resize={self.resize} and crop={self.crop} are numbers of pixels, 1 or more."
            )
        if self.resize and self.crop > self.resize:
            raise HardcaseError(
                f"crop={self.crop} is more than resize={self.resize} leaves.",
                fix=f"resize={self.crop} or more",
            )

    @staticmethod
    def of(options: Mapping[str, str]) -> Sizing:
        """From the words after ``?``; ``crop=center`` cuts a square of the size of ``resize``."""
        resize = _pixels("resize", options.get("resize", "0"))
        word = options.get("crop", "0")
        if word == "center" and not resize:
            raise HardcaseError(
                "crop=center needs resize=N, the side of the square.", fix="?resize=224&crop=center"
            )
        crop = resize if word == "center" else _pixels("crop", word)
        return Sizing(resize=resize, crop=crop)

    def __bool__(self) -> bool:
        return bool(self.resize or self.crop)

    def __str__(self) -> str:
        sizes = {"resize": self.resize, "crop": self.crop}
        return "&".join(f"{name}={value}" for name, value in sizes.items() if value)

    def apply(
        self, image: Image.Image, resample: Image.Resampling = Image.Resampling.BICUBIC
    ) -> Image.Image:
        """The image in its size; bicubic, antialiased."""
        (width, height), (left, top) = self.frame(image.size)
        if (width, height) != image.size:
            image = image.resize((width, height), resample)
        if self.crop:
            image = image.crop((left, top, left + self.crop, top + self.crop))
        return image

    def frame(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Width and height that an image is drawn to, and where the cropped part begins."""
        width, height = size
        if self.resize and not self.crop:
            return (self.resize, self.resize), (0, 0)
        if self.resize:
            share = self.resize / min(size)
            width, height = (max(self.crop, round(share * side)) for side in size)
        if not self.crop:
            return (width, height), (0, 0)
        if min(width, height) < self.crop:
            raise HardcaseError(
                f"an image of {width}×{height} has no square of {self.crop} pixels.",
                fix=f"?resize={self.crop}&crop={self.crop}",
            )
        return (width, height), ((width - self.crop) // 2, (height - self.crop) // 2)


def pixels_of(image: Image.Image, sizing: Sizing, where: str) -> Bytes:
    """An image as 8-bit pixels, H x W or H x W x 3, turned as its EXIF entry says."""
    if image.mode in DEEP:
        raise HardcaseError(
            f"the image {where} has more than 8 bits a pixel (Pillow mode {image.mode}).",
            "hardcase works on 8-bit images, and how to scale the others is a choice that it does"
            " not make.",
            fix="save the images with 8 bits a channel",
        )
    upright = ImageOps.exif_transpose(image)
    plain = upright.convert("L" if upright.mode in GREY else "RGB")
    return np.asarray(sizing.apply(plain))


def decoded(data: bytes, sizing: Sizing, where: str) -> Bytes:
    """An encoded image as `pixels_of` returns it."""
    fix = "remove the file or replace it by a whole one"
    with reading(f"cannot read the image {where}", fix=fix):
        try:
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:  # its own words hold an address in memory
            why = f"is none of {', '.join(FORMATS)}" if data else "is empty"
            raise HardcaseError(f"cannot read the image {where}: it {why}.", fix=fix) from None
        except Image.DecompressionBombError:
            what = f"the image {where} is too large; at most {LARGEST:,} pixels are read."
            raise HardcaseError(what, fix="a smaller copy of it") from None
        with opened as image:
            width, height = image.size
            if width * height > LARGEST:
                raise HardcaseError(
                    f"the image {where} has {width} x {height} pixels; at most {LARGEST:,} are"
                    " read.",
                    fix="a smaller copy of it",
                )
            return pixels_of(image, sizing, where)


def stacked(images: Iterable[Bytes], names: Sequence[str]) -> Bytes:
    """Images of equal size as N x C x H x W: a single channel if all are grey, else three."""
    x = np.empty((0, 0, 0, 0), dtype=np.uint8)
    other = ""
    side = 0
    for place, image in enumerate(images):
        height, width = image.shape[:2]
        if place == 0:
            channels = 1 if image.ndim == 2 else 3
            x = np.empty((len(names), channels, height, width), dtype=np.uint8)
            side = min(height, width)
        elif (height, width) != x.shape[2:]:
            side = min(side, height, width)
            other = other or f"{names[place]} is {width}×{height}"
        if other:
            continue
        if image.ndim == 3 and x.shape[1] == 1:  # the first in colour among grey ones
            x = np.repeat(x, 3, axis=1)
        x[place] = image if image.ndim == 2 else image.transpose(2, 0, 1)
    if other:
        raise MixedSizes(f"{names[0]} is {x.shape[3]}×{x.shape[2]}, {other}", side)
    return x


def _pixels(name: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise HardcaseError(
            f"{name}={word} is no number of pixels.", fix="?resize=224&crop=center"
        ) from None


# Files of public data sets.


def damaged(path: Path, why: str) -> HardcaseError:
    return HardcaseError(f"{path.name} is damaged or of another kind: {why}.", f"Read from {path}.")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    data = regular(path).read_bytes()
    if data[:2] != b"\x1f\x8b":
        return data
    most = unpacked(path)
    try:
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it cannot be unpacked ({error})") from error
    if len(content) > most:
        raise damaged(path, f"it unfolds to more than {most:,} bytes")
    return content


def read_idx(path: Path) -> Bytes:
    """An IDX file of bytes (the format of MNIST): 0, 0, 8, the number of axes, their sizes, the
    data."""
    data = read_bytes(path)
    axes = data[3] if len(data) > 3 else 0
    if data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * axes:
        raise damaged(
            path, f"it starts with {data[:4]!r}, not with the header of an IDX file of bytes"
        )
    shape = tuple(np.frombuffer(data[4 : 4 + 4 * axes], ">u4").tolist())
    content = data[4 + 4 * axes :]
    if len(content) != math.prod(shape):
        raise damaged(path, f"its header promises {shape}, but {len(content)} bytes follow")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_idx_pair(
    images: Path, labels: Path, *, first_label: int = 0, turned: bool = False
) -> Part:
    """Grey images and labels from two IDX files; `turned` swaps rows and columns."""
    x = read_idx(images)
    y = read_idx(labels)
    if x.ndim != 3 or y.shape != x.shape[:1]:
        raise damaged(images, f"{x.shape} images do not fit {y.shape} labels")
    x = x.transpose(0, 2, 1) if turned else x
    return np.ascontiguousarray(x[:, None]), y.astype(np.int64) - first_label


def read_cifar_binary(path: Path) -> Part:
    """The binary version of CIFAR-10: a row is the label and 3 x 32 x 32 bytes."""
    data = np.frombuffer(read_bytes(path), np.uint8)
    if not data.size or data.size % 3073:
        raise damaged(path, f"{data.size} bytes are not rows of 3,073")
    rows = data.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def read_cifar_rows(path: Path) -> Bytes:
    """A PNG in which each line of 1,024 colour pixels is a 32 x 32 image."""
    pixels = decoded(path.read_bytes(), Sizing(), str(path))
    if pixels.ndim != 3 or pixels.shape[1] != 1024:
        raise damaged(path, f"it is {pixels.shape}, not rows of 1,024 colour pixels")
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def read_json_labels(path: Path) -> Labels:
    try:
        labels = json.loads(path.read_text())
        return np.asarray(labels, dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(path, f"it is not a JSON list of whole numbers ({error})") from error


# One fixed division into train and test for data that comes without one.

TEST_SHARE = 0.2


def content_hashes(x: Bytes) -> Array:
    """A digest of every image's pixels."""
    return np.array([hashlib.sha256(image.tobytes()).hexdigest() for image in x], dtype="S64")


def split_by_content(hashes: Array, y: Labels, split: str) -> Labels:
    """The rows of a split: of each class the fifth with the lowest content hashes is for testing.

    Only pixels and labels count, and equal images of a class are never divided.
    """
    test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        # ranks of contents: equal images share one, so they are never divided
        _, order = np.unique(hashes[rows], return_inverse=True)
        different = int(order.max()) + 1
        test[rows] = order < max(1, round(TEST_SHARE * different))
    return np.flatnonzero(test if split == "test" else ~test).astype(np.int64)


# Which files together hold a public data set, and how they become images and labels.

Parts = dict[str, Part]
"""Images and labels of each split."""


@dataclass(frozen=True, slots=True)
class Form:
    """Files that together hold a data set, perhaps gzipped (``.gz``), and how to read them."""

    files: tuple[str, ...]
    read: Callable[[Mapping[str, Path]], Parts]


def idx(train: str, test: str, *, first_label: int = 0, turned: bool = False) -> Form:
    """Two pairs of IDX files, by the words that their names begin with."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    names = {
        split: [f"{word}-{kind}" for kind in kinds]
        for split, word in (("train", train), ("test", test))
    }

    def read(files: Mapping[str, Path]) -> Parts:
        return {
            split: read_idx_pair(
                *(files[name] for name in pair), first_label=first_label, turned=turned
            )
            for split, pair in names.items()
        }

    return Form((*names["train"], *names["test"]), read)


IDX = idx("train", "t10k")
LETTERS = idx("emnist-letters-train", "emnist-letters-test", first_label=1, turned=True)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def _read_batches(files: Mapping[str, Path]) -> Parts:
    parts = [read_cifar_binary(files[f"{name}.bin"]) for name in _BATCHES]
    x, y = zip(*parts)
    test = read_cifar_binary(files["test_batch.bin"])
    return {"train": (np.concatenate(x), np.concatenate(y)), "test": test}


BATCHES = Form((*(f"{name}.bin" for name in _BATCHES), "test_batch.bin"), _read_batches)


def _read_rows(files: Mapping[str, Path]) -> Parts:
    train = np.concatenate([read_cifar_rows(files[f"{name}.png"]) for name in _BATCHES])
    labels = {split: read_json_labels(files[f"{split}_lables.json"]) for split in ("train", "test")}
    return {
        "train": (train, labels["train"]),
        "test": (read_cifar_rows(files["test_batch.png"]), labels["test"]),
    }


PIXEL_ROWS = Form(
    (*(f"{n}.png" for n in _BATCHES), "test_batch.png", "train_lables.json", "test_lables.json"),
    _read_rows,
)


def _read_5k(files: Mapping[str, Path]) -> Parts:
    """784 pixels and the digit in each line."""
    rows = np.loadtxt(io.BytesIO(files["mnist_5k.csv"].read_bytes()), delimiter=",", dtype=np.uint8)
    x = np.ascontiguousarray(rows[:, :-1].reshape(-1, 1, 28, 28))
    y = rows[:, -1].astype(np.int64)
    picked = {split: split_by_content(content_hashes(x), y, split) for split in ("train", "test")}
    return {split: (x[chosen], y[chosen]) for split, chosen in picked.items()}


DIGITS_5K = Form(("mnist_5k.csv",), _read_5k)


# Labelled images that stay where they are: only the rows that are asked for are decoded.

SHARD = 256
"""Images that are in memory at once when a stream is walked; 224 px in colour: 38 MB."""
HELD = 2**28
"""Bytes of images up to which all of them may be: 1,780 photographs of 224 pixels."""
Read = Callable[[int], Bytes]
"""The image of a row as H x W or H x W x 3."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A labelled image set like `Images`, of which only the requested part is in memory.

    `read` gives the image of a source's row; `rows` are the source's rows in this stream's order;
    `channels` of 0: three if any image that is decoded together has colour, else a single channel.
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
        """A selection of rows; nothing is decoded."""
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
        if not names:
            raise HardcaseError(f"{self.name} holds no images.")
        x = _channels(stacked(self._decoded(), names), self.channels, names)
        return Images(
            to_tensor(x), self.y.clone(), tuple(names), self.classes, self.name, self.split
        )

    def _decoded(self) -> Iterator[Bytes]:
        """Each image, decoded by threads a shard ahead."""
        rows = self.rows.tolist()
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for part in chunks(len(rows), SHARD):
                yield from pool.map(self._read, rows[part])

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
        """The same as ``images().hash``, computed once, with a single shard in memory."""
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
            raise HardcaseError(
                f"the image {self.names(row)} of {self.name} has changed since it was first read.",
                "Failures of two different images would be mixed.",
                fix="once more, when nothing writes to these images",
            )
        return image


ImageSet = Images | Stream
"""Labelled images in memory, or still where they are; what needs no pixels costs none."""
LabelledSet = TypeVar("LabelledSet", bound=Images | Stream)
"""The type of a set that a function returns in the form in which it came."""


PEEKED = 64
"""Images, evenly spread, that say whether a set is grey or has colour."""


def peeked(stream: Stream) -> Stream:
    """The stream with its channels settled by the images that are looked at for it."""
    if not len(stream):
        raise HardcaseError(f"{stream.name} holds no images.")
    rows = stream.rows[:: max(1, len(stream) // PEEKED)].tolist()
    grey = all(stream.read(row).ndim == 2 for row in rows)
    return replace(stream, channels=1 if grey else 3)


def _channels(x: Bytes, channels: int, names: Sequence[str]) -> Bytes:
    """Grey shards of a colour set get three channels; colour in a grey set is an error."""
    if channels in (0, x.shape[1]):
        return x
    if x.shape[1] == 1:
        return np.repeat(x, channels, axis=1)
    raise HardcaseError(
        f"there are colour images in a grey set, near {names[0]}.",
        fix="save all of them in colour, or all in grey",
    )
