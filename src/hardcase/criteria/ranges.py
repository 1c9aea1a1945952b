"""The range of every unit over training data, gathered batch by batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.criteria.frame import CHUNK, Frame
from hardcase.criteria.units import Selection
from hardcase.tensors import chunks


@dataclass(frozen=True, slots=True)
class Range:
    """Least, greatest, mean and variance of each unit over training data, not-a-number apart."""

    low: Float[Tensor, " u"]
    high: Float[Tensor, " u"]
    mean: Float[Tensor, " u"]
    variance: Float[Tensor, " u"]

    @staticmethod
    def join(parts: Iterable[Range]) -> Range:
        columns = list(zip(*((p.low, p.high, p.mean, p.variance) for p in parts), strict=True))
        return Range(*(torch.cat(column) for column in columns))


class Running:
    """Least, greatest, and first two moments of each unit, joined batch by batch (Chan, Golub, LeVeque, 1979)."""

    def __init__(self, units: int) -> None:
        self.low, self.high = torch.full((units,), torch.inf), torch.full((units,), -torch.inf)
        self.count, self.mean, self.spread = (torch.zeros(units, dtype=torch.float64) for _ in range(3))

    def add(self, frame: Frame, selection: Selection) -> None:
        extremes = frame.extremes(selection)
        self.low, self.high = torch.minimum(self.low, extremes.low.cpu()), torch.maximum(self.high, extremes.high.cpu())
        for block in frame.blocks(selection):
            for part in chunks(block.values.shape[1], max(1, CHUNK // len(frame))):
                values = block.values[:, part].double().cpu()
                self._moments(slice(block.start + part.start, block.start + part.stop), values)

    def _moments(self, part: slice, values: Float[Tensor, "m u"]) -> None:
        numbers = values.isfinite()
        count = numbers.sum(0).double()
        mean = values.where(numbers, 0).sum(0) / count.clamp_min(1)
        spread = (values - mean).where(numbers, 0).square().sum(0)
        total, shift = self.count[part] + count, mean - self.mean[part]
        share = count / total.clamp_min(1)
        self.spread[part] += spread + shift.square() * self.count[part] * share
        self.mean[part] += shift * share
        self.count[part] = total

    def range(self) -> Range:
        """A unit that never showed a number has the range 0 to 0: constant."""
        dead = self.low > self.high
        low, high = self.low.masked_fill(dead, 0), self.high.masked_fill(dead, 0)
        variance = self.spread / self.count.clamp_min(1)
        return Range(low, high, self.mean.float(), variance.float())
