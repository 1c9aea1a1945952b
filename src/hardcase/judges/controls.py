"""Controls of a check: images with a true answer, judged blind among the findings of a run.

Twelve are unmodified images, with their label. Twelve of each of three kinds have lost it: images
of the same method from another class, two classes laid over each other, and morphs past the middle
to another class. How many of them a judge gets right says how far to trust it in this run. They
warn; they change no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from hardcase.imaging.blur import binomial
from hardcase.judges.training_data import background, with_shades_of
from hardcase.randomness import stream
from hardcase.runs.results import Run
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import ImagePairs

EACH = 12
"""Controls of each kind."""
UNCHANGED = "unchanged"
OTHER_CLASS = "other class, same method"
OVERLAY = "overlay of two classes"
MORPH = "morph past the middle"
LOSSES = (OTHER_CLASS, OVERLAY, MORPH)
LEFT = 0.25
"""What a morph past the middle has left of the image it began with."""
FEW_KEPT = 11
FEW_FOUND = 10
"""A check that keeps fewer of `EACH` unchanged images, or finds fewer planted losses of a kind, is
warned of.
"""


@dataclass(frozen=True, slots=True)
class Controls:
    """Images with a true answer.

    Args:
        pairs: The images.
        kind: The kind of each.
    """

    pairs: ImagePairs
    kind: tuple[str, ...]


def plant_controls(run: Run, *, seed: int = 0) -> Controls:
    """Make the controls of a run from its images and findings.

    Kinds that need a second class are left out of a run whose images share a class.
    """
    rng = stream(seed, "judge", "controls")
    labels = torch.from_numpy(run.seeds["label"].to_numpy().copy()).long()
    parts = [(UNCHANGED, _unchanged(run, labels, rng))]
    if len(set(labels.tolist())) > 1:
        first = torch.randperm(len(labels), generator=rng)[:EACH]
        second = _other_class(labels[first], labels, rng)
        originals = run.seed_images(first.tolist())
        others = run.seed_images(second.tolist())
        expected = labels[first]
        parts += [
            (OTHER_CLASS, _of_other_class(run, labels, rng)),
            (OVERLAY, ImagePairs(_overlay(originals, others), originals, expected)),
            (MORPH, ImagePairs(_morph(originals, others), originals, expected)),
        ]
    kinds = [kind for kind, pairs in parts for _ in range(len(pairs))]
    return Controls(ImagePairs.join([pairs for _, pairs in parts]), tuple(kinds))


def _unchanged(run: Run, labels: Int[Tensor, " n"], rng: torch.Generator) -> ImagePairs:
    """Images as they are, of those that the model reads as labelled: findings begin with these."""
    predicted = torch.from_numpy(run.seeds["predicted"].to_numpy().copy()).long()
    right = (labels == predicted).nonzero().squeeze(1)
    rows = right[torch.randperm(len(right), generator=rng)[:EACH]]
    images = run.seed_images(rows.tolist())
    return ImagePairs(images, images, labels[rows])


def _other_class(
    labels: Int[Tensor, " e"], every: Int[Tensor, " n"], rng: torch.Generator
) -> Int[Tensor, " e"]:
    """Return for each label a row of another class, at random."""
    chance = torch.rand(len(labels), len(every), generator=rng)
    return (chance * (every[None] != labels[:, None])).argmax(1)


def _of_other_class(run: Run, labels: Int[Tensor, " n"], rng: torch.Generator) -> ImagePairs:
    """The method's images of a class, presented as if from an image of another class that the model
    does not answer either; without findings, unmodified images of another class.
    """
    table = run.findings.select(["expected", "predicted"])
    rows = torch.randperm(len(table), generator=rng)[:EACH]
    more = torch.randperm(len(labels), generator=rng)[: EACH - len(rows)]
    images = [run.images(rows.tolist())] * bool(len(rows))
    images += [run.seed_images(more.tolist())] * bool(len(more))
    predicted = (
        torch.from_numpy(table[name].to_numpy().copy()).long()[rows] for name in table.column_names
    )
    shown, answered = (torch.cat([classes, labels[more]]) for classes in predicted)
    chance = torch.rand(len(shown), len(labels), generator=rng)
    other = (labels[None] != shown[:, None]) & (labels[None] != answered[:, None])
    claimed = (chance * other).argmax(1)
    possible = other.any(1)
    originals = run.seed_images(claimed.tolist())[possible]
    return ImagePairs(torch.cat(images)[possible], originals, labels[claimed][possible])


def _overlay(
    first: UInt8[Tensor, "e c h w"], second: UInt8[Tensor, "e c h w"]
) -> UInt8[Tensor, "e c h w"]:
    """Two images on top of each other: of grey images the value further from its background, of
    photographs the mean.
    """
    if first.shape[1] > 1:
        return to_bytes((from_bytes(first) + from_bytes(second)) / 2)
    x, other = from_bytes(first), from_bytes(second)
    nearer = (x - background(x)).abs() < (other - background(other)).abs()
    return to_bytes(torch.where(nearer, other, x))


def _morph(
    first: UInt8[Tensor, "e c h w"], second: UInt8[Tensor, "e c h w"]
) -> UInt8[Tensor, "e c h w"]:
    """An image on its way to another, with `LEFT` of the first; of grey images in strokes."""
    x, other = from_bytes(first), from_bytes(second)
    if first.shape[1] > 1:
        return to_bytes(LEFT * x + (1 - LEFT) * other)
    mixed: Float[Tensor, "e c h w"] = LEFT * binomial(x) + (1 - LEFT) * binomial(other)
    return to_bytes(with_shades_of(mixed, other))


def count_controls(controls: Controls, verdicts: Sequence[str]) -> dict[str, Any]:
    """Return the entry of run.json on the controls: by kind how many there were, and how many
    were judged kept, lost (or foreign) and unsure.
    """
    counts: dict[str, Any] = {}
    for kind, word in zip(controls.kind, verdicts, strict=True):
        row = counts.setdefault(kind, {"planted": 0, "kept": 0, "lost": 0, "unsure": 0})
        row["planted"] += 1
        row["lost" if word == "foreign" else word] += 1
    losses = [counts[kind] for kind in LOSSES if kind in counts]
    return {
        "found": sum(row["lost"] for row in losses),
        "planted": sum(row["planted"] for row in losses),
        "accepted": sum(row["kept"] for row in losses),
        "kinds": counts,
    }


def controls_in_words(entry: Mapping[str, Any] | None) -> list[str]:
    """Return the controls in lines for people: the counts, and a warning where they are poor."""
    if not entry:
        return []
    kinds = entry["kinds"]
    lines = [
        f"controls: it found {entry['found']} of {entry['planted']} planted label losses"
        f" and accepted {entry['accepted']} of them"
    ]
    fresh = kinds.get(UNCHANGED)
    if fresh:
        lines[0] += f"; it kept {fresh['kept']} of {fresh['planted']} unmodified images"
    poor = [
        f"{kind} ({kinds[kind]['lost']} of {kinds[kind]['planted']})"
        for kind in LOSSES
        if kind in kinds and kinds[kind]["lost"] * EACH < FEW_FOUND * kinds[kind]["planted"]
    ]
    if poor:
        lines.append(f"warning: it found few lost labels of the kinds {', '.join(poor)}")
    if fresh and fresh["kept"] * EACH < FEW_KEPT * fresh["planted"]:
        lines.append("warning: it is unsure even of unmodified images, so it accepts little here")
    return lines
