"""Maps of failures: which features of an image span one, and any method as a search that fills it.

``--map brightness,tilt`` keeps a method's space, objective, oracle and search; after the search has
had its share of the queries, or is done, `Illumination` moves candidates toward cells of an
`Archive` in which nothing has failed yet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hardcase.analysis.semantics import MEASURES, Kind, kind_of
from hardcase.errors import HardcaseError, choice
from hardcase.guides.archive import LEVELS, Archive, Axis, CellGrid, spanned
from hardcase.objectives import joint
from hardcase.oracles import Witnessed
from hardcase.runs.results import Run
from hardcase.searches.genetic import Illumination
from hardcase.statistics import accepted_by
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Images, Method, Probe, Space

CELLS = 10
"""Cells of an axis that names no number."""
MOST = 40
QUERIES = 400
"""Queries per image for a map, unless the method has more than half of that of its own."""
TOGETHER = 256
"""Images whose features are measured at a time."""
LOOKED = 1000
"""Images whose features say how far an axis reaches."""
ALSO: Mapping[str, str] = {"tilt": "slant", "thickness": "stroke"}
"""Other words for features."""
ACCEPTED = "accepted"
STATES = (*LEVELS, ACCEPTED)
"""What is known of a cell of a map, from least to most; the judge speaks last and never steers."""


@dataclass(frozen=True, slots=True)
class Features:
    """Named features of images, as `hardcase.analysis.semantics` measures them."""

    names: tuple[str, ...]
    kind: Kind

    def __call__(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
        values = MEASURES[self.kind](x)
        return torch.stack([values[name] for name in self.names], 1)


def grid_of(text: str, images: Images) -> CellGrid:
    """The cells that ``--map`` asks for, spanned by what these images show."""
    wanted = [_axis(piece) for piece in text.split(",")]
    names = tuple(name for name, _ in wanted)
    if len(set(names)) < len(names):
        raise HardcaseError(f"--map {text} names a feature twice.", fix="--map brightness,slant")
    sample = images.sample(count=min(LOOKED, len(images)), seed=0) if len(images) else images
    x = from_bytes(sample.x)
    kind = kind_of(x)
    features = MEASURES[kind](x[:1])
    for name in names:
        if name not in features:
            raise choice(f"feature of a {kind}", name, list(features))
    measure = Features(names, kind)
    values = torch.cat([measure(x[part]) for part in chunks(len(x), TOGETHER)])
    for name, value in zip(names, values.unbind(1)):
        if bool(value.amin() == value.amax()):
            raise HardcaseError(f"all images have the same {name}: it spans no map.")
    axes = [spanned(name, values[:, i], cells) for i, (name, cells) in enumerate(wanted)]
    return CellGrid(tuple(axes), measure)


def _axis(text: str) -> tuple[str, int]:
    """A feature and its number of cells."""
    name, _, cells = text.strip().partition(":")
    canonical = ALSO.get(name.strip(), name.strip())
    if not cells:
        return canonical, CELLS
    if not cells.isascii() or not cells.isdigit() or not 2 <= int(cells) <= MOST:
        raise HardcaseError(
            f"--map {text}: an axis has 2 to {MOST} cells.", fix=f"{canonical}:{CELLS}"
        )
    return canonical, int(cells)


def record(grid: CellGrid) -> dict[str, Any]:
    """What run.json says of a map."""
    measure = grid.measure
    assert isinstance(measure, Features)
    return {"kind": measure.kind, "axes": [asdict(axis) for axis in grid.axes]}


def grid_from(said: Mapping[str, Any]) -> CellGrid:
    """The cells that `record` wrote down."""
    axes = tuple(Axis(**axis) for axis in said["axes"])
    return CellGrid(axes, Features(tuple(axis.name for axis in axes), said["kind"]))


@dataclass(frozen=True, slots=True)
class InSpace:
    """The distance of candidates from their images in a space, as failures store it."""

    space: Space

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        return self.space.distance(probe.z, probe.origin)


def mapping(method: Method, grid: CellGrid, *, margin: float | None = None) -> Method:
    """A method as a search that fills a map: its own search for half of the queries at most, then
    `Illumination` with an `Archive`."""
    if method.guides:
        raise HardcaseError(
            f'method "{method.name}" has a memory of its own, which a map would replace.',
            fix="--method natural, natural-blackbox or sinvad",
        )
    objective = method.objective
    if margin is not None:
        objective = joint(objective, method.oracle, margin)
    archive = Archive(
        grid,
        method.oracle,
        objective=objective,
        witnessed=None if margin is None else Witnessed(method.oracle, margin),
        distance=InSpace(method.space),
    )
    budgeted = method.budget.queries or QUERIES
    queries = max(QUERIES, 2 * budgeted)
    search = Illumination(
        space=method.space,
        cells=grid,
        first=method.search,
        queries=min(budgeted, queries // 2),
        gradients=method.budget.gradients or queries,
        ends=method.until == "first",
    )
    budget = replace(method.budget, queries=queries, gradients=None)
    return replace(method, search=search, guides=(archive,), until="budget", budget=budget)


def cells_of(grid: CellGrid, x: UInt8[Tensor, "n c h w"]) -> list[int]:
    """The cell of each 8-bit image."""
    return _cells(grid, len(x), lambda part: x[part])


def _cells(
    grid: CellGrid, count: int, read: Callable[[slice], UInt8[Tensor, "m c h w"]]
) -> list[int]:
    """The same of images that are read a few at a time."""
    parts = [grid(from_bytes(read(part))) for part in chunks(count, TOGETHER)]
    return torch.cat(parts).tolist() if parts else []


def map_of_run(run: Run) -> dict[str, Any] | None:
    """The map that a run with ``--map`` filled; None for another run.

    A cell is in the state of its best finding: accepted by the judge, kept by the witnesses, or
    failing; `example` is that failure, of several the one nearest to its seed. Cells that the
    search reached without a failure have *never failed*; `seeds` counts the real images in a cell.

    Args:
        run: A stored run.
    """
    stored = run.record.get("map")
    if not stored:
        return None
    grid = grid_from(stored)
    visits = _visits(run, len(grid))
    table = run.findings
    placed = []
    rows, starts = range(len(table)), range(len(run.seeds))
    cells = _cells(grid, len(rows), lambda part: run.images(rows[part]))
    for row, cell in zip(table.drop_columns(["code"]).to_pylist(), cells):
        state = "fails, witnessed" if row["witnessed"] else "fails"
        if accepted_by(run.verdicts or {}, row["id"]):
            state = ACCEPTED
        if row["kind"] == "label":
            placed.append({**row, "cell": cell, "state": STATES.index(state)})
    failing = defaultdict[int, set[str]](set)
    for row in placed:
        failing[row["cell"]].add(row["original"])
    placed.sort(key=lambda row: (-row["state"], row["distance"], row["original"], row["id"]))
    best: dict[int, dict[str, Any]] = {}
    for row in placed:
        best.setdefault(row["cell"], row)
    seeds = Counter(_cells(grid, len(starts), lambda part: run.seed_images(starts[part])))
    shape = [axis.cells for axis in grid.axes]
    cell_rows = []
    for cell in range(len(grid)):
        finding = best.get(cell, {})
        cell_rows.append(
            {
                "cell": cell,
                "place": [int(i) for i in np.unravel_index(cell, shape)],
                "state": STATES[finding.get("state", int(bool(visits[cell])))],
                "visits": visits[cell],
                "seeds": seeds[cell],
                "failing_seeds": len(failing[cell]),
                "example": finding.get("id"),
                **{name: finding.get(name) for name in ("original", "expected", "predicted")},
            }
        )
    return {
        "axes": stored["axes"],
        "cells": cell_rows,
        "counts": {state: sum(row["state"] == state for row in cell_rows) for state in STATES},
    }


def _visits(run: Run, cells: int) -> list[int]:
    """How many candidates fell into each cell, over all shards."""
    total = torch.zeros(cells, dtype=torch.int64)
    for number in sorted(run.store.done()):
        delta = run.store.deltas(number).get("map", {})
        if "visits" in delta:
            visits = delta["visits"]
            sound = visits.dtype == torch.int64 and visits.shape == total.shape
            if not sound or bool((visits < 0).any()):
                raise HardcaseError(
                    f"shard {number} of {run.folder} is damaged: its map is another."
                )
            total += visits
    counted: list[int] = total.tolist()
    return counted
