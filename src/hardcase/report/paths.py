"""Pictures on the way from a seed to its test, where the run has painted them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa

from hardcase.errors import Problem
from hardcase.results import Run
from hardcase.store.tables import PATHS, read

Way = dict[float, bytes]
"""Encoded pictures by the share of the way, in its order."""


def ways(run: Run, names: Collection[str]) -> dict[str, Way]:
    """The ways to the named tests, as far as there are any."""
    path = run.folder / "state/paths.parquet"
    if not path.is_file() or not names:
        return {}
    try:
        rows = _named(read(path, PATHS), names)
    except Problem:  # pictures for the eye: a report without them is better than none
        return {}
    found: dict[str, Way] = {}
    for row in sorted(rows, key=lambda row: float(row["share"])):
        found.setdefault(row["id"], {})[float(row["share"])] = row["image"]["bytes"]
    return found


def _named(table: pa.Table, names: Collection[str]) -> list[dict[str, Any]]:
    rows = [i for i, name in enumerate(table["id"].to_pylist()) if name in names]
    chosen: list[dict[str, Any]] = table.take(pa.array(rows, pa.int64())).to_pylist()
    return chosen
