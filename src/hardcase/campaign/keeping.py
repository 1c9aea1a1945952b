"""Which findings of a seed are kept: the first, the nearest, the nearest of each wrong label, some, or all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.errors import Problem
from hardcase.types import KINDS, Findings

MANY = 2**62


@dataclass(frozen=True, slots=True)
class Keep:
    """Up to `count` findings of each seed and kind (and label, if `per_label`): the nearest, or the earliest."""

    count: int = 1
    nearest: bool = True
    per_label: bool = False

    @property
    def bounded(self) -> bool:
        return self.count < MANY

    def rows(
        self, seed: Int[Tensor, " t"], kind: Int[Tensor, " t"], label: Int[Tensor, " t"], distance: Float[Tensor, " t"]
    ) -> Int[Tensor, " r"]:
        """Positions to keep, in their given order; ties go to the earlier finding."""
        if not self.bounded:
            return torch.arange(len(seed), device=seed.device)
        group = seed * len(KINDS) + kind
        group = group * (int(label.max()) + 1) + label if self.per_label and len(label) else group
        order = distance.argsort(stable=True) if self.nearest else torch.arange(len(seed), device=seed.device)
        order = order[group[order].argsort(stable=True)]
        return order[ordinal(group[order]) < self.count].sort().values

    def prune(self, findings: Findings) -> Findings:
        return findings.take(self.rows(findings.seed, findings.kind, findings.predicted, findings.distance))


def ordinal(groups: Int[Tensor, " m"]) -> Int[Tensor, " m"]:
    """How many earlier entries are of the same group, for each entry."""
    order = groups.argsort(stable=True)
    ranked = groups[order]
    starts = torch.ones_like(ranked, dtype=torch.bool)
    starts[1:] = ranked[1:] != ranked[:-1]
    position = torch.arange(len(groups), device=groups.device)
    first = torch.where(starts, position, 0).cummax(0).values
    return torch.empty_like(order).index_put_((order,), position - first)


def parse_keep(text: str) -> Keep:
    """``first | best | best-per-label | all | N``."""
    named = {
        "first": Keep(nearest=False),
        "best": Keep(),
        "best-per-label": Keep(per_label=True),
        "all": Keep(count=MANY, nearest=False),
    }
    if text in named:
        return named[text]
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0:
        return Keep(count=int(text))
    raise Problem(f"keep is {text!r}; it is one of {', '.join(named)} or a number above 0.")
