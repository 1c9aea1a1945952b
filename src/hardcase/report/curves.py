"""How failing grows with severity: the curves that ``hardcase curve RUN`` left in a run folder, and
how little of what was searched is enough.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from hardcase.report.words import Sheet, number, percent, plural
from hardcase.runs.results import Run
from hardcase.runs.verify import CURVES, read_beside
from hardcase.statistics import interval

FRAGILE = 3
"""Changes that the sentence names."""
POINTS = 20
"""Severities at which the share of failing seeds is drawn."""
FEWEST = 5
"""Attempted seeds of a class, at least, that make a row."""


def smallest(run: Run, sheet: Sheet) -> dict[str, Any] | None:
    """How little is enough: the share of attempted seeds that fail within each severity, and the
    median of the smallest severities, overall and by class. None for a run of another space than
    one of appearance.

    Args:
        run: A stored run.
        sheet: Its findings.
    """
    if not (run.record.get("space") or {}).get("text"):
        return None
    least = dict[str, float]()
    for row, label in enumerate(sheet.label.tolist()):
        if label:
            before = least.get(sheet.seed[row], math.inf)
            least[sheet.seed[row]] = min(before, float(sheet.distance[row]))
    found = defaultdict[int, list[float]](list)
    for name, seed in sheet.seeds.items():
        if seed["looked"] and seed["status"] in ("done", "out of time"):
            found[seed["label"]].append(least.get(name, math.inf))
    every = sorted(value for values in found.values() for value in values)
    most = max(least.values(), default=0.0)
    if not every or not 0 < most < math.inf:
        return None
    most = math.ceil(10 * most) / 10
    at = [most * i / POINTS for i in range(1, POINTS + 1)]
    return {
        "most": most,
        "points": [_within(every, severity) for severity in at],
        **_median(every),
        "classes": [
            {"label": label, **_median(sorted(values))}
            for label, values in sorted(found.items())
            if len(values) >= FEWEST
        ],
    }


def _within(values: Sequence[float], severity: float) -> dict[str, float]:
    failing = sum(value <= severity for value in values)
    low, high = interval(failing, len(values))
    share = failing / len(values)
    return {"severity": severity, "share": share, "low": low, "high": high}


def _median(values: Sequence[float]) -> dict[str, Any]:
    """The median of sorted severities, infinite where a seed never failed, and its 95 % interval by
    the order of the values; None for what lies beyond all that were reached.
    """
    count = len(values)
    aside = 0.98 * math.sqrt(count)
    ranks = {
        "median": (count - 1) // 2,
        "low": max(0, math.floor(count / 2 - aside)),
        "high": min(count - 1, math.ceil(count / 2 + aside) - 1),
    }
    reached = {name: values[rank] for name, rank in ranks.items()}
    said = {name: value if math.isfinite(value) else None for name, value in reached.items()}
    return {"attempted": count, **said}


def severities(run: Run) -> dict[str, Any] | None:
    """The curves of a run, the change under which most seeds fail first; None where there are none.

    Args:
        run: A stored run.
    """
    said = read_beside(run.store, CURVES)
    if said is None:
        return None
    try:
        rows = [_row(row) for row in (*said["corruptions"], *said["conditions"])]
        usable = int(said["usable"])
        error = said["corruption_error"]
        plain = None if error is None else float(error["plain"])
        relative = None if error is None else error["relative_to"]
        model = str(said["model"])
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError):
        return None  # it says nothing that can be drawn
    rows.sort(key=lambda row: (-row["mean"], row["name"]))
    return {
        "usable": usable,
        "model": model,
        "rows": rows,
        "mean_corruption_error": plain,
        "mce": None if relative is None else float(relative),
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
