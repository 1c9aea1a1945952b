"""LSCD, latent space class dispersion: how far inputs lie from the centre of their class, as training data drew it.

V. Vekariya, M. Golagha, A. Stocco, A. Pretschner, "Latent space class dispersion: effective test data quality assessment
for DNNs", 2025 (arXiv 2503.18799). For each class the mean Euclidean distance between the traces of inputs of that label
and the centroid of the training traces of that label which the model got right; then the mean over the classes seen.

The definition follows the abstract and the published tool's final form; an earlier form there (the share of inputs
beyond a radius) is not offered. Not a ratio, not monotone. Classes without a rightly classified training image are left
out and counted (the tool puts their centroid at zero).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.frame import Frame
from hardcase.criteria.measure import Tally
from hardcase.criteria.memory import Folded, summed
from hardcase.criteria.traces import Traces
from hardcase.criteria.units import Selection
from hardcase.errors import Problem
from hardcase.types import State


@dataclass(frozen=True)
class Dispersion:
    """Distances to class centres, summed by class. `centres` holds not-a-number for a class without one."""

    selection: Selection
    centres: Float[Tensor, "k d"]

    @staticmethod
    def fit(selection: Selection, traces: Traces) -> Dispersion:
        traces = traces.numbers()
        classes = int(torch.stack([traces.label.amax(), traces.predicted.amax()]).amax()) + 1
        right = traces.predicted == traces.label
        sums = torch.zeros(classes, traces.values.shape[1], dtype=torch.float64)
        sums.index_add_(0, traces.label[right], traces.values[right].double())
        return Dispersion(selection, (sums / traces.label[right].bincount(minlength=classes)[:, None]).float())

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Folded:
        zeros = torch.zeros(len(self.centres), dtype=torch.float64)
        return Folded({"sum": zeros, "count": zeros}, summed)

    def observe(self, frame: Frame, memory: Folded) -> None:
        distance, labels = self._distance(frame), self._labels(frame)
        known = distance.isfinite()
        sums = torch.zeros(len(self.centres), dtype=torch.float64, device=frame.device)
        total = sums.index_add(0, labels[known], distance[known].double())
        memory.add({"sum": total, "count": labels[known].bincount(minlength=len(sums)).double()})

    def gain(self, frame: Frame, memory: Folded) -> Float[Tensor, " m"]:
        """By how much the row alone would change the value."""
        seen = {name: value.to(frame.device) for name, value in memory.total().items()}
        distance, labels = self._distance(frame), self._labels(frame)
        count, total = seen["count"][labels], seen["sum"][labels]
        classes, before = (seen["count"] > 0).sum(), _mean(seen)
        first = count == 0
        added = (total + distance) / (count + 1) - torch.where(first, 0, total / count.clamp_min(1))
        after = (before * classes + added) / (classes + first)
        return (after - before).where(distance.isfinite(), 0).float()

    def choose(self, count: int, rng: torch.Generator, memory: Folded) -> dict[str, Tensor]:
        return {}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Folded) -> Float[Tensor, " m"]:
        """Away from the centre of the row's class."""
        distance = self._distance(frame)
        return distance.where(distance.isfinite(), 0)

    def tally(self, memory: Folded) -> Tally:
        seen = memory.total()
        means = (seen["sum"] / seen["count"]).tolist()
        by_class = {str(label): mean for label, mean in enumerate(means) if seen["count"][label] > 0}
        lost = int(self._lost.sum())
        return Tally(
            float(_mean(seen)), detail={"inputs": int(seen["count"].sum()), "classes": by_class, "without centre": lost}
        )

    @property
    def _lost(self) -> Bool[Tensor, " k"]:
        return self.centres.isnan().any(1)

    def _labels(self, frame: Frame) -> Int[Tensor, " m"]:
        if frame.labels is None:
            raise Problem("class dispersion needs the label of every input.", fix="labelled images")
        return frame.labels.clamp_max(len(self.centres) - 1)

    def _distance(self, frame: Frame) -> Float[Tensor, " m"]:
        step = frame.matrix(self.selection) - self.centres.to(frame.device)[self._labels(frame)]
        return step.square().sum(1).clamp_min(1e-24).sqrt()


def _mean(seen: State) -> Tensor:
    some = seen["count"] > 0
    means = torch.where(some, seen["sum"] / seen["count"].clamp_min(1), 0)
    return means.sum() / some.sum().clamp_min(1)
