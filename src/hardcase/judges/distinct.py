"""Confirmed findings gathered into likely faults, and the silent ones among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.statistics import Rate

# Confirmed tests gathered into likely faults: the same two classes, alike in the features of an
# independent network.
#
# HDBSCAN: R. Campello, D. Moulavi, J. Sander, "Density-based clustering based on hierarchical
# density estimates", PAKDD 2013. Stability: C. Hennig, "Cluster-wise assessment of cluster
# stability", Computational Statistics & Data Analysis, 2007 (here on samples of four fifths drawn
# without replacement). A cautious count: tests that belong to no cluster join the nearest one, and
# a pair of classes in which no cluster is found is one group.

SMALLEST = 5
REPEATS = 20
SHARE = 0.8
MOST = 2000
"""Tests that make a cluster; resamplings, their share; tests of a pair that are clustered (the
others join the nearest).
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one likely fault: the one in its middle, the one nearest to its seed,
    how surely it is found again.
    """

    expected: int
    predicted: int
    rows: tuple[int, ...]
    representative: int
    closest: int
    stability: float | None


def groups(
    features: Float[Tensor, "t f"],
    expected: Int[Tensor, " t"],
    predicted: Int[Tensor, " t"],
    distance: Float[Tensor, " t"],
    rng: torch.Generator,
) -> list[Group]:
    """Groups of all rows, largest first. `distance` is how far each test is from its seed."""
    unit = functional.normalize(features.float(), dim=1).cpu()
    found = [
        _group(rows[members], unit, expected, predicted, distance, stability)
        for rows in _pairs(expected, predicted)
        for members, stability in _clusters(unit[rows], rng)
    ]
    return sorted(
        found,
        key=lambda group: (-len(group.rows), group.expected, group.predicted, group.representative),
    )


def _pairs(
    expected: Int[Tensor, " t"], predicted: Int[Tensor, " t"]
) -> Iterator[Int[Tensor, " r"]]:
    """The rows of every pair of classes that occurs."""
    pair = torch.stack([expected, predicted], 1)
    _, place = torch.unique(pair, dim=0, return_inverse=True)
    return (
        (place == i).nonzero().squeeze(1) for i in range(int(place.max()) + 1 if len(place) else 0)
    )


def _clusters(
    x: Float[Tensor, "r f"], rng: torch.Generator
) -> Iterator[tuple[Int[Tensor, " s"], float | None]]:
    """Members of every cluster of a pair, and how stable it is."""
    labels = _labels(x)
    again = _resampled(x, labels, rng) if int(labels.max()) > 0 else {0: None}
    return (
        ((labels == i).nonzero().squeeze(1), again.get(i)) for i in range(int(labels.max()) + 1)
    )


def _labels(x: Float[Tensor, "r f"]) -> Int[Tensor, " r"]:
    """A cluster for every row; one for all where HDBSCAN finds none."""
    from sklearn.cluster import HDBSCAN

    if len(x) < 2 * SMALLEST:
        return torch.zeros(len(x), dtype=torch.int64)
    core = x[:MOST]
    found = torch.from_numpy(
        HDBSCAN(min_cluster_size=SMALLEST, copy=True).fit_predict(core.numpy()).astype(np.int64)
    )
    if int(found.max()) < 1:
        return torch.zeros(len(x), dtype=torch.int64)
    centres = torch.stack([core[found == i].mean(0) for i in range(int(found.max()) + 1)])
    nearest = torch.cdist(x, centres).argmin(1)
    nearest[: len(core)] = torch.where(found >= 0, found, nearest[: len(core)])
    return nearest


def _resampled(
    x: Float[Tensor, "r f"], labels: Int[Tensor, " r"], rng: torch.Generator
) -> dict[int, float | None]:
    """For every cluster the mean, over samples of the rows, of its likeness (Jaccard) to the most
    alike cluster found.
    """
    kinds = int(labels.max()) + 1
    likeness = torch.zeros(REPEATS, kinds)
    count = max(2 * SMALLEST, round(SHARE * len(x)))
    for i in range(REPEATS):
        rows = torch.randperm(len(x), generator=rng)[:count]
        before = functional.one_hot(labels[rows], kinds).float()
        after = _labels(x[rows])
        now = functional.one_hot(after, int(after.max()) + 1).float()
        shared = before.T @ now
        union = before.sum(0)[:, None] + now.sum(0)[None] - shared
        likeness[i] = (shared / union.clamp_min(1)).amax(1)
    return dict(enumerate(likeness.mean(0).tolist()))


def _group(
    rows: Int[Tensor, " s"],
    unit: Float[Tensor, "t f"],
    expected: Int[Tensor, " t"],
    predicted: Int[Tensor, " t"],
    distance: Float[Tensor, " t"],
    stability: float | None,
) -> Group:
    middle = torch.cdist(unit[rows], unit[rows].mean(0, keepdim=True)).squeeze(1)
    return Group(
        expected=int(expected[rows[0]]),
        predicted=int(predicted[rows[0]]),
        rows=tuple(rows.tolist()),
        representative=int(rows[middle.argmin()]),
        closest=int(rows[distance[rows].argmin()]),
        stability=stability,
    )


# Silent failures: confirmed tests on which the subject is sure; and what its own confidence would
# have caught.

REFUSED = 0.05
BINS = 10
POINTS = 60
"""Share of right answers that a user would give up; bins of the calibration error;
points of the curve that are kept.
"""


def alarm(right: Float[Tensor, " n"]) -> float:
    """The confidence below which `REFUSED` of the subject's right answers on seeds lie;
    1 if there are none.
    """
    return float(right.double().quantile(REFUSED)) if len(right) else 1.0


def silent(confidence: Float[Tensor, " t"], right: Float[Tensor, " n"]) -> Bool[Tensor, " t"]:
    """Tests on which a subject that refuses below `alarm` would still have answered."""
    return confidence.double() >= alarm(right)


def silence(confirmed: Float[Tensor, " t"], right: Float[Tensor, " n"]) -> dict[str, Any]:
    """Facts about the confidences of confirmed findings (all misclassified) beside those of
    correctly classified seeds.

    `risk_coverage`: answering only the most confident share (coverage) of seeds and tests together,
    how many of the answers are wrong (risk). `ece` is the expected calibration error on both
    together, `ece_tests` on the tests alone.
    """
    quiet = silent(confirmed, right)
    both = torch.cat([right, confirmed]).double()
    wrong = torch.cat([torch.zeros(len(right)), torch.ones(len(confirmed))]).double()
    return {
        "refused": REFUSED,
        "alarm": alarm(right),
        "silent": Rate(int(quiet.sum()), len(confirmed)).to_json(),
        "caught": Rate(int((~quiet).sum()), len(confirmed)).to_json(),
        "risk_coverage": _risk_coverage(both, wrong),
        "ece": ece(both, 1 - wrong) if len(both) else None,
        "ece_tests": ece(confirmed.double(), torch.zeros(len(confirmed)).double())
        if len(confirmed)
        else None,
    }


def _risk_coverage(
    confidence: Float[Tensor, " b"], wrong: Float[Tensor, " b"]
) -> list[dict[str, float]]:
    """The curve at the end of every stretch of equal confidences, thinned;
    the surest answers come first.
    """
    if not len(confidence):
        return []
    order = confidence.argsort(descending=True, stable=True)
    sure = confidence[order]
    last = torch.cat([sure[1:] != sure[:-1], torch.ones(1, dtype=torch.bool)]).nonzero().squeeze(1)
    last = last[torch.linspace(0, len(last) - 1, min(POINTS, len(last))).round().long()]
    risk = wrong[order].cumsum(0)[last] / (last + 1)
    return [
        {"coverage": (i + 1) / len(order), "risk": value, "confidence": float(sure[i])}
        for i, value in zip(last.tolist(), risk.tolist())
    ]


def ece(confidence: Float[Tensor, " b"], right: Float[Tensor, " b"]) -> float:
    """Expected calibration error in equal bins of confidence (M.

    Naeini, G. Cooper, M. Hauskrecht, AAAI 2015).
    """
    place = (confidence * BINS).long().clamp(0, BINS - 1)
    gap = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, confidence - right)
    return float(gap.abs().sum() / len(confidence))
