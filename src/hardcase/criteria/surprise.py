"""Surprise adequacy: how unlike training data an input looks to the network.

LSA and DSA: J. Kim, R. Feldt, S. Yoo, "Guiding deep learning system testing using surprise adequacy", ICSE 2019.
MDSA: J. Kim, J. Ju, R. Feldt, S. Yoo, "Reducing DNN labelling cost using surprise adequacy", ESEC/FSE 2020.

Traces are grouped by predicted class, as in the authors' code. An input whose predicted class has too few traces to
compare with is infinitely surprising, one with not-a-number in its trace has no surprise at all (NaN). Products run on
whole tiles of rows, so that a row's surprise does not depend on the rows beside it.
Differences: LSA runs in float32 on traces whitened class by class; a covariance that is singular in that precision gets a
small ridge (the authors drop further columns by hand), and `ridged` says for how many classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.bells import Bell
from hardcase.criteria.nearest import Searchable, searchable
from hardcase.criteria.traces import Traces
from hardcase.errors import Problem
from hardcase.tensors import pad_rows


@runtime_checkable
class SurpriseModel(Protocol):
    """Says how surprising traces are, differentiably; `training` is the surprise of the training traces themselves."""

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Float[Tensor, " m"]: ...

    def training(self) -> Float[Tensor, " n"]: ...


def _per_class(models: Mapping[int, object], predicted: Int[Tensor, " m"]) -> list[tuple[int, Int[Tensor, " r"]]]:
    present = [label for label in torch.unique(predicted).tolist() if label in models]
    return [(label, (predicted == label).nonzero().squeeze(1)) for label in present]


@dataclass(frozen=True)
class Likelihood:
    """LSA: minus the logarithm of a kernel density estimate over the traces of the predicted class (Scott's bandwidth).

    Columns whose variance is below `floor` in any class are left out everywhere. ``per="all"`` uses one estimate for all.
    """

    bells: Mapping[int, Bell]
    columns: Int[Tensor, " k"]
    per_class: bool = True

    @staticmethod
    def fit(traces: Traces, *, floor: float = 1e-5, per_class: bool = True, most: int = 0) -> Likelihood:
        """`most` keeps that many columns of highest variance instead of those above `floor`."""
        traces = traces if per_class else _one_class(traces)
        groups = {label: traces.values[rows].double() for label, rows in traces.numbers().by_class() if len(rows) > 1}
        if not groups:
            raise Problem(
                "likelihood-based surprise needs two or more training traces of a predicted class; there are none."
            )
        variance = torch.stack([values.var(0, unbiased=False) for values in groups.values()])
        keep = (variance >= floor).all(0)
        if most:
            keep = torch.zeros_like(keep).index_fill(
                0, variance.mean(0).argsort(descending=True, stable=True)[:most], True
            )
        columns = keep.nonzero().squeeze(1)
        if not len(columns):
            raise Problem(
                f"no unit varies by {floor:g} or more in every predicted class, so no density can be estimated.",
                fix="another layer, or floor=0",
            )
        scott = -1 / (len(columns) + 4)
        return Likelihood({c: Bell.of(v[:, columns], len(v) ** scott) for c, v in groups.items()}, columns, per_class)

    @property
    def ridged(self) -> int:
        return sum(bell.ridged for bell in self.bells.values())

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        values = values[:, self.columns.to(values.device)]
        surprise = values.new_full((len(values),), torch.inf)
        for label, rows in _per_class(self.bells, predicted if self.per_class else torch.zeros_like(predicted)):
            bell = self.bells[label]
            density = _log_kernels(bell.standard(pad_rows(values[rows])), bell)[: len(rows)]
            surprise = surprise.index_put((rows,), self._size(bell, len(bell.traces)) - density)
        return surprise.where(values.isfinite().all(1), torch.nan)

    def training(self) -> Float[Tensor, " n"]:
        """Each training trace against the others of its class."""
        parts = []
        for bell in self.bells.values():
            for rows in torch.split(torch.arange(len(bell.traces)), 1024):
                density = _log_kernels(bell.traces[rows], bell, skip=rows)
                parts.append(self._size(bell, len(bell.traces) - 1) - density)
        return torch.cat(parts)

    def _size(self, bell: Bell, count: int) -> float:
        return math.log(count) + bell.size + len(self.columns) * math.log(2 * math.pi) / 2


def _log_kernels(
    points: Float[Tensor, "m d"], bell: Bell, skip: Int[Tensor, " m"] | None = None
) -> Float[Tensor, " m"]:
    """The logarithm of the sum of unit normal kernels at a bell's traces, all in whitened coordinates and up to their size."""
    lengths = points.square().sum(1, keepdim=True) / 2
    traces, half = bell.traces.to(points.device), bell.half.to(points.device)
    exponent = torch.addmm(-half, points, traces.t())  # minus half a squared distance, up to `lengths`
    if skip is not None:
        exponent = exponent.scatter(1, skip[:, None], -torch.inf)
    if exponent.requires_grad:
        return exponent.logsumexp(1) - lengths.squeeze(1)
    most = exponent.amax(1, keepdim=True)  # below, terms too small to count are kept out of the slow denormal range
    return (exponent.sub_(most).clamp_min_(-80).exp_().sum(1).log() + (most - lengths).squeeze(1)).clone()


def _one_class(traces: Traces) -> Traces:
    return Traces(traces.values, torch.zeros_like(traces.predicted), traces.label)


@dataclass(frozen=True)
class Distance:
    """DSA: the distance to the nearest training trace of the predicted class, over that trace's distance to other classes."""

    corpora: Mapping[int, Searchable]
    others: Mapping[int, Float[Tensor, " n"]]
    own: Float[Tensor, " t"]
    other: Float[Tensor, " t"]

    @staticmethod
    def fit(traces: Traces, *, search: str = "exact") -> Distance:
        traces = traces.measured(search)
        assert traces.own is not None
        assert traces.other is not None
        corpora = {label: searchable(traces.values[rows], search) for label, rows in traces.by_class()}
        others = {label: traces.other[rows] for label, rows in traces.by_class()}
        return Distance(corpora, others, traces.own, traces.other)

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        surprise = values.new_full((len(values),), torch.inf)
        for label, rows in _per_class(self.corpora, predicted):
            corpus = self.corpora[label].to(values.device)
            distance, place = corpus.nearest(values[rows].detach())
            if values.requires_grad:
                distance = (values[rows] - corpus.values.to(values.device)[place]).norm(dim=1)
            surprise = surprise.index_put((rows,), distance / self.others[label].to(values.device)[place])
        return surprise.where(_numbers(values), torch.nan)

    def training(self) -> Float[Tensor, " n"]:
        """The distance of each training trace to another of its class, over its own distance to other classes."""
        known = self.own.isfinite()
        return self.own[known] / self.other[known]


@dataclass(frozen=True)
class Mahalanobis:
    """MDSA: the distance to the mean of the predicted class, measured in its own spread."""

    bells: Mapping[int, Bell]
    per_class: bool = True
    squared: bool = False

    @staticmethod
    def fit(traces: Traces, *, per_class: bool = True, squared: bool = False) -> Mahalanobis:
        traces = (traces if per_class else _one_class(traces)).numbers()
        groups = {label: traces.values[rows] for label, rows in traces.by_class() if len(rows) > 1}
        if not groups:
            raise Problem(
                "Mahalanobis surprise needs two or more training traces of a predicted class; there are none."
            )
        return Mahalanobis({c: Bell.of(v, unbiased=False) for c, v in groups.items()}, per_class, squared)

    @property
    def ridged(self) -> int:
        return sum(bell.ridged for bell in self.bells.values())

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Float[Tensor, " m"]:
        surprise = values.new_full((len(values),), torch.inf)
        for label, rows in _per_class(self.bells, predicted if self.per_class else torch.zeros_like(predicted)):
            squared = self.bells[label].standard(pad_rows(values[rows])).square().sum(1)[: len(rows)]
            surprise = surprise.index_put((rows,), squared if self.squared else squared.clamp_min(1e-12).sqrt())
        return surprise.where(_numbers(values), torch.nan)

    def training(self) -> Float[Tensor, " n"]:
        squared = torch.cat([bell.traces.square().sum(1) for bell in self.bells.values()])
        return squared if self.squared else squared.sqrt()


def _numbers(values: Float[Tensor, "m d"]) -> Bool[Tensor, " m"]:
    return values.isfinite().all(1)
