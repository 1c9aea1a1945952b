"""What networks that are no classifiers answer, in one form per task, and how boxes are compared.

A tagger answers log-odds per class (``m k``), a segmenter log-odds or logits per class and pixel
(``m k h w``); a detector answers `Detections`. Boxes are XYXY in pixels of the image that was asked
about, whatever form or size the network itself has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    *("ABSENT", "TASKS", "Annotation", "Detections", "FoundObjects", "Task"),
    *("average_precision", "corners", "overlap", "strongest"),
]

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


def overlap(
    one: Float[Tensor, "*batch n 4"], two: Float[Tensor, "*batch o 4"]
) -> Float[Tensor, "*batch n o"]:
    """Intersection over union of every box of `one` with every box of `two`, both XYXY."""
    low = torch.maximum(one[..., :, None, :2], two[..., None, :, :2])
    high = torch.minimum(one[..., :, None, 2:], two[..., None, :, 2:])
    shared = (high - low).clamp_min(0).prod(-1)
    areas = [(each[..., 2:] - each[..., :2]).clamp_min(0).prod(-1) for each in (one, two)]
    union = areas[0][..., :, None] + areas[1][..., None, :] - shared
    return shared / union.clamp_min(torch.finfo(union.dtype).tiny)


def corners(boxes: Float[Tensor, "*rows 4"]) -> Float[Tensor, "*rows 4"]:
    """XYXY of boxes given as centre, width and height."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


class FoundObjects(NamedTuple):
    """The objects that a detector names, strongest first; padding has a score of `ABSENT`."""

    boxes: Float[Tensor, "m d 4"]
    labels: Int[Tensor, "m d"]
    scores: Float[Tensor, "m d"]
    kept: Bool[Tensor, "m d"]


@torch.no_grad()
def strongest(found: Detections, *, iou: float = 0.5, most: int = 100) -> FoundObjects:
    """One box for each object: non-maximum suppression within each class."""
    boxes, logits = found.boxes, found.logits
    classes = logits.shape[2]
    scores, at = logits.flatten(1).topk(min(most, logits[0].numel()), dim=1)
    labels = at % classes
    rows = (at // classes)[..., None].expand(-1, -1, 4)
    chosen = boxes.gather(1, rows)
    clash = (overlap(chosen, chosen) > iou) & (labels[:, :, None] == labels[:, None, :])
    clash = clash.triu(1)  # of two, the one that comes later is weaker
    kept = torch.ones_like(labels, dtype=torch.bool)
    for number in range(kept.shape[1]):
        kept &= ~(kept[:, number, None] & clash[:, number])
    return FoundObjects(chosen, labels, scores, kept)


def average_precision(
    found: FoundObjects, known: Sequence[Annotation], classes: int, *, iou: float = 0.5
) -> Float[Tensor, " k"]:
    """Average precision of every class: the area below the falling envelope of precision over
    recall; NaN of classes without an object.

    As COCO matches them: from the strongest on, each box takes the object of its class that it
    overlaps most and that none took before. Differences: every recall counts, not 101 of them.
    """
    result = torch.full((classes,), torch.nan)
    for label in range(classes):
        wanted = sum(int((each.labels == label).sum()) for each in known)
        if wanted:
            scores, right = _matched(found, known, label, iou)
            hits = right[scores.argsort(descending=True, stable=True)].cumsum(0)
            precision = hits / torch.arange(1, len(hits) + 1)
            envelope = precision.flip(0).cummax(0).values.flip(0)
            steps = hits.diff(prepend=hits.new_zeros(1))
            result[label] = (envelope * steps).sum() / wanted
    return result


def _matched(
    found: FoundObjects, known: Sequence[Annotation], label: int, iou: float
) -> tuple[Float[Tensor, " d"], Int[Tensor, " d"]]:
    """Score of every box of a class in all images, and whether it finds an object."""
    scores: list[Tensor] = [torch.zeros(0)]
    right = list[int]()
    for row, each in enumerate(known):
        rows = found.kept[row] & (found.labels[row] == label)
        scores.append(found.scores[row, rows].cpu())
        objects = each.boxes[each.labels == label]
        table = overlap(found.boxes[row, rows].cpu(), objects)
        for line in table:  # in the order of their scores
            best = int(line.argmax()) if len(line) else -1
            hit = best >= 0 and float(line[best]) >= iou
            right.append(int(hit))
            if hit:
                table[:, best] = -1.0  # taken
    return torch.cat(scores), torch.tensor(right, dtype=torch.int64)
