"""Digit canvases, and small networks for annotated images: a detector and a tagger.

The canvases are the embedded data of detectors and taggers, made of ``mnist5k``: one to four digits
on a square, training canvases of its training digits, test canvases of its test digits. Every
canvas follows from its name alone.

The networks are trained in a minute, in the manner of Z. Tian, C. Shen, H. Chen, T. He, "FCOS:
fully convolutional one-stage object detection", ICCV 2019. Differences: one level of cells of 4
pixels, cross-entropy in place of the focal loss (log-odds then mean what they say), no centre-ness:
the cells near the middle of a box learn it, all others learn that there is nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from hardcase import registry
from hardcase.claims.annotations import NONE, AnnotatedImages
from hardcase.claims.subjects import Annotation, Detections, average_precision, overlap, strongest
from hardcase.data.own import numbered
from hardcase.data.sources import load
from hardcase.errors import HardcaseError, choice
from hardcase.randomness import Rng, keys_of, named_randomness
from hardcase.tensors import chunks, from_bytes
from hardcase.training import cards
from hardcase.training.cards import TrainingProgress, TrainingRecipe, stated
from hardcase.training.loop import Goal, fit
from hardcase.types import Images

__all__ = [
    *("CANVAS", "CellDetector", "CellTagger", "canvases", "mean_precision", "present"),
    "trained_network",
]

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

Pixels = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]


@registry.data(
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
    annotations = list[Annotation]()
    for row in range(count):
        chosen = which[row, : int(wanted[row])]
        x[row, 0], annotation = _canvas(
            digits.x[chosen, 0], digits.y[chosen], sides[row].tolist(), places[row]
        )
        annotations.append(annotation)
    images = Images(x, torch.zeros(count).long(), names, digits.classes, "canvas5k", split)
    return AnnotatedImages(images, tuple(annotations))


def _canvas(
    digits: UInt8[Tensor, "o h w"],
    labels: Int[Tensor, " o"],
    sides: list[int],
    places: Float[Tensor, "_ tries 2"],
) -> tuple[UInt8[Tensor, "s s"], Annotation]:
    """Digits in their sizes, each at the first of its places where it covers little of others."""
    canvas = np.zeros((CANVAS, CANVAS), dtype=np.uint8)
    mask = np.full((CANVAS, CANVAS), NONE, dtype=np.int16)
    boxes = list[Box]()
    chosen_labels = list[int]()
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
                chosen_labels.append(label)
                break
    annotation = Annotation(
        torch.tensor(chosen_labels),
        torch.tensor(boxes, dtype=torch.float32),
        torch.from_numpy(mask),
    )
    return torch.from_numpy(canvas), annotation


def _ink(digit: Pixels, side: int) -> Pixels:
    """A digit drawn to a side, cut to its ink and a border."""
    drawn = np.asarray(Image.fromarray(digit).resize((side, side), Image.Resampling.BILINEAR))
    rows, columns = (np.flatnonzero((drawn >= INK).any(axis)) for axis in (1, 0))
    return np.pad(drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], BORDER)


def _shared(first: Box, two: Box) -> float:
    """The share of the smaller of two boxes that both cover."""
    width = min(first[2], two[2]) - max(first[0], two[0])
    height = min(first[3], two[3]) - max(first[1], two[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, two)]
    return width * height / min(areas)


# The networks.

STRIDE = 4
"""Side of a cell in pixels."""
REACH = 8.0
"""Unit of the distances from a cell to the sides of its box, in pixels."""
RARE = -4.0
"""Log-odds with which a class begins: most cells hold nothing."""
ASKED = 128
"""Images that are measured at once."""


class CellTrunk(nn.Module):
    """Features of every cell of 4 pixels, with a look at what is around it."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            OrderedDict(
                unit1=_unit(channels, width, stride=2),
                unit2=_unit(width, 2 * width, stride=2),
                unit3=_unit(2 * width, 2 * width),
            )
        )
        self.coarse = nn.Sequential(
            OrderedDict(
                unit1=_unit(2 * width, 4 * width, stride=2),
                unit2=_unit(4 * width, 4 * width),
                unit3=_unit(4 * width, 4 * width),
            )
        )
        self.lateral = nn.Conv2d(2 * width, 4 * width, 1)
        self.joined = _unit(4 * width, 3 * width)

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        fine = self.fine(x)
        around = functional.interpolate(self.coarse(fine), size=fine.shape[2:])
        out: Tensor = self.joined(around + self.lateral(fine))
        return out


def _unit(before: int, after: int, *, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(before, after, 3, stride, 1, bias=False),
            norm=nn.BatchNorm2d(after),
            relu=nn.ReLU(),
        )
    )


