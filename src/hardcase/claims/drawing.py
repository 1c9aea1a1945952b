"""Annotated images as pictures: boxes and masks in the colour of their class, names beside them."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from hardcase.claims.annotations import NONE, AnnotatedImages
from hardcase.claims.outputs import Annotation

__all__ = ["draw_annotation", "draw_annotations"]

SIDE = 240
"""Longest side of an image in a sheet, in pixels."""
ACROSS = 4
VEIL = 0.45
"""How much of a mask's colour covers what is below it."""
LINE = 16
"""Height of a line of text."""


def colour_of(label: int) -> tuple[int, int, int]:
    """A colour for a class; neighbours in number are far apart."""
    parts = colorsys.hsv_to_rgb(label * 0.618034 % 1.0, 0.8, 1.0)
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def draw_annotation(
    image: UInt8[Tensor, "c h w"],
    known: Annotation,
    classes: Sequence[str],
    *,
    side: int = SIDE,
) -> Image.Image:
    """One image with its boxes, its mask, or the names of what it holds."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy()
    if known.mask.numel():
        pixels = _veiled(pixels, known.mask.cpu().numpy())
    share = side / max(pixels.shape[:2])
    size = round(pixels.shape[1] * share), round(pixels.shape[0] * share)
    picture = Image.fromarray(np.ascontiguousarray(pixels)).resize(size)
    pen = ImageDraw.Draw(picture)
    for box, label in zip(known.boxes.tolist(), known.labels.tolist()):
        place = [value * share for value in box]
        pen.rectangle(place, outline=colour_of(label), width=2)
        _write(pen, (place[0] + 2, place[1] + 1), classes[label], label)
    if not len(known.boxes):
        for row, label in enumerate(known.labels.tolist()):
            _write(pen, (3, 3 + LINE * row), classes[label], label)
    return picture


def _veiled(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    colours = np.array([colour_of(label) for label in range(NONE + 1)])
    covered = (mask != NONE)[..., None]
    mixed = (1 - VEIL) * pixels + VEIL * colours[mask]
    drawn: np.ndarray = np.where(covered, mixed, pixels).astype(np.uint8)
    return drawn


def _write(pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str, label: int) -> None:
    font = ImageFont.load_default(size=12)
    pen.rectangle(pen.textbbox(place, text, font=font), fill=(0, 0, 0))
    pen.text(place, text, fill=colour_of(label), font=font)


def draw_annotations(annotated: AnnotatedImages, count: int = 12) -> Image.Image:
    """Images, evenly spread over the set, with what is known of them, on one sheet."""
    count = min(count, len(annotated))
    rows = torch.linspace(0, len(annotated) - 1, count).round().long()
    chosen = annotated.take(rows)
    drawn = [
        draw_annotation(image, known, chosen.images.classes)
        for image, known in zip(chosen.images.x, chosen.annotations)
    ]
    wide, high = (max(one.size[axis] for one in drawn) + 4 for axis in (0, 1))
    across = min(ACROSS, len(drawn))
    sheet = Image.new("RGB", (wide * across, high * math.ceil(len(drawn) / across)), "white")
    for number, one in enumerate(drawn):
        sheet.paste(one, (wide * (number % across) + 2, high * (number // across) + 2))
    return sheet
