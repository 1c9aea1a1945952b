"""What an image set holds, and what about it deserves a warning."""

from __future__ import annotations

from typing import Any

import torch

from hardcase.types import Images


def describe(images: Images) -> dict[str, Any]:
    """Name, split, counts, shape, hash, and under ``notes`` what a user should know before testing with it."""
    counts = torch.bincount(images.y, minlength=len(images.classes)).tolist()
    return {
        "name": images.name,
        "split": images.split,
        "images": len(images),
        "shape": list(images.x.shape[1:]),
        "classes": list(images.classes),
        "per_class": dict(zip(images.classes, counts)),
        "hash": images.hash,
        "notes": _notes(images, counts),
    }


def _notes(images: Images, counts: list[int]) -> list[str]:
    present = [name for name, count in zip(images.classes, counts) if count]
    empty = [name for name, count in zip(images.classes, counts) if not count]
    notes = []
    if len(present) == 1:
        notes.append(
            f"all {len(images)} images belong to one class, {present[0]!r}: accuracy and confusions say little."
        )
    elif empty:
        notes.append(f"{len(empty)} of {len(counts)} classes have no images: {', '.join(empty[:10])}.")
    if len(images) and int(images.x.max()) == int(images.x.min()):
        notes.append("all pixels have the same value.")
    return notes
