"""What annotated images become: seeds, one for each image and claim about it, and sheets of
pictures with boxes and masks in the colour of their class, for people to look at.
"""

from __future__ import annotations

import colorsys
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from hardcase.campaign.claims import CLAIM_KINDS, Claims, image_of
from hardcase.claims.annotations import NONE, AnnotatedImages
from hardcase.claims.subjects import Annotation, Task
from hardcase.errors import NO_SEEDS, Problem
from hardcase.models.health import answers
from hardcase.types import WAYS, Images, Model

__all__ = [
    *("claim_record", "claim_seeds", "draw_annotation", "draw_annotations"),
    *("labelled_annotations", "task_of_seeds", "usual_task", "with_absent"),
]

NOTHING = (0.0, 0.0, 0.0, 0.0)
"""The box of a claim that names no place."""
SIDE = 240
"""Longest side of an image in a sheet, in pixels."""
ACROSS = 4
VEIL = 0.45
"""How much of a mask's colour covers what is below it."""
LINE = 16
"""Height of a line of text."""


def labelled_annotations(images: Images) -> tuple[Annotation, ...]:
    """What is known of images with one class each: that it is there."""
    nothing = torch.zeros(0, 4), torch.zeros(0, 0, dtype=torch.int16)
    return tuple(Annotation(images.y[row : row + 1], *nothing) for row in range(len(images)))


def task_of_seeds(seeds: Images) -> Task:
    """The task of networks that seeds with claims are about; ``classes`` without claims."""
    claims = Claims.of(seeds)
    if claims is None:
        return "classes"
    kinds = {CLAIM_KINDS[kind] for kind in claims.kind.tolist()}
    if "covers" in kinds:
        return "masks"
    return "boxes" if "at" in kinds else "tags"


def usual_task(annotations: Sequence[Annotation]) -> Task:
    """The task of networks for annotated images: boxes where there are any, else masks or tags."""
    if any(len(one.boxes) for one in annotations):
        return "boxes"
    return "masks" if any(one.mask.numel() for one in annotations) else "tags"


def claim_record(seeds: Images, task: Task, model: Model) -> dict[str, Any]:
    """What run.json says of the claims of a run."""
    kinds = Counter(CLAIM_KINDS[kind] for kind in seeds.context["claim_kind"].tolist())
    return {
        "task": task,
        "kinds": dict(kinds),
        "images": len({image_of(name) for name in seeds.id}),
        "threshold": getattr(model, "threshold", None),
    }


class _Claim(NamedTuple):
    """What is claimed of one image."""

    kind: str
    label: int
    box: Sequence[float] = NOTHING
    mask: UInt8[Tensor, "h w"] | None = None


def claim_seeds(images: Images, annotations: Sequence[Annotation], task: Task) -> Images:
    """The seeds of annotated images: the image again for each claim, and the claims in its context.

    Objects with boxes are claimed to be at their place, pixels to be of their class, and what has
    neither to be there. Names are ``IMAGE#CLASS``, from the second object on ``IMAGE#CLASS-2``.
    """
    claimed = [_claims(one, task, len(images.classes)) for one in annotations]
    if not any(claimed):
        raise Problem(
            f"{images.name} says of no image what is in it.",
            fix="data with tags, boxes or masks of the task",
            code=NO_SEEDS,
        )
    return _seeds(images, claimed)


def _claims(known: Annotation, task: Task, classes: int) -> list[_Claim]:
    labels = known.labels.tolist()
    if task == "masks" and known.mask.numel():
        present = _shown(known, classes)
        return [_Claim("covers", label, mask=(known.mask == label).byte()) for label in present]
    if task == "boxes" and len(known.boxes) == len(labels):
        return [_Claim("at", *pair) for pair in zip(labels, known.boxes.tolist())]
    return [_Claim("has", label) for label in sorted(set(labels))]


def _shown(known: Annotation, classes: int) -> list[int]:
    """The classes of an image's pixels."""
    return [label for label in range(classes) if bool((known.mask == label).any())]


def _seeds(images: Images, claimed: Sequence[Sequence[_Claim]]) -> Images:
    rows = torch.tensor([row for row, claims in enumerate(claimed) for _ in claims])
    every = [claim for claims in claimed for claim in claims]
    taken = images.take(rows.long())
    names = list[str]()
    times = Counter[str]()
    for name, claim in zip(taken.id, every):
        word = re.sub(r"[^\w.-]+", "-", images.classes[claim.label])
        name = f"{name}#{'not-' * (claim.kind == 'has-not')}{word}"
        times[name] += 1
        names.append(f"{name}-{times[name]}" if times[name] > 1 else name)
    height, width = images.shape[1:]
    size = (height, width) if any(claim.mask is not None for claim in every) else (0, 0)
    blank = torch.zeros(size, dtype=torch.uint8)
    claims = Claims(
        torch.tensor([CLAIM_KINDS.index(claim.kind) for claim in every]),
        torch.tensor([claim.label for claim in every]),
        torch.tensor([list(claim.box) for claim in every], dtype=torch.float32),
        torch.stack([blank if claim.mask is None else claim.mask for claim in every]),
        torch.ones(len(every), dtype=torch.bool),
    )
    context = {**taken.context, **claims.context()}
    return Images(
        taken.x, claims.label, tuple(names), images.classes, images.name, images.split, context
    )


def with_absent(
    seeds: Images, images: Images, annotations: Sequence[Annotation], model: Model
) -> Images:
    """The same seeds, and of each image the claim that the class is absent that the model is
    nearest to saying of all that are.
    """
    said = answers(model, images)[:, : -len(WAYS)].clone()
    for row, known in enumerate(annotations):
        said[row, [*known.labels.tolist(), *_shown(known, said.shape[1])]] = -torch.inf
    nearest = said.max(1)
    claimed = [
        [_Claim("has-not", label)] if score > -torch.inf else []
        for label, score in zip(nearest.indices.tolist(), nearest.values.tolist())
    ]
    return joined(seeds, _seeds(images, claimed)) if any(claimed) else seeds


def joined(one: Images, two: Images) -> Images:
    """Seeds of both; those without a mask get an empty one where the others have one."""
    x = torch.cat([one.x, two.x])
    context = dict[str, Tensor]()
    for name in one.context.keys() | two.context.keys():
        known = one.context.get(name, two.context.get(name))
        assert known is not None
        shape = known.shape[1:]
        parts = [each.context.get(name, known.new_zeros(len(each), *shape)) for each in (one, two)]
        context[name] = torch.cat(parts)
    return Images(
        x, torch.cat([one.y, two.y]), one.id + two.id, one.classes, one.name, one.split, context
    )


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
        mask = known.mask.cpu().numpy()
        colours = np.array([colour_of(label) for label in range(NONE + 1)])
        mixed = (1 - VEIL) * pixels + VEIL * colours[mask]
        pixels = np.where((mask != NONE)[..., None], mixed, pixels).astype(np.uint8)
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
