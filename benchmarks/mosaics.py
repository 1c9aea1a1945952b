"""Image data sets as lossless WebP pictures of many images each, for a machine they are carried to.

A picture holds up to 10,000 images in rows of 100, so that neighbouring pixels predict each other: CIFAR-10
takes 97 MiB instead of 176. ``restore`` writes the very arrays that were packed and compares their checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

COLUMNS = 100
MOST = 10_000
"""Images of a picture: 100 rows of 32 pixels stay below WebP's limit of 16,383."""


def pack(npz: Path, folder: Path) -> list[Path]:
    """Write the arrays of a cached data set as pictures and one JSON file beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, list[int]] = {}
    labels: dict[str, list[int]] = {}
    written = []
    with np.load(npz) as arrays:
        for name in arrays.files:
            array = arrays[name]
            if array.ndim != 4:
                labels[name] = array.tolist()
                continue
            sizes[name] = list(array.shape)
            for number, part in enumerate(_parts(array)):
                path = folder / f"{name}-{number:02d}.webp"
                Image.fromarray(_mosaic(part)).convert("RGB").save(
                    path, "WEBP", lossless=True, quality=80, method=4
                )
                written.append(path)
        note = {"sizes": sizes, "labels": labels, "checksum": _checksum(dict(arrays))}
    path = folder / "arrays.json"
    path.write_text(json.dumps({"file": npz.name, **note}), encoding="utf-8")
    return [*written, path]


def restore(folder: Path, cache: Path) -> Path:
    """Write the data set of `folder` back as it was cached; other pixels are an error."""
    note = json.loads((folder / "arrays.json").read_text(encoding="utf-8"))
    arrays = {name: np.array(values, dtype=np.int64) for name, values in note["labels"].items()}
    for name, shape in note["sizes"].items():
        pictures = sorted(folder.glob(f"{name}-*.webp"))
        counts = [min(MOST, shape[0] - MOST * i) for i in range(len(pictures))]
        parts = [_images(path, count, shape) for path, count in zip(pictures, counts, strict=True)]
        arrays[name] = np.concatenate(parts)
    if _checksum(arrays) != note["checksum"]:
        raise SystemExit(f"{note['file']} is not what was packed: pack again")
    target = cache / "data" / str(note["file"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
    return target


def _parts(array: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(array), MOST):
        yield array[start : start + MOST]


def _mosaic(images: np.ndarray) -> np.ndarray:
    """The images side by side; what is missing of the last row is black."""
    n, c, h, w = images.shape
    rows = -(-n // COLUMNS)
    whole = np.zeros((rows * COLUMNS, c, h, w), dtype=np.uint8)
    whole[:n] = images
    tiled = whole.reshape(rows, COLUMNS, c, h, w).transpose(0, 3, 1, 4, 2)
    picture = tiled.reshape(rows * h, COLUMNS * w, c)
    return np.ascontiguousarray(picture if c == 3 else picture[:, :, 0])


def _images(path: Path, count: int, shape: list[int]) -> np.ndarray:
    _, c, h, w = shape
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))[:, :, :c]
    tiled = pixels.reshape(-1, h, COLUMNS, w, c).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiled.reshape(-1, c, h, w)[:count])


def _checksum(arrays: dict[str, np.ndarray]) -> str:
    """SHA-256 of the names, pixels and labels."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.ascontiguousarray(arrays[name]).tobytes())
    return total.hexdigest()
