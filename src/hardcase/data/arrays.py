"""Images and labels in a NumPy ``.npz`` file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.lib.npyio import NpzFile

from hardcase.data.formats import Array, Bytes
from hardcase.data.records import Table, class_names, numbered, whole_numbers
from hardcase.errors import Problem

IMAGE_KEYS, LABEL_KEYS = ("images", "x"), ("labels", "y")


def read_npz(path: Path, options: dict[str, str], split: str) -> Table:
    """``images`` (or ``x``) and ``labels`` (or ``y``); with ``x_train, y_train, x_test, y_test`` the file's own split."""
    with _opened(path) as arrays:
        divided = {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys()
        parts = ["_train", "_test"] if divided else [""]
        labels = {part: _pick(arrays, LABEL_KEYS, part, path) for part in parts}
        named = [str(name) for name in np.ravel(arrays["classes"])] if "classes" in arrays else None
        wanted = [part for part in parts if part in ("", f"_{split}") or split == "all"]
        images = [to_nchw(to_uint8(_pick(arrays, IMAGE_KEYS, part, path), str(path)), str(path)) for part in wanted]
    y = {part: whole_numbers(values, str(path)) for part, values in labels.items()}
    for part, x in zip(wanted, images):
        if len(x) != len(y[part]):
            raise Problem(f"{path}: {len(x)} images, but {len(y[part])} labels.", fix="save one label for each image")
    ids = [name for part, x in zip(wanted, images) for name in numbered(f"{path.stem}{part.replace('_', '/')}", len(x))]
    return Table(
        x=np.concatenate(images),
        y=np.concatenate([y[part] for part in wanted]),
        id=tuple(ids),
        classes=class_names(np.concatenate(list(y.values())), named),
        divided=divided,
    )


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    """The arrays of a file, each read when it is asked for."""
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise Problem(f"{path} holds one bare array, no labels.", fix="np.savez(path, images=..., labels=...)")
        with opened as file:
            yield file
    except Problem:
        raise
    except Exception as error:  # damaged archives raise many kinds
        raise Problem(
            f"cannot read {path} as npz: {error}.",
            "Arrays of Python objects need unpickling, which can run code, and are not read.",
            fix="np.savez(path, images=..., labels=...)",
        ) from error


def _pick(arrays: NpzFile, keys: tuple[str, ...], part: str, path: Path) -> Array:
    found = next((f"{key}{part}" for key in keys if f"{key}{part}" in arrays), None)
    if found is None:
        raise Problem(
            f"{path} has no array {' or '.join(keys)}; it has {', '.join(arrays) or 'none'}.",
            fix="np.savez(path, images=..., labels=...)",
        )
    picked: Array = arrays[found]
    return picked


def to_uint8(images: Array, where: str) -> Bytes:
    """8-bit images as they are, floats in [0, 1] rounded to 8 bits, anything else refused."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise Problem(
            f"{where}: images are {images.dtype}; 8-bit (uint8) or floats in 0..1 are needed.",
            fix="images.astype(np.uint8), if the values lie in 0..255",
        )
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if not (low >= 0 and high <= 1):
        raise Problem(
            f"{where}: float images range over {low:.4g}..{high:.4g}; 0..1 is needed.",
            "Normalised images cannot be turned back into 8 bits here; normalisation belongs to the model.",
            fix="divide by 255 if they range over 0..255, or undo the normalisation",
        )
    return np.rint(images.astype(np.float64) * 255).astype(np.uint8)


def to_nchw(images: Bytes, where: str) -> Bytes:
    """N x H x W, N x H x W x C or N x C x H x W, told apart by which axis has 1 or 3 entries."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim != 4:
        raise Problem(f"{where}: images have shape {images.shape}; 3 axes (grey) or 4 axes are needed.")
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first and last:
        raise Problem(
            f"{where}: in {images.shape} either axis 1 or axis 3 could be the channels.",
            fix="save grey images without a channel axis, or images that are larger than 3 pixels",
        )
    if not first and not last:
        raise Problem(
            f"{where}: images have shape {images.shape}; neither axis 1 nor axis 3 has 1 or 3 channels.",
            fix="drop a transparency channel, keep 1 (grey) or 3 (colour)",
        )
    return images if first else images.transpose(0, 3, 1, 2)
