"""Images that people have looked at: what they said, and what counts as the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from hardcase.errors import Problem

NEEDED = ("images", "expected", "predicted", "generator", "rater1", "rater2")
FORMAT = "arrays images (8-bit), expected, predicted, generator, rater1, rater2 (the class seen, -1 for none)"


@dataclass(frozen=True, slots=True)
class People:
    """Axis `m`: images. A rater's answer is the class seen, or -1 where no class was seen."""

    x: UInt8[Tensor, "m c h w"]
    expected: Int[Tensor, " m"]
    predicted: Int[Tensor, " m"]
    generator: tuple[str, ...]
    rater1: Int[Tensor, " m"]
    rater2: Int[Tensor, " m"]

    def __len__(self) -> int:
        return len(self.expected)

    @property
    def label_kept(self) -> Int[Tensor, " m"]:
        """1: both raters saw the expected class; 0: neither did; -1: split."""
        return _both(self.rater1 == self.expected, self.rater2 == self.expected)

    @property
    def valid(self) -> Int[Tensor, " m"]:
        """1: both raters saw some class; 0: neither did; -1: split."""
        return _both(self.rater1 >= 0, self.rater2 >= 0)

    @property
    def confirmed(self) -> Bool[Tensor, " m"]:
        """Both raters saw the expected class; a split counts as not confirmed."""
        return self.label_kept == 1


def _both(first: Bool[Tensor, " m"], second: Bool[Tensor, " m"]) -> Int[Tensor, " m"]:
    return torch.where(first & second, 1, torch.where(first | second, -1, 0))


def read_people(arrays: Mapping[str, Any], *, where: str, shape: tuple[int, ...], classes: int) -> People:
    """Checked labels of people from the arrays of an npz file; images must have the judge's `shape`."""
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        raise Problem(f"{where} has no array {missing[0]!r}.", f"Human labels are {FORMAT}.")
    x = np.asarray(arrays["images"])
    columns = {name: np.asarray(arrays[name]) for name in NEEDED[1:]}
    if x.dtype != np.uint8 or any(len(column) != len(x) for column in columns.values()) or not len(x):
        sizes = ", ".join(f"{name} {len(column)}" for name, column in columns.items())
        raise Problem(f"{where}: {len(x)} images of type {x.dtype}, {sizes}.", f"Human labels are {FORMAT}.")
    images = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2) if x.shape[1:] == (*shape[1:], shape[0]) else x
    if images.shape[1:] != shape:
        raise Problem(
            f"{where} holds images of shape {x.shape[1:]}; this judge was made for {shape} (channels, height, width).",
            fix="labels of images of the judge's own data set",
        )
    numbers = {name: torch.from_numpy(columns[name].astype(np.int64)) for name in NEEDED[1:] if name != "generator"}
    for name, values in numbers.items():
        if int(values.min()) < (-1 if name.startswith("rater") else 0) or int(values.max()) >= classes:
            raise Problem(
                f"{where}: {name} runs from {int(values.min())} to {int(values.max())} for {classes} classes."
            )
    names = tuple(str(name) for name in columns["generator"])
    return People(torch.from_numpy(np.ascontiguousarray(images)), generator=names, **numbers)
