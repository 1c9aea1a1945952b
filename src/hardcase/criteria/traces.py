"""Activation traces of training data: what surprise and class dispersion compare with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.criteria.nearest import searchable
from hardcase.errors import Problem
from hardcase.tensors import chunks


@dataclass(frozen=True, slots=True)
class Traces:
    """One trace a training image, its predicted class and its label.

    `own` and `other` are each trace's distance to the nearest other trace of its predicted class and of any other class.
    They depend on training data alone, so they are computed once (`measured`).
    """

    values: Float[Tensor, "n d"]
    predicted: Int[Tensor, " n"]
    label: Int[Tensor, " n"]
    own: Float[Tensor, " n"] | None = None
    other: Float[Tensor, " n"] | None = None

    def tensors(self) -> dict[str, Tensor]:
        columns = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in columns.items() if value is not None}

    def numbers(self) -> Traces:
        """Without the traces that hold infinity or not-a-number."""
        good = self.values.isfinite().all(1)
        if bool(good.all()):
            return self
        return Traces(**{name: value[good] for name, value in self.tensors().items()})

    def by_class(self) -> Iterator[tuple[int, Int[Tensor, " r"]]]:
        """Each predicted class and the rows that have it."""
        for label in torch.unique(self.predicted).tolist():
            yield label, (self.predicted == label).nonzero().squeeze(1)

    def measured(self, search: str = "exact", batch: int = 512) -> Traces:
        """These traces with their distances. A class of one trace has `own` infinity."""
        if self.own is not None and self.other is not None:
            return self
        clean = self.numbers()
        if len(torch.unique(clean.predicted)) < 2:
            raise Problem(
                "distance-based surprise compares two classes, but the model predicts one class for all training images.",
                fix="training data of all classes, or a trained model",
            )
        own, other = torch.full((2, len(clean.values)), torch.inf).unbind()
        for label, rows in clean.by_class():
            same, rest = (searchable(clean.values[chosen], search) for chosen in (rows, clean.predicted != label))
            for part in chunks(len(rows), batch):
                points, places = clean.values[rows[part]], torch.arange(part.start, part.stop)
                other[rows[part]] = rest.nearest(points)[0]
                if len(rows) > 1:
                    own[rows[part]] = same.nearest(points, skip=places)[0]
        return replace(clean, own=own, other=other)
