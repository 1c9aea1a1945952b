"""What every reader returns, and the checks that all of them share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hardcase.data.formats import Array, Bytes, Labels
from hardcase.errors import Problem
from hardcase.types import Images

MOST_CLASSES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A labelled image set as it was read. `divided`: the source has its own train and test part, and this is one of them."""

    x: Bytes
    y: Labels
    id: tuple[str, ...]
    classes: tuple[str, ...]
    divided: bool = False

    def take(self, rows: Labels) -> Table:
        ids = tuple(self.id[i] for i in rows.tolist())
        return Table(x=self.x[rows], y=self.y[rows], id=ids, classes=self.classes, divided=self.divided)


def to_images(table: Table, *, name: str, split: str) -> Images:
    return Images(to_tensor(table.x), to_tensor(table.y), table.id, table.classes, name, split)


def to_tensor(array: Bytes | Labels) -> Tensor:
    """A tensor of its own: contiguous, and free to be written to."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}/{i:05d}" for i in range(count))


def natural(text: str) -> tuple[list[str | int], str]:
    """A sorting key that puts ``2`` before ``10`` and ignores case."""
    parts = re.split(r"(\d+)", text.lower())
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], text


def class_names(labels: Labels, given: Sequence[str] | None) -> tuple[str, ...]:
    """The given names, or as many numbers as the labels need."""
    if given:
        return tuple(given)
    count = int(labels.max(initial=-1)) + 1
    if count > MOST_CLASSES:
        raise Problem(
            f"the largest label is {count - 1}; without names, at most {MOST_CLASSES:,} classes are taken as meant.",
            fix="count the classes from 0, without gaps",
        )
    return tuple(str(i) for i in range(count))


def check(table: Table, where: str) -> None:
    """The errors that any data can have: nothing in it, or labels that no class has."""
    if not len(table.y):
        raise Problem(f"{where} holds no images.", fix="hardcase list data shows what each kind of data needs")
    wrong = np.flatnonzero((table.y < 0) | (table.y >= len(table.classes)))
    if len(wrong):
        raise Problem(
            f"{where}: {len(wrong)} of {len(table.y)} labels lie outside the {len(table.classes)} classes; "
            f"{table.id[wrong[0]]} has label {table.y[wrong[0]]}.",
            f"Labels count from 0 to {len(table.classes) - 1}.",
            fix="correct the labels, or name all classes",
        )


def whole_numbers(labels: Array, where: str) -> Labels:
    """Labels as int64, one an image; a column of them is taken as it is meant."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise Problem(
            f"{where}: labels are {labels.dtype} of shape {labels.shape}; one whole number an image is needed.",
            fix="save class numbers counted from 0 (for one-hot labels: labels.argmax(1))",
        )
    return flat.astype(np.int64)
