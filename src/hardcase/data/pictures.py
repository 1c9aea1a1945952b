"""Encoded pictures (PNG, JPEG and the like) into one array of equal images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import TypeVar

import numpy as np

from hardcase.data.formats import Bytes
from hardcase.errors import Problem

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is opened. Others, such as PostScript, are programs that an interpreter would run."""
GREY = ("1", "L", "LA", "La")
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")

_Item = TypeVar("_Item")


def decode(data: bytes, where: str) -> Bytes:
    """One picture: H x W where it is stored as grey, else H x W x 3. Transparency is dropped."""
    from PIL import Image

    try:
        with Image.open(BytesIO(data), formats=FORMATS) as picture:
            mode = picture.mode
            if mode not in DEEP:
                return np.asarray(picture.convert("L" if mode in GREY else "RGB"))
    except Exception as error:  # readers of pictures raise many kinds for damaged ones
        why = "it is empty" if not data else str(error).replace("<_io.BytesIO object at", "<").split(" <")[0]
        raise Problem(
            f"cannot read the image {where}: {why}.", fix="remove the file or replace it by a whole one"
        ) from error
    raise Problem(
        f"the image {where} has more than 8 bits a pixel (Pillow mode {mode}).",
        "hardcase works on 8-bit images, and how to scale the others is a choice that it does not make.",
        fix="save the images with 8 bits a channel",
    )


def decode_all(items: Sequence[_Item], read: Callable[[_Item], bytes], names: Sequence[str]) -> Bytes:
    """All pictures as N x C x H x W: one channel if every picture is grey, else three."""

    def one(item: _Item, name: str) -> Bytes:
        try:
            data = read(item)
        except OSError as error:
            raise Problem(f"cannot read the image {name}: {error.strerror or error}.") from error
        return decode(data, name)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return stack(list(pool.map(one, items, names)), names)


def stack(pictures: Sequence[Bytes], names: Sequence[str]) -> Bytes:
    if not pictures:
        return np.zeros((0, 1, 1, 1), dtype=np.uint8)
    sizes = [picture.shape[:2] for picture in pictures]
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        raise Problem(
            f"the images have different sizes: {_named(names[0], sizes[0])}, {_named(names[other], sizes[other])}.",
            "A classifier is tested on images of one size.",
            fix="resize them all to the size that the model takes",
        )
    if all(picture.ndim == 2 for picture in pictures):
        return np.stack(pictures)[:, None]
    return np.stack([picture if picture.ndim == 3 else np.stack([picture] * 3, -1) for picture in pictures]).transpose(
        0, 3, 1, 2
    )


def _named(name: str, size: tuple[int, ...]) -> str:
    return f"{name} is {size[1]}×{size[0]}"
