"""Surprise as a criterion: its mean over a suite (LSA, DSA, MDSA), and the share of its range seen (LSC, DSC, MDSC).

J. Kim, R. Feldt, S. Yoo, "Guiding deep learning system testing using surprise adequacy", ICSE 2019.
The authors' code cuts from the suite's own least surprise, gives n-1 bins and an overflow bin that swallows everything
above the bound, and uses the bound 2000 for both kinds, which leaves DSC near 1/1000. Here the bounds are the least and
greatest leave-one-out surprise of training data unless given; what lies outside covers nothing and is counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.criteria.bits import Bits
from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.memory import Counted, Folded, summed
from hardcase.criteria.surprise import SurpriseModel
from hardcase.criteria.units import Selection
from hardcase.types import State

PATIENCE = 2048
"""Rows that are compared with training data together: a product of matrices pays off."""


def surprise_of(frame: Frame, selection: Selection, model: SurpriseModel) -> Float[Tensor, " m"]:
    """Each row's surprise, computed once a frame."""
    surprise: Tensor = frame.once((id(model), selection), lambda: model(frame.matrix(selection), frame.predicted))
    return surprise


@dataclass(frozen=True)
class MeanSurprise:
    """The mean surprise of the inputs. Not a ratio, not monotone: it says how far a suite is from training data."""

    patience = PATIENCE
    selection: Selection
    model: SurpriseModel

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Folded:
        zero, none = torch.zeros(1, dtype=torch.float64), torch.full((1,), torch.inf, dtype=torch.float64)
        return Folded({"count": zero, "sum": zero, "low": none, "high": -none, "without": zero}, _gathered)

    def observe(self, frame: Frame, memory: Folded) -> None:
        surprise = surprise_of(frame, self.selection, self.model).double()
        known = surprise[surprise.isfinite()]
        low, high = (
            (known.amin(), known.amax()) if len(known) else (known.new_tensor(torch.inf), known.new_tensor(-torch.inf))
        )
        parts = {
            "count": len(known),
            "sum": known.sum(),
            "low": low,
            "high": high,
            "without": len(surprise) - len(known),
        }
        memory.add({name: torch.as_tensor(value, dtype=torch.float64).reshape(1) for name, value in parts.items()})

    def gain(self, frame: Frame, memory: Folded) -> Float[Tensor, " m"]:
        """By how much the row alone would change the mean."""
        seen, surprise = memory.total(), surprise_of(frame, self.selection, self.model)
        mean = (seen["sum"] / seen["count"].clamp_min(1)).to(frame.device)
        change = (surprise.double() - mean) / (seen["count"].to(frame.device) + 1)
        return change.where(surprise.isfinite(), 0).float()

    def choose(self, count: int, rng: torch.Generator, memory: Folded) -> dict[str, Tensor]:
        return {}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Folded) -> Float[Tensor, " m"]:
        """Surprise itself: up."""
        surprise = surprise_of(frame, self.selection, self.model)
        return surprise.where(surprise.isfinite(), 0)

    def tally(self, memory: Folded) -> Tally:
        seen = {name: float(value) for name, value in memory.total().items()}
        mean = seen["sum"] / max(seen["count"], 1)
        known = {"least": seen["low"], "greatest": seen["high"]} if seen["count"] else {}
        return Tally(mean, detail={"inputs": int(seen["count"]), "without surprise": int(seen["without"]), **known})


def _gathered(a: State, b: State) -> State:
    sums = {name: a[name] + b[name] for name in ("count", "sum", "without")}
    return {**sums, "low": torch.minimum(a["low"], b["low"]), "high": torch.maximum(a["high"], b["high"])}


@dataclass(frozen=True)
class SurpriseBuckets:
    """Which of `n` equal buckets between `lower` and `upper` hold some input's surprise.

    Buckets are right-open, the last one closed. `overflow` makes the last one hold everything above the others.
    """

    patience = PATIENCE
    selection: Selection
    model: SurpriseModel
    lower: float
    upper: float
    n: int = 1000
    overflow: bool = False

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Counted:
        zero = torch.zeros(1, dtype=torch.int64)
        return Counted(Bits(1, self.n), Folded({"inputs": zero, "below": zero, "above": zero, "without": zero}, summed))

    def observe(self, frame: Frame, memory: Counted) -> None:
        surprise = surprise_of(frame, self.selection, self.model)
        memory.bits.mark(0, self.buckets(surprise)[None])
        counts = {"below": surprise < self.lower, "above": surprise > self.upper, "without": surprise.isnan()}
        sums = {name: value.sum().reshape(1) for name, value in counts.items()}
        memory.sums.add({"inputs": torch.tensor([len(frame)]), **sums})

    def gain(self, frame: Frame, memory: Counted) -> Float[Tensor, " m"]:
        cells = self.buckets(surprise_of(frame, self.selection, self.model))
        return memory.bits.news(0, cells[None]).squeeze(0).float()

    def choose(self, count: int, rng: torch.Generator, memory: Counted) -> dict[str, Tensor]:
        return {"bucket": memory.bits.pick(count, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Counted) -> Float[Tensor, " m"]:
        """Toward the centre of the bucket, measured in widths of the whole range."""
        surprise = surprise_of(frame, self.selection, self.model)
        target = self.lower + (aim["bucket"] + 0.5) * self._width
        score = -((surprise - target) / (self.upper - self.lower)).square()
        return score.where(surprise.isfinite(), 0)

    def tally(self, memory: Counted) -> Tally:
        covered = memory.bits.count()
        return Tally(covered / self.n, covered, self.n, {k: int(v) for k, v in memory.sums.total().items()})

    @property
    def _width(self) -> float:
        return (self.upper - self.lower) / (self.n - self.overflow)

    def buckets(self, surprise: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """The bucket of each value, from 1; 0 outside the bounds and for not-a-number."""
        place = ((surprise.double() - self.lower) / self._width).floor()
        place = place.where(surprise != self.upper, self.n - 1)
        outside = (surprise < self.lower) | surprise.isnan() | ((surprise > self.upper) & (not self.overflow))
        return place.masked_fill(outside, -1).clamp(-1, self.n - 1).long() + 1
