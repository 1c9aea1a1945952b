"""Confirmed findings grouped into likely faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

# Confirmed findings grouped into likely faults: the same two classes, alike in the features of an
# independent network.
#
# HDBSCAN: R. Campello, D. Moulavi, J. Sander, "Density-based clustering based on hierarchical
# density estimates", PAKDD 2013. Stability: C. Hennig, "Cluster-wise assessment of cluster
# stability", Computational Statistics & Data Analysis, 2007 (here on samples of four fifths drawn
# without replacement). A cautious count: findings that belong to no cluster join the nearest one,
# and a pair of classes in which no cluster is found is one group.

SMALLEST = 5
REPEATS = 20
SHARE = 0.8
MOST = 2000
"""Findings that make a cluster; resamplings, their share; findings of a pair that are clustered
(the others join the nearest).
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
    """Return groups of all rows, largest first."""
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
    found, place = torch.unique(pair, dim=0, return_inverse=True)
    return ((place == i).nonzero().squeeze(1) for i in range(len(found)))


def _clusters(
    x: Float[Tensor, "r f"], rng: torch.Generator
) -> Iterator[tuple[Int[Tensor, " s"], float | None]]:
    """Members of every cluster of a pair, and how stable it is."""
    labels = _labels(x)
    count = int(labels.max()) + 1
    stability: dict[int, float | None] = {}
    if count > 1:
        stability = _resampled(x, labels, rng)
    return (((labels == i).nonzero().squeeze(1), stability.get(i)) for i in range(count))


def _labels(x: Float[Tensor, "r f"]) -> Int[Tensor, " r"]:
    """A cluster for every row; one for all where HDBSCAN finds none."""
    if len(x) < 2 * SMALLEST:
        return torch.zeros(len(x), dtype=torch.int64)
    from sklearn.cluster import HDBSCAN

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
