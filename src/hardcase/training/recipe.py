"""How a network is trained, as plain values that fit into a table and into a card. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from hardcase.errors import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """`epochs` passes over the data, more where that would be fewer than `steps` steps (small data sets).

    `optimiser`, `schedule` and `augment` name rows of the tables in `hardcase.training.tables`; `decay` is weight decay.
    """

    epochs: int
    batch: int
    lr: float
    steps: int = 0
    optimiser: str = "adam"
    schedule: str = "cosine"
    augment: str = "none"
    decay: float = 0.0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not self.lr > 0:
            seen = f"epochs {self.epochs}, batch {self.batch}, lr {self.lr}"
            raise Problem(
                f"training needs at least one epoch, a batch of one and a positive rate; given: {seen}."
            )

    def rounds(self, count: int) -> tuple[int, int]:
        """Epochs, and steps in each, for `count` images. A last batch that would be smaller is left out."""
        inside = max(count // self.batch, 1)
        return max(self.epochs, ceil(self.steps / inside)), inside