class CellDetector(nn.Module):
    """Of every cell: log-odds of each class, and a box. Images of any size, in [0, 1]."""

    def __init__(self, channels: int, classes: int, *, width: int = 16) -> None:
        super().__init__()
        self.trunk = CellTrunk(channels, width)
        self.logits = nn.Conv2d(3 * width, classes, 1)
        self.sides = nn.Conv2d(3 * width, 4, 1)
        nn.init.constant_(self._bias(self.logits), RARE)
        nn.init.constant_(self._bias(self.sides), 1.0)

    @staticmethod
    def _bias(layer: nn.Conv2d) -> Tensor:
        assert layer.bias is not None
        return layer.bias

    def forward(self, x: Float[Tensor, "m c h w"]) -> Detections:
        features = self.trunk(x)
        logits = self.logits(features).flatten(2).transpose(1, 2)  # m d k
        sides = functional.softplus(self.sides(features)).flatten(2).transpose(1, 2)
        middle = cells(*features.shape[2:]).to(x)
        reach = sides * REACH
        return Detections(torch.cat([middle - reach[..., :2], middle + reach[..., 2:]], -1), logits)


class CellTagger(nn.Module):
    """Log-odds that an image holds each class: those of the cell that shows it most."""

    def __init__(self, channels: int, classes: int, *, width: int = 16) -> None:
        super().__init__()
        self.trunk = CellTrunk(channels, width)
        self.logits = nn.Conv2d(3 * width, classes, 1)

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m k"]:
        shown: Tensor = self.logits(self.trunk(x))
        return shown.amax((2, 3))


def cells(height: int, width: int) -> Float[Tensor, "d 2"]:
    """X and y of the middle of every cell, in pixels, row by row."""
    down, right = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (torch.stack([right, down], -1).reshape(-1, 2) + 0.5) * STRIDE


