"""How much the smallest change that a judge may not doubt is, beside what compression does to the same images.

`hardcase.judges.judge.NOTICEABLE` rests on this comparison; it is no study of people. The change has
the largest size allowed at every value, in a random direction, and is clipped as images are.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import numpy as np
import torch
from PIL import Image

from benchmarks.figures import Figure
from hardcase.data.sources import load
from hardcase.judges.judge import NOTICEABLE
from hardcase.randomness import stream

COMMAND = "python -m benchmarks noticeable"
QUALITIES = (90, 50, 30)


def figures() -> Iterator[Figure]:
    x = load("mnist5k", split="test").x[:200, 0].numpy()
    signs = 2 * torch.randint(2, x.shape, generator=stream(0, "noticeable")).numpy() - 1
    changed = np.clip(x + round(255 * NOTICEABLE) * signs, 0, 255)
    yield _figure("noticeable-change", _size(changed, x), "8 grey levels at every value of a digit")
    for quality in QUALITIES:
        words = f"JPEG of quality {quality} of the same digits"
        yield _figure(f"noticeable-jpeg-{quality}", _size(_compressed(x, quality), x), words)


def _figure(name: str, value: float, against: str) -> Figure:
    return Figure(name=name, value=value, unit="grey levels", against=against, command=COMMAND)


def _size(made: np.ndarray, x: np.ndarray) -> float:
    """The root mean square of a change."""
    return float(np.sqrt(np.square(made.astype(float) - x).mean()))


def _compressed(x: np.ndarray, quality: int) -> np.ndarray:
    images = []
    for image in x:
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        images.append(np.asarray(Image.open(file)))
    return np.stack(images)
