"""Random failing samples of the conditions, each judged; and images perhaps mislabelled.

A failure rate counts every sample that the model reads otherwise than labelled. The conditions have
made a part of them unreadable, and a part begins with an image that was not readable as labelled in
the first place. Both are counted here separately: a verdict on a sample is of this sample alone,
whatever the judge doubts of the unmodified image.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hardcase.analysis.conditions import keep_lost_labels, lost_share, shown_samples
from hardcase.judges.judge import ask
from hardcase.runs.results import Run
from hardcase.tensors import decode_all
from hardcase.types import ImagePairs, Judge

LOST = ("lost", "foreign")


def judge_samples(judge: Judge, samples: ImagePairs) -> dict[str, Any]:
    """Count how many failing samples keep their label and how many have lost it.

    Args:
        judge: The judge of every sample by itself.
        samples: The samples, their originals, and their labels.

    Returns:
        ``lost``, ``decided`` and ``shown``, with the ends of the interval of the share lost that
        hold whatever the unsure ones are; ``unreadable``: how many samples are counted separately
        since the judge does not see the label in the unmodified image either.
    """
    words = ask(judge, samples).verdict
    plain = ask(judge, unmodified(samples)).verdict
    legible = [word for word, before in zip(words, plain, strict=True) if before not in LOST]
    lost = sum(word in LOST for word in legible)
    decided = sum(word != "unsure" for word in legible)
    return {
        **lost_share(lost, decided, len(legible)),
        "unreadable": len(words) - len(legible),
    }


def perhaps_mislabelled(judge: Judge, images: ImagePairs, ids: Sequence[str]) -> list[str]:
    """Return the images in which, unmodified, the judge does not see their label.

    Args:
        judge: The judge.
        images: The images and their labels; only the originals are looked at.
        ids: Their names.
    """
    words = ask(judge, unmodified(images)).verdict
    return [name for name, word in zip(ids, words, strict=True) if word in LOST]


def unmodified(pairs: ImagePairs) -> ImagePairs:
    """Return the originals as they are."""
    return ImagePairs(pairs.original, pairs.original, pairs.expected)


def count_lost_labels(run: Run, judge: Judge) -> Run:
    """Enter into a run the judge's verdicts on its random failing samples, and which of their
    originals are perhaps mislabelled.
    """
    shown = shown_samples(run)
    if not shown:
        return run
    originals = decode_all([row["unmodified"] for row in shown])
    labels = torch.tensor([row["label"] for row in shown])
    pictures = decode_all([row["image"] for row in shown])
    counted = judge_samples(judge, ImagePairs(pictures, originals, labels))
    first = {row["original"]: place for place, row in reversed([*enumerate(shown)])}
    rows = list(first.values())
    images = originals[rows]
    counted["perhaps_mislabelled"] = perhaps_mislabelled(
        judge, ImagePairs(images, images, labels[rows]), list(first)
    )
    counted["images"] = len(first)
    if not (counted["decided"] or counted["unreadable"]):
        return run
    return keep_lost_labels(run, "lost_labels", counted)