def cell_targets(
    annotations: Sequence[Annotation], size: tuple[int, int]
) -> tuple[Int[Tensor, "n d"], Float[Tensor, "n d 4"]]:
    """What every cell should say: a class, or -1 for nothing, and the box of its object.

    The cells within a fifth of a box's sides from its middle speak for it, at least those whose
    middle is within one cell's side.
    """
    middle = cells(*(-(-side // STRIDE) for side in size))
    classes = torch.full((len(annotations), len(middle)), -1)
    boxes = torch.zeros(len(annotations), len(middle), 4)
    for row, each in enumerate(annotations):
        centre = (each.boxes[:, :2] + each.boxes[:, 2:]) / 2  # o 2
        reach = ((each.boxes[:, 2:] - each.boxes[:, :2]) / 5).clamp_min(STRIDE / 2)
        away = (middle[:, None] - centre).abs()  # d o 2
        inside = (away <= reach).all(-1)
        near = away.sum(-1).masked_fill(~inside, torch.inf)
        if near.shape[1]:
            distance, nearest = near.min(1)
            held = distance.isfinite()
            classes[row, held] = each.labels[nearest[held]]
            boxes[row, held] = each.boxes[nearest[held]]
    return classes, boxes


def detect(train: AnnotatedImages) -> Goal:
    """Cross-entropy of every cell's log-odds, and the overlap of the boxes of those that hold an
    object. Labels are rows of `train`.
    """
    height, width = train.images.x.shape[2:]
    classes, boxes = cell_targets(train.annotations, (height, width))
    count = len(train.images.classes)

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        detections: Detections = net(x)
        label = classes.to(y.device)[y]
        held = label >= 0
        objects = held.sum().clamp_min(1)
        wanted = functional.one_hot(label.clamp_min(0), count) * held[..., None]
        doubt = functional.binary_cross_entropy_with_logits(
            detections.logits, wanted.float(), reduction="sum"
        )
        wanted_boxes = boxes.to(y.device)[y][held]
        box_distance = 1 - overlap(detections.boxes[held][:, None], wanted_boxes[:, None])
        return (doubt + 2 * box_distance.sum()) / objects

    return Goal(loss, lambda net, x, y: net(x).logits.flatten(1), float("inf"))


def tag(train: AnnotatedImages) -> Goal:
    """Cross-entropy of each class being there. Labels are rows of `train`."""
    wanted_objects = present(train)

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        return functional.binary_cross_entropy_with_logits(net(x), wanted_objects.to(y.device)[y])

    return Goal(loss, lambda net, x, y: net(x), float("inf"))


def present(annotated: AnnotatedImages) -> Float[Tensor, "n k"]:
    """1 for every class that an image holds."""
    presence = torch.zeros(len(annotated), len(annotated.images.classes))
    for row, each in enumerate(annotated.annotations):
        presence[row, each.labels] = 1.0
    return presence


@torch.no_grad()
def mean_precision(
    net: Callable[[Tensor], Detections],
    annotated: AnnotatedImages,
    *,
    device: torch.device | str = "cpu",
) -> float:
    """Mean over the classes of the average precision at an overlap of one half."""
    x = annotated.images.x
    parts = [net(from_bytes(x[rows].to(device))) for rows in chunks(len(x), ASKED)]
    objects = strongest(
        Detections(
            torch.cat([part.boxes.cpu() for part in parts]),
            torch.cat([part.logits.cpu() for part in parts]),
        )
    )
    each = average_precision(objects, annotated.annotations, len(annotated.images.classes))
    return float(each.nanmean())


def _measure_boxes(
    net: nn.Module, test: AnnotatedImages, device: torch.device | str
) -> Mapping[str, Any]:
    return {"map50": mean_precision(net, test, device=device), "measured_images": len(test)}


@torch.no_grad()
def _measure_tags(
    net: nn.Module, test: AnnotatedImages, device: torch.device | str
) -> Mapping[str, Any]:
    x = test.images.x
    parts = [net(from_bytes(x[rows].to(device))).cpu() for rows in chunks(len(x), ASKED)]
    right = (torch.cat(parts) > 0) == (present(test) > 0)
    return {
        "accuracy": float(right.float().mean()),
        "whole_images": float(right.all(1).float().mean()),
        "measured_images": len(test),
    }


GOALS = {"boxes": (detect, _measure_boxes), "tags": (tag, _measure_tags)}
"""What networks of each task learn, and how they are measured."""
_RECIPE = TrainingRecipe(epochs=6, batch=32, lr=4e-3, schedule="warm", decay=0.01, clip=5.0)


def _row(
    name: str, task: str, kind: Callable[..., nn.Module], about: str, *, width: int = 16
) -> None:
    """Register a network for a task."""

    def build(channels: int, classes: int) -> nn.Module:
        return kind(channels, classes, width=width)

    build.__doc__ = about
    registry.model(
        name,
        needs=f"images with boxes, such as canvas5k; --task {task}",
        paper="ours; in the manner of Tian, Shen, Chen and He, ICCV 2019 (FCOS)",
        cite="tian2019fcos",
        task=task,
        training=_RECIPE if task == "boxes" else replace(_RECIPE, epochs=10),
    )(build)


_SMALL = "A small anchor-free detector, trained in a minute or two."
_row("digit-detector", "boxes", CellDetector, _SMALL)
_WIDE = "The same detector with wider layers, as a witness."
_row("digit-detector-wide", "boxes", CellDetector, _WIDE, width=20)
_TAGS = "A small tagger: which classes an image holds."
_row("digit-tagger", "tags", CellTagger, _TAGS)
_WIDE_TAGS = "The same tagger with wider layers, as a witness."
_row("digit-tagger-wide", "tags", CellTagger, _WIDE_TAGS, width=20)


def trained_network(
    name: str,
    train: AnnotatedImages,
    test: AnnotatedImages,
    *,
    seed: int = 0,
    epochs: int | None = None,
    progress: Callable[[TrainingProgress], None] | None = None,
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, cards.Card]:
    """The detector or tagger trained on these images by its recipe, on `device` in eval mode, and
    its card; kept in the cache.
    """
    rows = {name: row for name, row in registry.parts("model").items() if "training" in row.facts}
    if name not in rows:
        raise choice("detector or tagger", name, list(rows))
    row = rows[name]
    if train.images.shape != test.images.shape or train.images.classes != test.images.classes:
        raise HardcaseError("training and test images differ in their size or their classes.")
    recipe: TrainingRecipe = row.facts["training"]
    if epochs is not None:
        recipe = replace(recipe, epochs=epochs)
    task = row.facts["task"]
    if task == "boxes" and not any(len(annotation.boxes) for annotation in train.annotations):
        raise HardcaseError(
            f"{name} learns from boxes, and {train.images.name} has none.",
            fix="--data canvas5k, or data with boxes: coco:FILE.json, yolo:DIR",
        )
    goal, measure = GOALS[task]
    config = {
        "name": name,
        "channels": train.images.shape[0],
        "classes": len(train.images.classes),
        "seed": seed,
        "recipe": stated(recipe),
    }
    by_number = replace(train.images, y=torch.arange(len(train)))

    def build(config: Mapping[str, Any]) -> nn.Module:
        with named_randomness(config["seed"], "claims", config["name"]):
            net: nn.Module = row(config["channels"], config["classes"])
            return net

    return cards.fitted_network(
        task,
        name,
        config,
        lambda net, how: fit(net, by_number, goal(train), recipe, **how),
        data=train.hash,
        build=build,
        measure=lambda net: measure(net, test, device),
        measured_on=test.hash,
        device=device,
        progress=progress,
    )
