"""Criteria over complete traces: class dispersion, nearest-neighbour novelty, NLC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.criterion import SUM, CoverageResult, CriterionPlan, criterion
from hardcase.criteria.memory import Accumulated, summed
from hardcase.criteria.network import Selection
from hardcase.criteria.profile import ActivationBatch, Profile
from hardcase.criteria.surprise import ReferencePoints, Traces
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng
from hardcase.tensors import chunks
from hardcase.types import Scores, State, Targets

# V. Vekariya, M. Golagha, A. Stocco, A. Pretschner, "Latent space class dispersion: effective test
# data quality assessment for DNNs", 2025 (arXiv 2503.18799). For each class the mean Euclidean
# distance between the traces of inputs of that label and the centroid of the training traces of
# that label which the model got right; then the mean over the classes seen.
#
# The definition follows the abstract and the published tool's final form; an earlier form there
# (the share of inputs beyond a radius) is not offered. Not a ratio, not monotone. Classes without a
# correctly classified training image are left out and counted (the tool: centroid at zero).


@dataclass(frozen=True)
class Dispersion:
    """Distances to class centres, summed by class; a class without centre has not-a-number."""

    selection: Selection
    centres: Float[Tensor, "k d"]

    @staticmethod
    def fit(selection: Selection, traces: Traces) -> Dispersion:
        traces = traces.numbers()
        classes = int(torch.stack([traces.label.amax(), traces.predicted.amax()]).amax()) + 1
        right = traces.predicted == traces.label
        sums = torch.zeros(classes, traces.values.shape[1], dtype=torch.float64)
        sums.index_add_(0, traces.label[right], traces.values[right].double())
        counts = traces.label[right].bincount(minlength=classes)
        return Dispersion(selection, (sums / counts[:, None]).float())

    def memory(self) -> Accumulated:
        zeros = torch.zeros(len(self.centres), dtype=torch.float64)
        return Accumulated({"sum": zeros, "count": zeros}, summed)

    def observe(self, batch: ActivationBatch, memory: Accumulated) -> None:
        distance = self._distance(batch)
        labels = self._labels(batch)
        finite = distance.isfinite()
        sums = torch.zeros(len(self.centres), dtype=torch.float64, device=batch.device)
        total = sums.index_add(0, labels[finite], distance[finite].double())
        memory.add({"sum": total, "count": labels[finite].bincount(minlength=len(sums)).double()})

    def gain(self, batch: ActivationBatch, memory: Accumulated) -> Scores:
        """By how much the row alone would change the value."""
        seen = {name: value.to(batch.device) for name, value in memory.total().items()}
        distance = self._distance(batch)
        labels = self._labels(batch)
        count = seen["count"][labels]
        total = seen["sum"][labels]
        classes = (seen["count"] > 0).sum()
        before = _mean(seen)
        first = count == 0
        added = (total + distance) / (count + 1) - torch.where(first, 0, total / count.clamp_min(1))
        after = (before * classes + added) / (classes + first)
        return (after - before).where(distance.isfinite(), 0).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Accumulated) -> dict[str, Tensor]:
        return {}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Accumulated) -> Scores:
        """Away from the centre of the row's class."""
        distance = self._distance(batch)
        return distance.where(distance.isfinite(), 0)

    def result(self, memory: Accumulated) -> CoverageResult:
        total = memory.total()
        means = (total["sum"] / total["count"]).tolist()
        by_class = {
            str(label): mean for label, mean in enumerate(means) if total["count"][label] > 0
        }
        lost = int(self.centres.isnan().any(1).sum())
        inputs = int(total["count"].sum())
        detail = {"inputs": inputs, "classes": by_class, "without centre": lost}
        return CoverageResult(float(_mean(total)), detail=detail)

    def _labels(self, batch: ActivationBatch) -> Int[Tensor, " m"]:
        if batch.labels is None:
            raise HardcaseError(
                "class dispersion needs the label of every input.", fix="labelled images"
            )
        return batch.labels.clamp_max(len(self.centres) - 1)

    def _distance(self, batch: ActivationBatch) -> Scores:
        step = batch.matrix(self.selection) - self.centres.to(batch.device)[self._labels(batch)]
        return step.square().sum(1).clamp_min(1e-24).sqrt()


