"""What networks that are no classifiers answer, in one form per task.

A tagger answers log-odds per class (``m k``), a segmenter log-odds or logits per class and pixel
(``m k h w``); a detector answers `Detections`. Boxes are XYXY in pixels of the image that was asked
about, whatever form or size the network itself has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["ABSENT", "TASKS", "Annotation", "Detections", "Task"]

Task = Literal["classes", "tags", "boxes", "masks"]
TASKS: tuple[Task, ...] = ("classes", "tags", "boxes", "masks")
"""What a network answers; `--task` names one of them."""

ABSENT = -30.0
"""Log-odds of what a network does not answer: padding, and classes below its own cut."""


@dataclass(frozen=True, slots=True)
class Detections:
    """Boxes of a batch, padded to the same number per image.

    Args:
        boxes: Corners as x0, y0, x1, y1, in pixels of the image.
        logits: Log-odds that the box holds an object of the class; `ABSENT` in padding.
    """

    boxes: Float[Tensor, "m d 4"]
    logits: Float[Tensor, "m d k"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """What is known of one image.

    Args:
        labels: Class of each object; for tags, the classes that are present.
        boxes: Box of each object, XYXY in pixels; no rows where the data has no boxes.
        mask: Class of each pixel (255: none); no pixels where the data has no masks.
    """

    labels: Int[Tensor, " o"]
    boxes: Float[Tensor, "b 4"]
    mask: Int[Tensor, "h w"]
