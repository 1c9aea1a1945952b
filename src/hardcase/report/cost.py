"""What it cost: tests over queries and over time, totals, coverage."""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hardcase.report.sheet import Sheet
from hardcase.results import Run

POINTS = 160
"""A curve is drawn through at most so many points."""

_START = {"seconds": 0.0, "findings": 0}


def cost(run: Run, sheet: Sheet, failing: int) -> dict[str, Any]:
    totals = run.record.get("totals") or {}
    queries, elapsed = totals.get("queries"), run.record.get("elapsed")
    history = read_history(run.folder / "history.csv")
    grown = [now["seconds"] for before, now in pairwise([_START, *history]) if now["findings"] > before["findings"]]
    return {
        "totals": totals,
        "elapsed": elapsed,
        "queries_per_failing": queries / failing if queries and failing else None,
        "queries_per_second": queries / elapsed if queries and elapsed else None,
        "by_queries": _by_queries(sheet),
        "over_time": _thin(history),
        "last_new": grown[-1] if grown else None,
        "coverage": run.record.get("coverage"),
    }


def _by_queries(sheet: Sheet) -> list[dict[str, int]]:
    """Failing seeds so far, at the queries that the earliest kept test of each had cost."""
    first: dict[str, int] = {}
    for row in np.flatnonzero(sheet.label).tolist():
        spent = int(sheet.queries[row])
        first[sheet.seed[row]] = min(spent, first.get(sheet.seed[row], spent))
    costs, count = np.unique(np.array(list(first.values()), dtype=np.int64), return_counts=True)
    steps = zip(costs.tolist(), count.cumsum().tolist())
    return _thin([{"queries": at, "seeds": seeds} for at, seeds in steps])


def read_history(path: Path) -> list[dict[str, float]]:
    """The rows of history.csv; a line that is cut off or is not a number is left out."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = [_numbers(row) for row in csv.DictReader(file)]
    return [row for row in rows if row is not None]


def _numbers(row: dict[str, str | None]) -> dict[str, float] | None:
    wanted = ("seconds", "queries", "findings", "failing_seeds")
    try:
        values = {name: float(row[name] or "nan") for name in wanted}
    except (KeyError, ValueError):
        return None
    whole = {name: int(values[name]) for name in wanted[1:] if math.isfinite(values[name])}
    return {"seconds": values["seconds"], **whole} if len(whole) == 3 and math.isfinite(values["seconds"]) else None


def _thin(rows: list[Any]) -> list[Any]:
    if len(rows) <= POINTS:
        return rows
    return [rows[i] for i in np.linspace(0, len(rows) - 1, POINTS).round().astype(int).tolist()]