def _mean(total: State) -> Tensor:
    nonempty = total["count"] > 0
    means = torch.where(nonempty, total["sum"] / total["count"].clamp_min(1), 0)
    return means.sum() / nonempty.sum().clamp_min(1)


# A. Odena, C. Olsson, D. Andersen, I. Goodfellow, "TensorFuzz: debugging neural networks with
# coverage-guided fuzzing", ICML 2019. The paper speaks of Euclidean distance, the code compares
# squared distances with the threshold; so does this. The count of kept vectors grows with every new
# input and depends on their order: the first of two near ones is kept.


class NovelVectors:
    """Vectors no two of which are near, in the order in which they came.

    A fork also remembers every vector that was far from the base, in the set or not: only with
    these can the merge of shards keep the same vectors as a single pass over all of them.
    """

    def __init__(
        self, width: int, threshold: float, base: Float[Tensor, "n d"] | None = None
    ) -> None:
        self.threshold = threshold
        self.base = torch.empty(0, width) if base is None else base
        self.own = torch.empty(0, width)
        self.far = torch.empty(0, width)

    def add(self, vectors: Float[Tensor, "m d"]) -> None:
        """Keep, in order, those that are far from all earlier kept vectors."""
        vectors = vectors[vectors.isfinite().all(1)]
        vectors = vectors[_squared(vectors, self.base) > self.threshold]
        self.far = torch.cat([self.far, vectors])
        self.own = self._grown(self.own, vectors)

    def distance(self, vectors: Float[Tensor, "m d"]) -> Scores:
        """Squared distance to the nearest kept vector; infinite if there is none."""
        return torch.minimum(_squared(vectors, self.base), _squared(vectors, self.own))

    def all(self) -> Float[Tensor, "n d"]:
        return torch.cat([self.base, self.own])

    def fork(self) -> NovelVectors:
        return NovelVectors(self.base.shape[1], self.threshold, self.all())

    def delta(self) -> State:
        return {"far": self.far.clone()}

    def merge(self, deltas: Sequence[State]) -> None:
        self.base = self.all()
        for delta in deltas:
            self.base = self._grown(self.base, delta["far"])
        self.own, self.far = (torch.empty(0, self.base.shape[1]) for _ in range(2))

    def _grown(
        self, kept: Float[Tensor, "n d"], vectors: Float[Tensor, "m d"]
    ) -> Float[Tensor, "k d"]:
        """What is kept once `vectors` have come one by one to those in `kept`."""
        for part in chunks(len(vectors), 1024):
            candidates = vectors[part]
            candidates = candidates[_squared(candidates, kept) > self.threshold]
            gap = torch.cdist(candidates, candidates, compute_mode="donot_use_mm_for_euclid_dist")
            kept = torch.cat([kept, candidates[_first_come(gap.square() <= self.threshold)]])
        return kept


def _squared(points: Float[Tensor, "m d"], corpus: Float[Tensor, "n d"]) -> Scores:
    if not len(corpus):
        return points.new_full((len(points),), torch.inf)
    return ReferencePoints.of(corpus).nearest(points)[0].square()


def _first_come(near: Bool[Tensor, "m m"]) -> Bool[Tensor, " m"]:
    """Which rows a pass from first to last accepts that refuses neighbours of accepted ones."""
    before = near.tril(-1)
    accepted = torch.zeros(len(near), dtype=torch.bool, device=near.device)
    open_ = ~accepted
    while bool(open_.any()):
        accepted |= open_ & ~(before & open_).any(1)
        open_ = open_ & ~accepted & ~(near & accepted).any(1)
    return accepted


