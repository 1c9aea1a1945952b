"""Pictures of a repair: images that the network misread before the repair and reads after it.

They are images of the validation part: none of the proof is ever shown, and none was learned from.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.claims import claim_context
from hardcase.conditions import ConditionBox
from hardcase.conditions.box import samples_of
from hardcase.conditions.risk import (
    ROWS,
    SAMPLES,
    Answers,
    answered,
    logits_under_conditions,
    seeds_of,
    with_pattern,
)
from hardcase.tensors import encode_all, to_bytes
from hardcase.types import Images, Model

__all__ = ["RepairedExample", "repaired_examples"]

SHOWN = 6
"""Pictures, at most."""
LOOKED = 512
"""Validation images that are looked through, at most."""


@dataclass(frozen=True, slots=True)
class RepairedExample:
    """A sample that was misread and is read.

    Args:
        label: The class of the image.
        before: What the network before says of the sample.
        words: What was done to the image.
        unmodified: The image, as a PNG in base64.
        sample: The sample, likewise.
    """

    label: str
    before: str
    words: str
    unmodified: str
    sample: str


def repaired_examples(
    before: Model, after: Model, images: Images, box: ConditionBox, *, seed: int
) -> list[RepairedExample]:
    """Return samples that only the repaired network reads, of classes as different as there are.

    Args:
        before: The network before.
        after: The repaired network.
        images: Images that neither learned from, and that prove nothing.
        box: The declared conditions.
        seed: The seed of the samples.
    """
    if claim_context(images.context):  # what is claimed of an image is no class that it is read as
        return []
    sample = images.first(min(LOOKED, len(images)))
    drawn = samples_of(box, sample.id, SAMPLES, seed=seed)
    of = torch.arange(len(sample)).repeat_interleave(SAMPLES)
    codes = drawn.z.flatten(0, 1)
    patterns = drawn.pattern.flatten()
    old, new = (_said(model, sample, box, of, codes, patterns) for model in (before, after))
    rows = (old.failed & ~new.failed).nonzero().squeeze(1)
    chosen = torch.tensor(list(_spread(rows, of, sample.y)), dtype=torch.int64)
    if not len(chosen):
        return []
    origins = seeds_of(sample.take(of[chosen]), box, torch.device("cpu"))
    origin = with_pattern(origins, patterns[chosen])
    with torch.inference_mode():
        pictures = to_bytes(box.decode(codes[chosen], origin))
    facts = zip(
        sample.y[of[chosen]].tolist(),
        old.predicted[chosen].tolist(),
        box.words(codes[chosen]),
        encode_all(sample.x[of[chosen]]),
        encode_all(pictures),
    )
    names = sample.classes
    return [
        RepairedExample(names[label], names[label_read], words, *map(_text, pngs))
        for label, label_read, words, *pngs in facts
    ]


def _said(
    model: Model,
    images: Images,
    box: ConditionBox,
    of: Int[Tensor, " m"],
    codes: Tensor,
    patterns: Tensor,
) -> Answers:
    """What a model says of every sample."""
    place = model.device
    seeds = seeds_of(images, box, place)
    arguments = (of.to(place), codes.to(place), patterns.to(place))
    predicted = answered(
        logits_under_conditions(model, box, seeds, *arguments, rows=ROWS), seeds.y[arguments[0]]
    )
    return Answers(*(part.cpu() for part in predicted))


def _spread(
    rows: Int[Tensor, " m"], of: Int[Tensor, " k"], labels: Int[Tensor, " n"]
) -> Iterator[int]:
    """A few rows, one an image, first of every class once."""
    first = dict[int, int]()
    for row in rows.tolist():
        first.setdefault(int(of[row]), row)
    turn_of = dict[int, int]()
    turns = list[tuple[int, int]]()
    for image, row in first.items():
        label = int(labels[image])
        turn_of[label] = turn_of.get(label, 0) + 1
        turns.append((turn_of[label], row))
    yield from (row for _, row in sorted(turns)[:SHOWN])


def _text(png: bytes) -> str:
    return b64encode(png).decode()
