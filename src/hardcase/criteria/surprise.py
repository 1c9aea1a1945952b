"""Surprise adequacy: how unlike training data an input looks to the network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from hardcase.errors import HardcaseError
from hardcase.tensors import TILE, Copies, chunks, pad_rows
from hardcase.types import Scores

# Normal shapes fitted to traces: what likelihood and Mahalanobis distance are measured in.

ENOUGH = 5
"""Training traces per unit below which a note says that a shape rests on a small sample; it changes
no value."""


@dataclass(frozen=True)
class Gaussian:
    """A normal shape: centre, whitening, logarithm of its size, and whitened traces.

    The rank of the covariance is that of the correlations in double precision: eigenvalues up to
    ``eps * units`` times the largest count as 0 (as in `numpy.linalg.matrix_rank`), which is where
    Cholesky's factor, and with it scipy's `gaussian_kde`, ceases to exist. Where it is singular the
    shape lives in the `rank` directions in which its traces vary. `half` is half the squared length
    of each trace; `across` holds the other directions, along which no trace leaves the centre by
    more than `slack`.
    """

    centre: Float[Tensor, " d"]
    whiten: Float[Tensor, "r d"]
    size: float
    traces: Float[Tensor, "n r"]
    half: Float[Tensor, " n"]
    across: Float[Tensor, "s d"]
    slack: float

    @cached_property
    def _parts(self) -> Copies:
        return Copies(self.centre, self.whiten, self.traces, self.half, self.across)

    def to(self, device: torch.device) -> Gaussian:
        """The same shape there, copied once."""
        if self.centre.device == device:
            return self
        centre, whiten, traces, half, across = self._parts.on(device)
        return Gaussian(centre, whiten, self.size, traces, half, across, self.slack)

    @property
    def rank(self) -> int:
        return len(self.whiten)

    @property
    def projected(self) -> bool:
        """Whether directions were left out."""
        return self.rank < len(self.centre)

    @staticmethod
    def of(values: Float[Tensor, "n d"], factor: float = 1.0, unbiased: bool = True) -> Gaussian:
        """The shape of these traces, its spread times `factor`."""
        exact = values.double()
        count = len(values)
        centre = exact.mean(0)
        centred = exact - centre
        covariance = centred.t() @ centred / max(1, count - unbiased)
        whiten, size, across = _whitening(covariance * factor**2)
        traces = (centred @ whiten.t()).float()
        half = traces.square().sum(1) / 2
        # What rounding of float32 traces may add to the largest departure that was seen.
        rounding = torch.finfo(torch.float32).eps * exact.shape[1] * float(exact.abs().max())
        slack = float((centred @ across.t()).norm(dim=1).max()) + rounding
        return Gaussian(centre, whiten, size, traces, half, across, slack)

    def leaves(self, values: Float[Tensor, "m d"]) -> Bool[Tensor, " m"]:
        """Which values lie off the directions in which the traces vary: their density is 0."""
        departure: Tensor = ((values.double() - self.centre) @ self.across.t()).norm(dim=1)
        return departure > self.slack

    def standard(self, values: Float[Tensor, "m d"]) -> Float[Tensor, "m r"]:
        """Values in whitened coordinates: where the spread is 1 in every direction."""
        return ((values.double() - self.centre) @ self.whiten.t()).float()


def _whitening(
    covariance: Float[Tensor, "d d"],
) -> tuple[Float[Tensor, "r d"], float, Float[Tensor, "s d"]]:
    """The whitening along directions that vary, the log of the spread, and the other directions."""
    units = len(covariance)
    # Units that are always 0 (dead ReLUs) or copies of each other make the covariance singular. A
    # pseudo-inverse would give such directions weight 0 and call a trace usual that leaves them: so
    # they are split off, and a trace that departs along them is infinitely surprising (`leaves`).
    rank = _rank(covariance)
    if rank == units:
        root = torch.linalg.cholesky(covariance)
        unit = torch.eye(units, dtype=torch.float64)
        whiten = torch.linalg.solve_triangular(root, unit, upper=False)
        return whiten, float(root.diagonal().log().sum()), covariance.new_empty(0, units)
    variance, directions = torch.linalg.eigh(covariance)
    across, along = directions.t().split([units - rank, rank])
    largest = variance[units - rank :]
    return along / largest.sqrt()[:, None], float(largest.log().sum() / 2), across


def _rank(covariance: Float[Tensor, "d d"]) -> int:
    """The rank of the correlations, so that units of other scales count alike."""
    scale = covariance.diagonal().sqrt()
    positive = scale > 0
    # Rank of the correlations, not of the covariances: a unit with small outputs is no less a
    # direction than one with large outputs.
    correlation = (covariance / scale / scale[:, None])[positive][:, positive]
    if not len(correlation):
        return 0
    values = torch.linalg.eigvalsh(correlation)
    least = torch.finfo(torch.float64).eps * len(correlation) * values[-1]
    return int((values > least).sum())


def refuse_few(model: Likelihood | Mahalanobis) -> None:
    """Refuse classes whose traces do not even outnumber the directions they span: all are alike."""
    for label, gaussian in model.gaussians.items():
        if len(gaussian.traces) <= gaussian.rank + 1 and gaussian.projected:
            raise HardcaseError(
                f"class {label} has {len(gaussian.traces)} training traces of"
                f" {len(gaussian.centre)} units; no density can be estimated from so few.",
                fix="more training images, or fewer units: most=N or another layer",
            )


def fit_notes(model: Likelihood | Mahalanobis) -> dict[str, Any]:
    """What a reader of a fitted model must know: singular classes, and how many traces it has."""
    gaussians = list(model.gaussians.values())
    fewest = min(len(gaussian.traces) for gaussian in gaussians)
    units = len(gaussians[0].centre)
    notes: dict[str, Any] = {
        "classes projected on their span": sum(density.projected for density in gaussians),
        "training traces per unit": round(fewest / units, 2),
    }
    if isinstance(model, Likelihood) and (others := len(model.of_another_rank)):
        notes["classes without value, of another rank"] = others
    if fewest < ENOUGH * units:
        notes["few training images"] = (
            f"the smallest class has {fewest} traces of {units} units; from fewer than"
            f" {ENOUGH * units} the values are rough"
        )
    return notes


# Exact nearest neighbours at the price of a matrix product.
#
# Distances by products of matrices are fast but lose digits where points are close. So the product
# only nominates a few candidates, their distances are computed from differences, and a row whose
# runner-up is within the error bound is redone.

SMALL = 512
BLOCK = 32
CANDIDATES = 4


@dataclass(frozen=True)
class ReferencePoints:
    """Points to be near to, and half their squared length from their centre, in complete blocks."""

    values: Float[Tensor, "n d"]
    centre: Float[Tensor, " d"]
    centred: Float[Tensor, "p d"]
    half: Float[Tensor, " p"]

    @staticmethod
    def of(values: Float[Tensor, "n d"]) -> ReferencePoints:
        centre = values.mean(0) if len(values) else values.new_zeros(values.shape[1])
        spare = -len(values) % BLOCK
        centred = pad(values - centre, (0, 0, 0, spare))
        half = pad((values - centre).square().sum(1) / 2, (0, spare), value=torch.inf)
        return ReferencePoints(values, centre, centred, half)

    @cached_property
    def _parts(self) -> Copies:
        return Copies(self.values, self.centre, self.centred, self.half)

    def to(self, device: torch.device) -> ReferencePoints:
        """The same points there, copied once."""
        if self.values.device == device:
            return self
        return ReferencePoints(*self._parts.on(device))

    def nearest(
        self, points: Float[Tensor, "m d"], skip: Int[Tensor, " m"] | None = None
    ) -> tuple[Float[Tensor, " m"], Int[Tensor, " m"]]:
        """Distance and place of the nearest point, ties to the first; `skip` names a point to
        omit."""
        if not len(self.values):
            raise HardcaseError("there is nothing to be near to: the corpus is empty.")
        if len(self.values) <= SMALL or not len(points):
            return self._brute(points, skip)
        # One matrix product ranks all points by half a squared distance less a constant of the row.
        # It is fast and cancels digits, so it only nominates; distances are computed again from
        # differences.
        approximate = torch.addmm(self.half, points - self.centre, self.centred.t(), alpha=-1)
        if skip is not None:
            approximate.scatter_(1, skip[:, None], torch.inf)
        places, doubtful = self._nominate(points, approximate)
        distance = (points[:, None] - self.values[places]).norm(dim=2)
        best, winner = distance.min(1)
        index = places.gather(1, winner[:, None]).squeeze(1)
        # Where rounding could have hidden the nearest point the row is computed by brute force:
        # results are those of exact distances, ties to the first, on every device.
        again = doubtful.nonzero().squeeze(1)
        if len(again):
            if skip is not None:
                skip = skip[again]
            best[again], index[again] = self._brute(points[again], skip)
        return best, index

    def _nominate(
        self, points: Tensor, approximate: Float[Tensor, "m n"]
    ) -> tuple[Int[Tensor, "m c"], Tensor]:
        """The places of the best candidates, and the rows where another might be better."""
        # Two stages, since topk over 60,000 points is slow: the best blocks by their minimum, then
        # the best points inside these. The first block left out bounds everything in the others.
        least = torch.unflatten(approximate, 1, (-1, BLOCK)).amin(2)
        blocks = least.topk(CANDIDATES + 1, dim=1, largest=False, sorted=True)
        number = torch.arange(BLOCK, device=points.device)
        inside = (blocks.indices[:, :-1, None] * BLOCK + number).flatten(1)
        best = approximate.gather(1, inside).topk(CANDIDATES + 1, dim=1, largest=False, sorted=True)
        places = inside.gather(1, best.indices[:, :-1])
        places = places.clamp_max(len(self.values) - 1).sort(1).values
        rival = torch.minimum(blocks.values[:, -1], best.values[:, -1])
        # Rounding of a product of d terms, with some to spare, times the largest value it can have:
        # two candidates nearer than twice that may stand in the wrong order.
        reach = self.half[: len(self.values)].amax()
        size = (points - self.centre).norm(dim=1) * (2 * reach).sqrt() + reach
        error = (points.shape[1] + 4) * torch.finfo(points.dtype).eps * size
        return places, ~(rival - best.values[:, 0] > 2 * error)

    def _brute(self, points: Tensor, skip: Int[Tensor, " m"] | None) -> tuple[Tensor, Tensor]:
        distance = torch.cdist(points, self.values, compute_mode="donot_use_mm_for_euclid_dist")
        if skip is not None:
            distance.scatter_(1, skip[:, None], torch.inf)
        return distance.min(1)


# Activation traces of training data: what surprise and class dispersion compare with.


@dataclass(frozen=True, slots=True)
class Traces:
    """Training traces, their predicted classes and labels; `own` and `other` as by `measured`."""

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

    def measured(
        self,
        *,
        batch: int = 512,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - a value, never changed
    ) -> Traces:
        """Return these traces with the distance of each to the nearest other trace of its predicted
        class (`own`, infinite where it is alone) and of any other class (`other`).
        """
        if self.own is not None and self.other is not None:
            return self
        clean = self.numbers()
        if len(torch.unique(clean.predicted)) < 2:
            raise HardcaseError(
                "distance-based surprise compares two classes, but the model predicts one class for"
                " all training images.",
                fix="training data of all classes, or a trained model",
            )
        values = clean.values.to(device)
        own, other = torch.full((2, len(values)), torch.inf, device=device).unbind()
        for label, rows in clean.by_class():
            rest = ReferencePoints.of(values[(clean.predicted != label).to(device)])
            rows = rows.to(device)
            same = ReferencePoints.of(values[rows])
            for part in chunks(len(rows), batch):
                points = values[rows[part]]
                places = torch.arange(part.start, part.stop, device=device)
                other[rows[part]] = rest.nearest(points)[0]
                if len(rows) > 1:
                    own[rows[part]] = same.nearest(points, skip=places)[0]
        return replace(clean, own=own.cpu(), other=other.cpu())


# LSA and DSA: J. Kim, R. Feldt, S. Yoo, "Guiding deep learning system testing using surprise
# adequacy", ICSE 2019. MDSA: J. Kim, J. Ju, R. Feldt, S. Yoo, "Reducing DNN labelling cost using
# surprise adequacy", ESEC/FSE 2020.
#
# Traces are grouped by predicted class, as in the authors' code. An input whose predicted class has
# too few traces to compare with is infinitely surprising, one with not-a-number in its trace has no
# surprise at all (NaN). Products run on whole tiles of rows, so that a row's surprise does not
# depend on the rows beside it. Differences: LSA sums kernels in float32 over traces that were
# whitened class by class in double precision; where a covariance is singular, density and distance
# are measured within the directions that the class's traces span (the authors drop further columns
# by hand), and `fit_notes` says for how many classes. A trace off that span has density 0, so its
# LSA is infinite; MDSA ignores what lies across, as a pseudo-inverse does.


@runtime_checkable
class SurpriseModel(Protocol):
    """Maps traces to surprise, differentiably; `training` is that of the training traces."""

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Scores: ...

    def training(self) -> Float[Tensor, " n"]: ...


ROOM = 2**27
"""Distances that are held at a time."""


def _per_class(
    models: Mapping[int, Gaussian] | Mapping[int, ReferencePoints], predicted: Int[Tensor, " m"]
) -> Iterator[tuple[int, Int[Tensor, " r"]]]:
    """The rows of each predicted class that has a model, as many at a time as there is room for."""
    order = predicted.argsort(stable=True)
    counts = predicted.bincount().tolist()
    for label, rows in enumerate(torch.split(order, counts)):
        if len(rows) and label in models:
            model = models[label]
            values = model.traces if isinstance(model, Gaussian) else model.values
            for part in chunks(len(rows), max(TILE, ROOM // len(values))):
                yield label, rows[part]


@dataclass(frozen=True)
class Likelihood:
    """LSA: minus the log of a kernel density over the predicted class's traces (Scott).

    Columns whose variance is below `floor` in any class are left out everywhere. ``per="all"`` uses
    a single estimate for all. Densities in spaces of different dimension cannot be compared: where
    the ranks of classes differ, those of another `rank` than most traces have get no value (NaN).

    Args:
        gaussians: The density of each class.
        columns: Columns with enough variance.
        per_class: A density per class, or a single density.
    """

    gaussians: Mapping[int, Gaussian]
    columns: Int[Tensor, " k"]
    per_class: bool = True

    @staticmethod
    def fit(
        traces: Traces, *, floor: float = 1e-5, per_class: bool = True, most: int = 0
    ) -> Likelihood:
        """`most` keeps that many columns of highest variance instead of those above `floor`."""
        groups = _classes(traces, per_class, "likelihood-based")
        groups = {label: values.double() for label, values in groups.items()}
        variance = torch.stack([values.var(0, unbiased=False) for values in groups.values()])
        keep = (variance >= floor).all(0)
        if most:
            largest = variance.mean(0).argsort(descending=True, stable=True)[:most]
            keep = torch.zeros_like(keep).index_fill(0, largest, True)
        columns = keep.nonzero().squeeze(1)
        if not len(columns):
            raise HardcaseError(
                f"no unit varies by {floor:g} or more in every predicted class, so no density can"
                " be estimated.",
                fix="another layer, or floor=0",
            )
        scott = -1 / (len(columns) + 4)
        gaussians = {c: Gaussian.of(v[:, columns], len(v) ** scott) for c, v in groups.items()}
        return Likelihood(gaussians, columns, per_class)

    @cached_property
    def _columns(self) -> Copies:
        return Copies(self.columns)

    @cached_property
    def rank(self) -> int:
        """The dimension in which most training traces have their density."""
        count: Counter[int] = Counter()
        for gaussian in self.gaussians.values():
            count[gaussian.rank] += len(gaussian.traces)
        return max(count, key=lambda rank: (count[rank], rank))

    @cached_property
    def of_another_rank(self) -> frozenset[int]:
        """Classes that have no value, because their density has another dimension."""
        return frozenset(
            label for label, gaussian in self.gaussians.items() if gaussian.rank != self.rank
        )

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Scores:
        (columns,) = self._columns.on(values.device)
        values = values[:, columns]
        surprise = values.new_full((len(values),), torch.inf)
        for label, rows in _per_class(self.gaussians, predicted * self.per_class):
            gaussian = self.gaussians[label].to(values.device)
            density = _log_kernels(gaussian.standard(pad_rows(values[rows])), gaussian)[: len(rows)]
            value = self._size(gaussian, len(gaussian.traces)) - density
            if gaussian.projected:
                value = value.where(~gaussian.leaves(values[rows]), torch.inf)
            if label in self.of_another_rank:
                value = torch.full_like(value, torch.nan)
            surprise = surprise.index_put((rows,), value)
        return surprise.where(values.isfinite().all(1), torch.nan)

    def training(self) -> Float[Tensor, " n"]:
        """Each training trace against the others of its class."""
        parts = []
        for label, gaussian in self.gaussians.items():
            if label in self.of_another_rank:
                continue
            for rows in torch.split(torch.arange(len(gaussian.traces)), 1024):
                density = _log_kernels(gaussian.traces[rows], gaussian, skip=rows)
                parts.append(self._size(gaussian, len(gaussian.traces) - 1) - density)
        return torch.cat(parts)

    def _size(self, gaussian: Gaussian, count: int) -> float:
        return math.log(count) + gaussian.size + gaussian.rank * math.log(2 * math.pi) / 2


def _log_kernels(
    points: Float[Tensor, "m d"], gaussian: Gaussian, skip: Int[Tensor, " m"] | None = None
) -> Scores:
    """The log of the sum of unit normal kernels at a class's whitened traces, up to their size."""
    lengths = points.square().sum(1, keepdim=True) / 2
    # minus half a squared distance, up to `lengths`
    exponent = torch.addmm(-gaussian.half, points, gaussian.traces.t())
    if skip is not None:
        exponent = exponent.scatter(1, skip[:, None], -torch.inf)
    if exponent.requires_grad:
        return exponent.logsumexp(1) - lengths.squeeze(1)
    # In place and by hand: logsumexp would copy the largest table of this measurement.
    most = exponent.amax(1, keepdim=True)
    # terms too small to count are kept out of the slow denormal range
    summed = exponent.sub_(most).clamp_min_(-80).exp_().sum(1).log()
    return (summed + (most - lengths).squeeze(1)).clone()