@dataclass(frozen=True)
class Novelty:
    """How many inputs were new: the number of vectors kept."""

    selection: Selection
    threshold: float = 1.0

    def memory(self) -> NovelVectors:
        return NovelVectors(self.selection.units, self.threshold)

    def vectors(self, batch: ActivationBatch) -> Float[Tensor, "m d"]:
        """What inputs are compared by."""
        return batch.matrix(self.selection)

    def observe(self, batch: ActivationBatch, memory: NovelVectors) -> None:
        memory.add(self.vectors(batch).cpu())

    def gain(self, batch: ActivationBatch, memory: NovelVectors) -> Scores:
        values = self.vectors(batch).cpu()
        new = (memory.distance(values) > self.threshold) & values.isfinite().all(1)
        return new.to(batch.device).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: NovelVectors) -> dict[str, Tensor]:
        return {}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: NovelVectors) -> Scores:
        """Away from the nearest kept vector."""
        values = self.vectors(batch)
        kept = memory.all().to(batch.device)
        if not len(kept):
            return values.sum(1) * 0
        _, place = ReferencePoints.of(kept).nearest(values.detach())
        return (values - kept[place]).square().sum(1)

    def result(self, memory: NovelVectors) -> CoverageResult:
        count = len(memory.base) + len(memory.own)
        return CoverageResult(float(count), count)


# Y. Yuan, Q. Pang, S. Wang, "Revisiting neuron coverage for DNN testing: a layer-wise and
# distribution-aware criterion", ICSE 2023. The sum over layers of the mean size of the entries of
# the covariance matrix.
#
# What it is: not a ratio, not monotone (an ordinary input can lower it), and in the authors' code
# order dependent, since an input is only let in if it raises the value. Differences: here every
# input counts, so the order matters to rounding only; and samples are counted once, where the
# authors' code counts them once a layer.


@dataclass(frozen=True)
class TraceVariance:
    """The covariance of each layer's units over all inputs with finite values."""

    selection: Selection

    def memory(self) -> Accumulated:
        state = dict[str, Tensor]()
        for i, width in enumerate(self.selection.widths):
            shapes = {"count": (1,), "mean": (width,), "spread": (width, width)}
            state |= {f"{name}{i}": torch.zeros(shape).double() for name, shape in shapes.items()}
        return Accumulated(state, self._join)

    def observe(self, batch: ActivationBatch, memory: Accumulated) -> None:
        state = dict[str, Tensor]()
        for i, values in enumerate(batch.layers(self.selection)):
            finite = values[values.isfinite().all(1)].double()
            mean = finite.mean(0) if len(finite) else finite.new_zeros(values.shape[1])
            state |= {f"count{i}": torch.tensor([len(finite)]).double(), f"mean{i}": mean}
            state[f"spread{i}"] = (finite - mean).t() @ (finite - mean)
        memory.add(state)

    def gain(self, batch: ActivationBatch, memory: Accumulated) -> Scores:
        """By how much the row alone would change the value."""
        total = memory.total()
        gain = torch.zeros(len(batch), dtype=torch.float64, device=batch.device)
        for i, values in enumerate(batch.layers(self.selection)):
            count, mean, spread = (
                total[f"{name}{i}"].to(batch.device) for name in ("count", "mean", "spread")
            )
            step = values.double() - mean
            now = (spread / count.clamp_min(1)).abs().mean()
            parts = [
                _size_with(spread, count, step[p])
                for p in chunks(len(step), max(1, 2**22 // spread.numel()))
            ]
            gain += (torch.cat(parts) - now).where(values.isfinite().all(1), 0)
        return gain.float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Accumulated) -> dict[str, Tensor]:
        return {}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Accumulated) -> Scores:
        """To first order what a row adds: its products of deviations, signed by covariance."""
        total = memory.total()
        score = torch.zeros(len(batch), device=batch.device)
        for i, values in enumerate(batch.layers(self.selection)):
            mean, spread = (total[f"{name}{i}"].to(batch.device) for name in ("mean", "spread"))
            diagonal = torch.eye(len(spread), device=batch.device)
            signs = (spread.sign() + (spread == 0) * diagonal).float()
            step = values - mean.float()
            score = score + ((step @ signs) * step).sum(1) / values.shape[1] ** 2
        return score.where(score.isfinite(), 0)

    def result(self, memory: Accumulated) -> CoverageResult:
        total = memory.total()
        sizes = [
            (total[f"spread{i}"] / total[f"count{i}"].clamp_min(1)).abs().mean().item()
            for i in range(len(self.selection.widths))
        ]
        layers = dict(zip(self.selection.names, sizes, strict=True))
        return CoverageResult(sum(sizes), detail={"layers": layers})

    def _join(self, a: State, b: State) -> State:
        """Moments of two sets of rows as those of their union (Chan, Golub, LeVeque, 1979)."""
        joined = dict[str, Tensor]()
        for i in range(len(self.selection.widths)):
            shift = b[f"mean{i}"] - a[f"mean{i}"]
            total = a[f"count{i}"] + b[f"count{i}"]
            share = b[f"count{i}"] / total.clamp_min(1)
            joined |= {f"count{i}": total, f"mean{i}": a[f"mean{i}"] + shift * share}
            between = torch.outer(shift, shift) * a[f"count{i}"] * share
            joined[f"spread{i}"] = a[f"spread{i}"] + b[f"spread{i}"] + between
        return joined


