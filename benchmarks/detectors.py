"""Fetched detectors on unchanged photographs: are class names and boxes read right?

``python -m benchmarks.detectors yolo:coco/ --models efficientdet-lite0,ssd-mobilenet --out DIR``
prints the average precision at an overlap of one half, how many of the larger objects each finds,
and draws what is known beside what is found.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from hardcase.claims.annotations import AnnotatedImages, load_annotations
from hardcase.claims.load import draw_annotations, load_claim_model
from hardcase.claims.subjects import Annotation, Detections, average_precision, overlap, strongest
from hardcase.models.load import Loading
from hardcase.tensors import from_bytes

LARGE = 32**2
"""Area in pixels from which on an object counts as large enough to be claimed."""


def found_share(found: Detections, known: AnnotatedImages, cut: float) -> tuple[int, int, int]:
    """Large objects that are found at their place under their name, all of them, and the images in
    which one is.
    """
    hits = total = images = 0
    for row, one in enumerate(known.annotations):
        sides = one.boxes[:, 2:] - one.boxes[:, :2]
        large = sides.prod(1) >= LARGE
        there = overlap(found.boxes[row], one.boxes[large]) >= 0.5
        scores = found.logits[row][:, one.labels[large]].sigmoid() * there
        right = scores.amax(0) > cut
        hits += int(right.sum())
        total += len(right)
        images += int(right.any())
    return hits, total, images


def as_annotations(found: Detections, known: AnnotatedImages) -> AnnotatedImages:
    objects = strongest(found)
    none = torch.zeros(0, 0, dtype=torch.int16)
    rows = []
    for row in range(len(known)):
        said = objects.kept[row] & (objects.scores[row] > 0)
        rows.append(Annotation(objects.labels[row, said], objects.boxes[row, said], none))
    return AnnotatedImages(known.images, tuple(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--models", default="efficientdet-lite0,ssd-mobilenet")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    known = load_annotations(given.data, "test", "boxes")
    classes = known.images.classes
    for name in given.models.split(","):
        model = load_claim_model(
            f"zoo:{name}", Loading(), task="boxes", classes=classes, annotated=lambda split: known
        )
        x = from_bytes(known.images.x)
        found = model.read(model.model(x).logits, x)
        assert isinstance(found, Detections)
        found = Detections(found.boxes, found.logits[..., : len(classes)])
        each = average_precision(strongest(found), known.annotations, len(classes))
        hits, total, images = found_share(found, known, 0.5)
        print(
            f"{name}: AP50 {float(each.nanmean()):.3f}, {hits} of {total} objects of {LARGE} pixels"
            f" or more at a score of .5, one at least in {images} of {len(known)} images"
        )
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            draw_annotations(known).save(given.out / "known.png")
            draw_annotations(as_annotations(found, known)).save(given.out / f"{name}.png")


if __name__ == "__main__":
    main()
