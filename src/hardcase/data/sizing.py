"""Images of any size into images of one size: ``?resize=224&crop=center``,
the camera's orientation honoured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from hardcase.errors import Problem, reading
from hardcase.tensors import LARGEST

USUAL_SIDE = 224
"""Side that most networks for photographs take."""
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""What is opened. Others, such as PostScript, are programs that an interpreter would run."""
GREY = ("1", "L", "LA", "La")
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")


class MixedSizes(Problem):
    """Images of several sizes, the shortest side of which is `side`."""

    def __init__(self, seen: str, side: int, taken: Sequence[int] = ()) -> None:
        fitting = [one for one in (USUAL_SIDE, *sorted(taken, reverse=True)) if one in taken]
        best = next((one for one in fitting if one <= side), min(taken, default=0))
        said = best or min(side, USUAL_SIDE)
        if len(taken) > 1:
            why = f"the model takes images of {min(taken)} to {max(taken)} pixels"
        elif taken:
            why = f"the model takes {best} pixels"
        else:
            why = f"if the model takes {said} pixels"
        super().__init__(
            f"the images have different sizes: {seen}.",
            "A classifier is tested on images of one size.",
            fix=f"?resize={said}&crop=center after the path, {why}",
        )
        self.seen = seen
        self.side = side


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How an encoded image becomes one of the wanted size; 0 leaves it.

    Args:
        resize: Without `crop`, the side of the square into which the whole image is drawn, out of
            proportion if it has to be; with `crop`, the length of its shorter side.
        crop: Side of the square that is cut from the middle.
    """

    resize: int = 0
    crop: int = 0

    def __post_init__(self) -> None:
        if min(self.resize, self.crop) < 0:
            raise Problem(
                f"resize={self.resize} and crop={self.crop} are numbers of pixels, 1 or more."
            )
        if self.resize and self.crop > self.resize:
            raise Problem(
                f"crop={self.crop} is more than resize={self.resize} leaves.",
                fix=f"resize={self.crop} or more",
            )

    @staticmethod
    def of(options: Mapping[str, str]) -> Sizing:
        """From the words after ``?``; ``crop=center`` cuts a square of the size of ``resize``."""
        resize = _pixels("resize", options.get("resize", "0"))
        word = options.get("crop", "0")
        if word == "center" and not resize:
            raise Problem(
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
        """Width and height that an image is drawn to, and where the part that is kept begins."""
        width, height = size
        if self.resize and not self.crop:
            return (self.resize, self.resize), (0, 0)
        if self.resize:
            share = self.resize / min(size)
            width, height = (max(self.crop, round(share * side)) for side in size)
        if not self.crop:
            return (width, height), (0, 0)
        if min(width, height) < self.crop:
            raise Problem(
                f"an image of {width}×{height} has no square of {self.crop} pixels.",
                fix=f"?resize={self.crop}&crop={self.crop}",
            )
        return (width, height), ((width - self.crop) // 2, (height - self.crop) // 2)


def pixels_of(image: Image.Image, sizing: Sizing, where: str) -> npt.NDArray[np.uint8]:
    """An image as 8-bit pixels, H x W or H x W x 3, turned as its EXIF entry says."""
    if image.mode in DEEP:
        raise Problem(
            f"the image {where} has more than 8 bits a pixel (Pillow mode {image.mode}).",
            "hardcase works on 8-bit images, and how to scale the others is a choice that it does"
            " not make.",
            fix="save the images with 8 bits a channel",
        )
    upright = ImageOps.exif_transpose(image)
    plain = upright.convert("L" if upright.mode in GREY else "RGB")
    return np.asarray(sizing.apply(plain))


def decoded(data: bytes, sizing: Sizing, where: str) -> npt.NDArray[np.uint8]:
    """One encoded image as `pixels_of` gives it."""
    fix = "remove the file or replace it by a whole one"
    with reading(f"cannot read the image {where}", fix=fix):
        try:
            opened = Image.open(BytesIO(data), formats=FORMATS)
        except UnidentifiedImageError:  # its own words hold an address in memory
            why = f"is none of {', '.join(FORMATS)}" if data else "is empty"
            raise Problem(f"cannot read the image {where}: it {why}.", fix=fix) from None
        with opened as image:
            width, height = image.size
            if width * height > LARGEST:
                raise Problem(
                    f"the image {where} has {width} x {height} pixels; at most {LARGEST:,} are"
                    " read.",
                    fix="a smaller copy of it",
                )
            return pixels_of(image, sizing, where)


def stacked(images: Sequence[npt.NDArray[np.uint8]], names: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Images of one size as N x C x H x W: one channel if all are grey, else three."""
    sizes = [image.shape[:2] for image in images]
    other = next((i for i, size in enumerate(sizes) if size != sizes[0]), None)
    if other is not None:
        first, second = (f"{names[i]} is {sizes[i][1]}×{sizes[i][0]}" for i in (0, other))
        raise MixedSizes(f"{first}, {second}", min(min(size) for size in sizes))
    if all(image.ndim == 2 for image in images):
        return np.stack(images)[:, None]
    coloured = [
        image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2) for image in images
    ]
    return np.stack(coloured).transpose(0, 3, 1, 2)


def _pixels(name: str, word: Any) -> int:
    try:
        return int(word)
    except (TypeError, ValueError):
        raise Problem(
            f"{name}={word} is no number of pixels.", fix="?resize=224&crop=center"
        ) from None
