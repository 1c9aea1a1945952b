"""The field's images: unlabelled, from anywhere, and perhaps not what they should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from hardcase.cache import named_path, open_npz
from hardcase.data.files import Bytes, Sizing, Stream, content_hashes, decoded
from hardcase.data.own import IMAGES, file_bytes, first_key, image_files, to_nchw, to_uint8
from hardcase.data.sources import load, opened, spec_options
from hardcase.errors import HardcaseError
from hardcase.randomness import hashed_order
from hardcase.types import Images

__all__ = ["FieldImages", "read_field"]

LEAST = 50
"""Images of a field, at least: fewer show no width that a declaration would not have."""
MOST = 1_000
"""Images that are used, at most: enough for widths within 5 % or so."""
UNREADABLE = 0.1
"""Share of files that may be unreadable."""
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True, slots=True)
class FieldImages:
    """Images of the field that a fit uses.

    Args:
        x: The images, in the shape of the labelled ones.
        names: Their names.
        notes: What was left out or changed, in sentences.
    """

    x: UInt8[Tensor, "n c h w"]
    names: tuple[str, ...]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.x)


def read_field(field: Any, like: Images, *, seed: int = 0, most: int = MOST) -> FieldImages:
    """Return the images of a field in the shape of labelled ones.

    Args:
        field: ``folder:PATH`` with images at any depth, ``npz:PATH``, the name of any data set
            (its labels are not looked at), `Images`, or an array of 8-bit images.
        like: The labelled images: the shape, and which images are no field's.
        seed: Which images are used where there are very many.
        most: How many are used, at most.

    Raises:
        HardcaseError: If there are too few images, if their sizes differ from those of the labelled
            images, or if they are the labelled images.
    """
    pictures, names, notes = _read(field, seed, most)
    x = torch.from_numpy(_in_shape(pictures, names, like.shape, field, notes))
    fresh = _new_rows(x, like, notes)
    if len(fresh) < LEAST:
        raise HardcaseError(
            f"the field has {len(fresh)} images that can be used; a fit needs {LEAST}.",
            *notes,
            "With fewer, only changes show that anybody would see.",
            fix=f"{LEAST} images or more; from 500 on, small widths show too",
        )
    names = [names[i] for i in fresh.tolist()]
    return FieldImages(x[fresh], tuple(names), tuple(notes))


def _read(field: Any, seed: int, most: int) -> tuple[list[Bytes], list[str], list[str]]:
    """Pictures with their names, no more than are used, and what was left out."""
    notes = list[str]()
    if isinstance(field, str | Path):
        text = str(field)
        kind, _, rest = text.partition(":")
        if kind == "folder":
            return _folder(rest, seed, most)
        if kind == "npz":
            path = named_path(rest.partition("?")[0])
            with open_npz(path) as arrays:
                key = first_key(list(arrays), IMAGES, str(path))
                field = arrays[key]
        elif ":" in text and kind in ("parquet", "csv", "run"):
            field = opened(text, "all")[0].images
        else:
            field = load(text)
    if isinstance(field, Images | Stream):
        rows = _chosen(field.id, seed, most, notes)
        held = field.take(torch.tensor(rows)).images()
        return list(held.x.numpy()), list(held.id), notes
    array = field.numpy() if isinstance(field, Tensor) else field
    if not isinstance(array, np.ndarray):
        raise HardcaseError(
            f"a field is no {type(field).__name__}.", fix="folder:PATH, or an array of 8-bit images"
        )
    x = to_nchw(to_uint8(array, "the field"), "the field")
    names = [f"{i:05d}" for i in range(len(x))]
    rows = _chosen(names, seed, most, notes)
    return list(x[rows]), [names[i] for i in rows], notes


def _folder(rest: str, seed: int, most: int) -> tuple[list[Bytes], list[str], list[str]]:
    """Images at any depth of a folder; unreadable ones are left out, up to a tenth."""
    place, _, query = rest.partition("?")
    root = named_path(place)
    if not root.is_dir():
        raise HardcaseError(f"{root} is not a folder.", fix="--field folder:PATH")
    choices: dict[str, tuple[str, ...]] = {"resize": (), "crop": ()}
    sizing = Sizing.of(spec_options("folder:", choices, query))
    files = image_files(root)
    if not files:
        raise HardcaseError(f"there are no images in {root}.", fix="a folder of PNG or JPEG images")
    notes = list[str]()
    names = [file.relative_to(root).as_posix() for file in files]
    images, paths, unreadable = list[Bytes](), list[str](), list[str]()
    for i in _chosen(names, seed, most, notes):
        try:
            images.append(_channels_first(decoded(file_bytes(files[i]), sizing, str(files[i]))))
            paths.append(names[i])
        except HardcaseError as problem:
            unreadable.append(problem.what)
    total = len(images) + len(unreadable)
    if len(unreadable) > UNREADABLE * total:
        raise HardcaseError(
            f"{len(unreadable)} of {total} images of {root} cannot be read.",
            unreadable[0],
            fix="a folder in which nine of ten images can be read",
        )
    if unreadable:
        notes.append(f"{len(unreadable)} images cannot be read and are left out: {unreadable[0]}")
    return images, paths, notes


def _channels_first(picture: Bytes) -> Bytes:
    return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)


def _chosen(names: Sequence[str], seed: int, most: int, notes: list[str]) -> list[int]:
    """Which images are used: a random choice that the names and the seed settle."""
    order = hashed_order(names, seed).tolist()
    if len(order) > most:
        notes.append(f"{most:,} of {len(order):,} images are used, chosen at random.")
    return sorted(order[:most])


def _in_shape(
    pictures: Sequence[Bytes],
    names: Sequence[str],
    shape: Sequence[int],
    field: Any,
    notes: list[str],
) -> Bytes:
    """All pictures with the channels and the size of the labelled images."""
    channels, height, width = shape
    for picture, name in zip(pictures, names):
        if picture.shape[1:] == (height, width):
            continue
        place = str(field).partition("?")[0] if isinstance(field, str | Path) else "folder:FIELD"
        raise HardcaseError(
            f"the field's image {name} is {picture.shape[2]}×{picture.shape[1]}; the labelled"
            f" images are {width}×{height}.",
            "How the field's images are brought to the model's size decides what is found.",
            fix=f"--field '{place}?resize={min(height, width)}&crop=center', or as your model does",
        )
    changed = sum(len(picture) != channels for picture in pictures)
    if changed:
        kind = "grey" if channels == 1 else "three equal channels"
        notes.append(f"{changed} images were turned into {kind}, as the labelled ones are.")
    return np.stack([_with_channels(picture, channels) for picture in pictures])


def _with_channels(picture: Bytes, channels: int) -> Bytes:
    if len(picture) == channels:
        return picture
    if channels == 3:
        return np.repeat(picture[:1], 3, axis=0)
    grey = np.tensordot(np.asarray(LUMA), picture[:3].astype(np.float64), 1)
    return np.rint(grey)[None].astype(np.uint8)


def _new_rows(x: Tensor, like: Images, notes: list[str]) -> Tensor:
    """The rows that are neither a labelled image nor there before."""
    hashes = content_hashes(x.numpy())
    copies = np.isin(hashes, content_hashes(like.x.numpy()))
    if copies.any():
        notes.append(f"{copies.sum()} images are labelled images themselves and are left out.")
    _, first = np.unique(hashes, return_index=True)
    repeated = np.ones(len(x), dtype=bool)
    repeated[first] = False
    repeated &= ~copies
    if repeated.any():
        notes.append(f"{repeated.sum()} images are there more than once and count once.")
    return torch.from_numpy(np.flatnonzero(~copies & ~repeated))
