"""Digit canvases: one to four handwritten digits on a square, with their boxes.

The embedded data of detectors and taggers, made of ``mnist5k``: training canvases of its training
digits, test canvases of its test digits. Every canvas follows from its name alone.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor

from hardcase.claims.annotations import AnnotatedImages
from hardcase.claims.outputs import Annotation
from hardcase.data.own import numbered
from hardcase.data.sources import load
from hardcase.randomness import Rng, keys_of
from hardcase.registry import data
from hardcase.types import Images

__all__ = ["CANVAS", "canvases"]

CANVAS = 80
"""Side of a canvas in pixels."""
COUNTS = {"train": 4_000, "test": 1_000}
MOST = 4
"""Digits on a canvas, at most."""
SIDES = (24, 36)
"""Side that a digit of 28 pixels is given: the smallest, and the first that is too large."""
MARGIN = 4
"""Pixels between a box and the edge, so that small shifts leave every digit on the canvas."""
SHARED = 0.1
"""Share of the smaller of two boxes that both may cover."""
INK = 48
"""Value from which on a pixel is part of a digit."""
BORDER = 2
"""Pixels around the ink that belong to a box, as people draw boxes."""
TRIES = 40
"""Places that are tried for a digit before it is left out."""
NOTHING = 255
"""Class of the pixels of no object."""

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]


@data(
    "canvas5k",
    needs="nothing: it is made of mnist5k; --task boxes, tags or masks",
    paper="ours, of the digits of mnist5k",
    task="boxes",
    shape=(1, CANVAS, CANVAS),
    classes=10,
)
@lru_cache(maxsize=2)
def canvases(split: str) -> AnnotatedImages:
    """Canvases of one to four digits with their boxes: 4,000 train, 1,000 test."""
    digits = load("mnist5k", split=split)
    count = COUNTS[split]
    names = numbered(f"canvas5k/{split}", count)
    rng = Rng(0, "canvas", keys_of(names))
    rows = torch.arange(count)
    wanted = 1 + rng.integers(rows, MOST)
    which = rng.integers(rows, len(digits), (MOST,))
    sides = SIDES[0] + rng.integers(rows, SIDES[1] - SIDES[0], (MOST,))
    places = rng.uniform(rows, (MOST, TRIES, 2))
    x = torch.zeros(count, 1, CANVAS, CANVAS, dtype=torch.uint8)
    known = list[Annotation]()
    for row in range(count):
        chosen = which[row, : int(wanted[row])]
        x[row, 0], annotation = _canvas(
            digits.x[chosen, 0], digits.y[chosen], sides[row].tolist(), places[row]
        )
        known.append(annotation)
    images = Images(x, torch.zeros(count).long(), names, digits.classes, "canvas5k", split)
    return AnnotatedImages(images, tuple(known))


def _canvas(
    digits: UInt8[Tensor, "o h w"],
    labels: Int[Tensor, " o"],
    sides: list[int],
    places: Float[Tensor, "_ tries 2"],
) -> tuple[UInt8[Tensor, "s s"], Annotation]:
    """Digits in their sizes, each at the first of its places where it covers little of others."""
    canvas = np.zeros((CANVAS, CANVAS), dtype=np.uint8)
    mask = np.full((CANVAS, CANVAS), NOTHING, dtype=np.int16)
    boxes = list[Box]()
    kept = list[int]()
    for digit, label, side, tries in zip(digits.numpy(), labels.tolist(), sides, places.numpy()):
        ink = _ink(digit, side)
        height, width = ink.shape
        room = np.array([CANVAS - 2 * MARGIN - width + 1, CANVAS - 2 * MARGIN - height + 1])
        for left, top in (MARGIN + (tries * room).astype(int)).tolist():
            box = (left, top, left + width, top + height)
            if all(_shared(box, other) <= SHARED for other in boxes):
                part = slice(top, top + height), slice(left, left + width)
                mask[part] = np.where(ink >= np.maximum(canvas[part], INK), label, mask[part])
                canvas[part] = np.maximum(canvas[part], ink)
                boxes.append(box)
                kept.append(label)
                break
    annotation = Annotation(
        torch.tensor(kept), torch.tensor(boxes, dtype=torch.float32), torch.from_numpy(mask)
    )
    return torch.from_numpy(canvas), annotation


def _ink(digit: Pixels, side: int) -> Pixels:
    """A digit drawn to a side, cut to its ink and a border."""
    drawn = np.asarray(Image.fromarray(digit).resize((side, side), Image.Resampling.BILINEAR))
    rows, columns = (np.flatnonzero((drawn >= INK).any(axis)) for axis in (1, 0))
    return np.pad(drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], BORDER)


def _shared(one: Box, two: Box) -> float:
    """The share of the smaller of two boxes that both cover."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return width * height / min(areas)