def _classes(traces: Traces, per_class: bool, kind: str) -> dict[int, Float[Tensor, "r d"]]:
    """The traces of each predicted class with two or more, or all as a single class."""
    if not per_class:
        traces = Traces(traces.values, torch.zeros_like(traces.predicted), traces.label)
    traces = traces.numbers()
    groups = {label: traces.values[rows] for label, rows in traces.by_class() if len(rows) > 1}
    if not groups:
        raise HardcaseError(
            f"{kind} surprise needs two or more training traces of a predicted class; there are"
            " none."
        )
    return groups


@dataclass(frozen=True)
class Distance:
    """DSA: distance to the predicted class's nearest trace over its distance to other classes.

    Args:
        corpora: Traces of each class.
        others: Distance of each trace to the nearest of another class, by class.
        own: Distance of each training trace to its class.
        other: Distance of each training trace to other classes.
    """

    corpora: Mapping[int, ReferencePoints]
    others: Mapping[int, Float[Tensor, " n"]]
    own: Float[Tensor, " t"]
    other: Float[Tensor, " t"]

    @staticmethod
    def fit(traces: Traces) -> Distance:
        traces = traces.measured()
        assert traces.own is not None
        assert traces.other is not None
        corpora = {
            label: ReferencePoints.of(traces.values[rows]) for label, rows in traces.by_class()
        }
        others = {label: traces.other[rows] for label, rows in traces.by_class()}
        return Distance(corpora, others, traces.own, traces.other)

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Scores:
        surprise = values.new_full((len(values),), torch.inf)
        for label, rows in _per_class(self.corpora, predicted):
            corpus = self.corpora[label].to(values.device)
            distance, place = corpus.nearest(values[rows].detach())
            if values.requires_grad:
                distance = (values[rows] - corpus.values.to(values.device)[place]).norm(dim=1)
            (others,) = self._others[label].on(values.device)
            surprise = surprise.index_put((rows,), distance / others[place])
        return surprise.where(_numbers(values), torch.nan)

    @cached_property
    def _others(self) -> dict[int, Copies]:
        return {label: Copies(values) for label, values in self.others.items()}

    def training(self) -> Float[Tensor, " n"]:
        """Distance of each training trace to its class over that to other classes."""
        finite = self.own.isfinite()
        return self.own[finite] / self.other[finite]