def _size_with(
    spread: Float[Tensor, "u u"], count: Float[Tensor, " 1"], step: Float[Tensor, "m u"]
) -> Scores:
    """The mean size of the covariances once a row, `step` from the mean, has joined."""
    raised = spread + step[:, :, None] * step[:, None, :] * (count / (count + 1))
    return raised.abs().mean((1, 2)) / (count + 1)


# Factories of the criteria that compare whole traces: decorators are rows, signatures options.


@criterion(
    "neighbour",
    layers="last",
    paper="Odena, Olsson, Andersen, Goodfellow: TensorFuzz, ICML 2019",
    cite="odena2019tensorfuzz",
    laws=("monotone", "idempotent", "mergeable"),
)
def neighbour(selection: Selection, *, threshold: float = 1.0) -> CriterionPlan:
    """Nearest-neighbour novelty: inputs far from all earlier novel inputs.

    Number of inputs whose squared distance to every earlier novel input exceeds the threshold
    (order matters).

    Args:
        threshold: Squared distance beyond which an input is new.
    """
    return CriterionPlan(selection, lambda _: Novelty(selection, threshold))


@criterion(
    "nlc",
    paper="Yuan, Pang, Wang: Revisiting neuron coverage for DNN testing, ICSE 2023",
    cite="yuan2023nlc",
    laws=SUM,
)
def nlc(selection: Selection) -> CriterionPlan:
    """Neural coverage: how widely the units of each layer vary together.

    Sum over layers of the mean size of the covariances between units (not a ratio, not
    monotone).
    """
    return CriterionPlan(selection, lambda _: TraceVariance(selection))


@criterion(
    "lscd",
    layers="last-hidden",
    needs="activations, labels, profile with traces",
    paper=(
        "Vekariya, Golagha, Stocco, Pretschner: Latent space class dispersion, arXiv 2503.18799, "
        "2025"
    ),
    cite="vekariya2025lscd",
    laws=SUM,
)
def lscd(selection: Selection) -> CriterionPlan:
    """Latent space class dispersion: how far inputs lie from the centre of their class.

    Mean over classes of the mean distance between inputs of a label and the centroid of its
    correctly classified training traces.
    """
    return CriterionPlan(
        selection, lambda p: Dispersion.fit(selection, _traces(p, selection)), traces=(selection,)
    )


def _traces(profile: Profile | None, selection: Selection) -> Traces:
    assert profile is not None
    return profile.trace(selection)
