"""The file formats of the public data sets, read into 8-bit arrays. Nothing here unpickles."""

from __future__ import annotations

import gzip
import json
import math
import pickletools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hardcase.errors import Problem

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Part = tuple[Bytes, Labels]
"""Images N x C x H x W and their labels."""


def damaged(path: Path, why: str) -> Problem:
    return Problem(f"{path.name} is damaged or of another kind: {why}.", f"Read from {path}.")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    data = path.read_bytes()
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"it cannot be unpacked ({error})") from error


def read_idx(path: Path) -> Bytes:
    """An IDX file of unsigned bytes (MNIST's own format): two zeros, type 8, the number of axes, their sizes, the data."""
    data = read_bytes(path)
    axes = data[3] if len(data) > 3 else 0
    if data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * axes:
        raise damaged(path, f"it starts with {data[:4]!r}, not with the header of an IDX file of bytes")
    shape = tuple(np.frombuffer(data[4 : 4 + 4 * axes], ">u4").tolist())
    content = data[4 + 4 * axes :]
    if len(content) != math.prod(shape):
        raise damaged(path, f"its header promises {shape}, but {len(content)} bytes follow")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, *, first_label: int = 0, turned: bool = False) -> Part:
    """Grey images and labels from two IDX files; `turned` swaps rows and columns, `first_label` becomes class 0."""
    x, y = read_idx(images), read_idx(labels)
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
    """A PNG in which each line of 1,024 colour pixels is one 32 x 32 image."""
    from hardcase.data.pictures import decode

    pixels = decode(path.read_bytes(), str(path))
    if pixels.ndim != 3 or pixels.shape[1] != 1024:
        raise damaged(path, f"it is {pixels.shape}, not rows of 1,024 colour pixels")
    return np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


def read_json_labels(path: Path) -> Labels:
    try:
        labels = json.loads(path.read_text())
        return np.asarray(labels, dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(path, f"it is not a JSON list of whole numbers ({error})") from error


def read_cifar_pickled(path: Path) -> Part:
    """A batch of the Python version of CIFAR-10, read off the pickle's instructions, of which none is carried out."""
    labels: list[int] = []
    pixels = b""
    key = ""
    try:
        for step, value, _ in pickletools.genops(path.read_bytes()):
            if isinstance(value, str) and len(value) >= 3072:
                pixels = value.encode("latin-1")
            elif isinstance(value, str):
                key = value
            elif key == "labels" and step.name == "BININT1" and isinstance(value, int):
                labels.append(value)
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        raise damaged(path, f"it is not a batch of CIFAR-10 ({error})") from error
    if not labels or len(pixels) != 3072 * len(labels):
        raise damaged(path, f"it holds {len(labels)} labels and {len(pixels)} bytes of pixels")
    return np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32), np.asarray(labels, dtype=np.int64)
