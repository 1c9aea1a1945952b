"""Confirmed findings grouped into likely faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.runs.results import Run
from hardcase.tensors import chunks, from_bytes

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


SMALL = 32
THUMBNAIL = 8
"""Where a judge has no features, findings are compared by their pixels; larger findings as
thumbnails with this side.
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a likely fault: its central row, the row nearest to its seed, and its
    stability under resampling.
    """

    expected: int
    predicted: int
    rows: tuple[int, ...]
    representative: int
    closest: int
    stability: float | None


def group_findings(
    run: Run, accepted: Bool[Tensor, " t"], features: Tensor | None, rng: torch.Generator
) -> tuple[dict[str, list[Any]], list[dict[str, Any]]]:
    """Group the accepted findings of a run by the judge's features of all findings, or without
    these by their pixels.

    Returns:
        Columns for all findings (the group's name, whether the row represents it), and the entries
        of run.json on each group.
    """
    rows = accepted.nonzero().squeeze(1)
    names: list[str | None] = [None] * len(accepted)
    columns: dict[str, list[Any]] = {
        "group": names,
        "representative": [False] * len(accepted),
        "closest": [False] * len(accepted),
    }
    place = rows.tolist()
    features_used = thumbnails(run, place) if features is None else features[rows]
    table = run.findings.take(pa.array(place))
    expected, predicted, distance = (
        torch.from_numpy(table[name].to_numpy().copy()) for name in ("expected", "predicted", "l2")
    )
    ids = table["id"].to_pylist()
    seeds = table["original"].to_pylist()
    described = []
    for number, group in enumerate(groups(features_used, expected, predicted, distance, rng), 1):
        name = f"{group.expected}-{group.predicted}-{number}"
        for row in group.rows:
            names[place[row]] = name
        columns["representative"][place[group.representative]] = True
        columns["closest"][place[group.closest]] = True
        described.append(
            {
                "name": name,
                "expected": group.expected,
                "predicted": group.predicted,
                "tests": len(group.rows),
                "seeds": len({seeds[row] for row in group.rows}),
                "representative": ids[group.representative],
                "closest": ids[group.closest],
                "stability": group.stability,
            }
        )
    return columns, described


def thumbnails(run: Run, rows: Sequence[int]) -> Tensor:
    """Findings as rows of numbers: their pixels, or those of their thumbnails."""
    channels, height, width = run.record["shape"]
    batch = 4096
    if max(height, width) > SMALL:
        height = width = THUMBNAIL
        batch = 32
    # made before anything else: small blocks among large ones that come and go keep both
    pixels = torch.empty(len(rows), channels * height * width)
    for part in chunks(len(rows), batch):
        x = from_bytes(run.images(rows[part]))
        pixels[part] = functional.adaptive_avg_pool2d(x, (height, width)).flatten(1)
    return pixels


def groups(
    features: Float[Tensor, "t f"],
    expected: Int[Tensor, " t"],
    predicted: Int[Tensor, " t"],
    distance: Float[Tensor, " t"],
    rng: torch.Generator,
) -> list[Group]:
    """Return groups of all rows, largest first."""
    unit = functional.normalize(features.float(), dim=1).cpu()
    rows_of_groups = []
    pairs, place = torch.unique(torch.stack([expected, predicted], 1), dim=0, return_inverse=True)
    for number, (true, answered) in enumerate(pairs.tolist()):
        inside = (place == number).nonzero().squeeze(1)
        labels = _labels(unit[inside])
        count = int(labels.max()) + 1
        stability: list[float | None] = [None]
        if count > 1:
            stability = [*_resampled(unit[inside], labels, rng)]
        for label in range(count):
            rows = inside[labels == label]
            middle = torch.cdist(unit[rows], unit[rows].mean(0, keepdim=True)).squeeze(1)
            rows_of_groups.append(
                Group(
                    expected=true,
                    predicted=answered,
                    rows=tuple(rows.tolist()),
                    representative=int(rows[middle.argmin()]),
                    closest=int(rows[distance[rows].argmin()]),
                    stability=stability[label],
                )
            )
    return sorted(
        rows_of_groups,
        key=lambda group: (-len(group.rows), group.expected, group.predicted, group.representative),
    )


def _labels(x: Float[Tensor, "r f"]) -> Int[Tensor, " r"]:
    """A cluster for every row; a single cluster where HDBSCAN finds none."""
    if len(x) < 2 * SMALLEST:
        return torch.zeros(len(x), dtype=torch.int64)
    from sklearn.cluster import HDBSCAN

    core = x[:MOST]
    # in one leaf: among so many features a tree leaves nothing out, and costs as much again
    clusters = HDBSCAN(min_cluster_size=SMALLEST, leaf_size=MOST, copy=True)
    labels = torch.from_numpy(clusters.fit_predict(core.numpy()).astype(np.int64))
    if int(labels.max()) < 1:
        return torch.zeros(len(x), dtype=torch.int64)
    centres = torch.stack([core[labels == i].mean(0) for i in range(int(labels.max()) + 1)])
    nearest = torch.cdist(x, centres).argmin(1)
    nearest[: len(core)] = torch.where(labels >= 0, labels, nearest[: len(core)])
    return nearest


def _resampled(
    x: Float[Tensor, "r f"], labels: Int[Tensor, " r"], rng: torch.Generator
) -> list[float]:
    """For every cluster the mean, over samples of the rows, of its likeness (Jaccard) to the most
    similar cluster.
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
    means: list[float] = likeness.mean(0).tolist()
    return means