@dataclass(frozen=True)
class Mahalanobis:
    """MDSA: the distance to the mean of the predicted class, measured in the spread of that class.

    Args:
        gaussians: Mean and spread of each class.
        per_class: A shape per class, or a single shape.
        squared: The square of the distance, as in part of the literature.
    """

    gaussians: Mapping[int, Gaussian]
    per_class: bool = True
    squared: bool = False

    @staticmethod
    def fit(traces: Traces, *, per_class: bool = True, squared: bool = False) -> Mahalanobis:
        groups = _classes(traces, per_class, "Mahalanobis")
        gaussians = {c: Gaussian.of(v, unbiased=False) for c, v in groups.items()}
        return Mahalanobis(gaussians, per_class, squared)

    def __call__(self, values: Float[Tensor, "m d"], predicted: Int[Tensor, " m"]) -> Scores:
        surprise = values.new_full((len(values),), torch.inf)
        for label, rows in _per_class(self.gaussians, predicted * self.per_class):
            gaussian = self.gaussians[label].to(values.device)
            value = gaussian.standard(pad_rows(values[rows])).square().sum(1)[: len(rows)]
            if not self.squared:
                value = value.clamp_min(1e-12).sqrt()
            surprise = surprise.index_put((rows,), value)
        return surprise.where(_numbers(values), torch.nan)

    def training(self) -> Float[Tensor, " n"]:
        squared = torch.cat(
            [gaussian.traces.square().sum(1) for gaussian in self.gaussians.values()]
        )
        if self.squared:
            return squared
        return squared.sqrt()


def _numbers(values: Float[Tensor, "m d"]) -> Bool[Tensor, " m"]:
    return values.isfinite().all(1)
