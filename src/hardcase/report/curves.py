"""How failing grows with severity: the curves that ``hardcase curve RUN`` left in a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.report.words import number, percent, plural
from hardcase.runs.results import Run
from hardcase.runs.verify import CURVES, read_beside

FRAGILE = 3
"""Changes that the sentence names."""


def severities(run: Run) -> dict[str, Any] | None:
    """The curves of a run, the most fragile change first; None where there are none."""
    said = read_beside(run.store, CURVES)
    if said is None:
        return None
    try:
        rows = [_row(row) for row in (*said["corruptions"], *said["conditions"])]
        usable = int(said["usable"])
        error = said["corruption_error"]
        plain = None if error is None else float(error["plain"])
        model = str(said["model"])
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return None  # it says nothing that can be drawn
    rows.sort(key=lambda row: (-row["mean"], row["name"]))
    return {
        "usable": usable,
        "model": model,
        "rows": rows,
        "mean_corruption_error": plain,
        "sentence": _sentence(rows, usable),
    }


def _row(said: Mapping[str, Any]) -> dict[str, Any]:
    points = [
        {name: float(point[name]) for name in ("severity", "share", "low", "high")}
        | {name: int(point[name]) for name in ("failing", "total")}
        for point in said["curve"]
    ]
    middle = said["crossing"]["quartiles"][1]
    corruption = said.get("corruption")
    return {
        "name": str(corruption or said["condition"]).replace("_", " "),
        "kind": "corruption" if corruption else "condition",
        "most": float(said["most"]),
        "points": points,
        "mean": sum(point["share"] for point in points) / len(points),
        "crossing": None if middle is None else float(middle),
        "crossed": int(said["crossing"]["crossed"]),
        "queries": int(said["crossing"]["queries"]),
        "non_monotone": float(said["non_monotone"]["share"]),
    }


def _sentence(rows: list[dict[str, Any]], usable: int) -> str:
    worst = [row for row in rows if row["points"][-1]["failing"]][:FRAGILE]
    if not worst:
        return f"None of {plural(usable, 'seed')} fails under any of {len(rows)} changes."
    told = []
    for row in worst:
        end = row["points"][-1]
        half = (
            f"half of the seeds fail by severity {row['crossing']:.2f}"
            if row["crossing"] is not None
            else f"{percent(end['share'])} fail at the end"
        )
        told.append(f"{row['name']} ({half})")
    return (
        f"{number(usable)} correctly classified seeds under {plural(len(rows), 'change')}. "
        f"Most fragile: {', '.join(told)}."
    )
