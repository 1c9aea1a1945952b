"""Where it fails: the conditions in words under which seeds fail more often, if any held, the map
of failures, and how failing grows with severity."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from hardcase.analysis.maps import CONFIRMED, STATES, map_of_run
from hardcase.analysis.semantics import WORDS
from hardcase.analysis.slices import Outcome, Rules, Slice, slices_of_run
from hardcase.errors import Problem
from hardcase.guides.archive import LEVELS
from hardcase.report.words import number, percent, plural, rate
from hardcase.runs.results import Run
from hardcase.runs.verify import CURVES, read_beside

NEEDED = 3 * 3 * Rules().support
"""Attempted seeds with which a third of a measure can have its images on each third of the seeds.
"""
MANY = 4_000
"""Attempted seeds of which measures are taken; more would only slow the page down."""


def where(run: Run, counts: Mapping[str, Any]) -> dict[str, Any]:
    """The slices of a run, of which the page shows those that held."""
    attempted = counts["funnel"]["attempted"] or 0
    confirmed = counts["funnel"]["confirmed"]
    outcome: Outcome = "confirmed" if confirmed else "failing"
    bad = confirmed or counts["funnel"]["failing"] or 0
    carried = list[Slice]()
    if NEEDED <= attempted <= MANY and 0 < bad < attempted:
        with suppress(Problem):  # seeds whose images cannot be read: the rest still can
            carried = slices_of_run(run, outcome=outcome)
    held = [one for one in carried if one.accepted and one.held]
    return {
        "outcome": outcome,
        "attempted": attempted,
        "carried": [one.record() for one in carried],
        "held": [_row(one) for one in held],
        "sentence": _sentence(attempted, bad, outcome, carried, held),
    }


def _row(one: Slice) -> dict[str, Any]:
    seen = one.estimated
    return {
        "name": one.name,
        "sentence": str(one),
        "inside": rate(seen.failing, seen.total),
        "outside": rate(seen.failing_outside, seen.total_outside),
        "p": one.p_holm,
    }


def _sentence(
    attempted: int, bad: int, outcome: Outcome, carried: list[Slice], held: list[Slice]
) -> str:
    """What was looked for and what came of it, in words that promise no more."""
    word = "has a confirmed failure" if outcome == "confirmed" else "fails"
    if attempted < NEEDED:
        return (
            "Conditions (dark, thick strokes, …) are looked for on one third of the seeds, tested"
            f" on another and measured on a last one. That takes about {number(NEEDED)} attempted"
            f" seeds; this run has {number(attempted)}."
        )
    if attempted > MANY:
        return (
            f"Conditions were not looked for: more than {number(MANY)} seeds were attempted;"
            " hardcase.analysis.slices_of_run does it."
        )
    if not 0 < bad < attempted:
        every = "Every" if bad else "No"
        return f"{every} attempted seed {word}, so there is nothing to tell apart."
    if not held:
        accepted = sum(one.accepted for one in carried)
        found = f"{plural(len(carried), 'condition')} looked promising on a third of the seeds"
        passed = f"{number(accepted)} passed a test on another, none held on the last"
        return (
            f"No condition is known under which the model fails more often: {found}, {passed}."
            " That is no proof that there is none."
        )
    return (
        "Found on one third of the seeds, tested on another (Holm’s correction over"
        f" {plural(len(carried), 'condition')}) and measured on the last, which had no part in"
        f" finding or testing: a seed inside the condition {word} more often."
    )


ENDS: Mapping[str, tuple[str, str]] = {**WORDS, "slant": ("left", "right")}


def failure_map(run: Run) -> dict[str, Any] | None:
    """The map of a run with ``--map``, as the page draws it; None for another run."""
    try:
        found = map_of_run(run)
    except Problem:  # images or counts that cannot be read: the rest of the report still can
        return None
    if found is None:
        return None
    row_of = {name: row for row, name in enumerate(run.findings["id"].to_pylist())}
    cells = [{**cell, "row": row_of.get(cell["example"])} for cell in found["cells"]]
    down, across, *third = found["axes"]
    at = {tuple(cell["place"]): cell for cell in cells}
    layers = [
        {
            "name": _part(third[0], k) if third else None,
            "rows": [
                [at[i, j, k] if third else at[i, j] for j in range(across["cells"])]
                for i in reversed(range(down["cells"]))
            ],
        }
        for k in range(third[0]["cells"] if third else 1)
    ]
    words = [
        {**axis, "ends": list(ENDS.get(axis["name"], ("low", "high")))} for axis in found["axes"]
    ]
    return {
        **found,
        "cells": cells,
        "axes": words,
        "layers": layers,
        "sentence": _map_sentence(found),
    }


def _part(axis: Mapping[str, Any], place: int) -> str:
    """The values of one cell of an axis."""
    width = (axis["high"] - axis["low"]) / axis["cells"]
    low = axis["low"] + place * width
    return f"{axis['name']} {low:.2g} to {low + width:.2g}"


def _map_sentence(found: Mapping[str, Any]) -> str:
    counts = found["counts"]
    total = len(found["cells"])
    failing = sum(counts[state] for state in STATES[2:])
    sure = counts[CONFIRMED]
    kept = sure + counts["fails, witnessed"]
    names = " and ".join(axis["name"] for axis in found["axes"])
    told = f"; in {number(sure)} a failure is confirmed" if sure else ""
    witnessed = f"; in {number(kept)} other networks keep the label" if kept > sure else ""
    return (
        f"All images that were tried, by {names}: in {number(failing)} of {number(total)} cells the"
        f" model fails{told}{witnessed}. In {number(counts[LEVELS[1]])} cells it was tried and"
        f" never failed, {number(counts[LEVELS[0]])} cells this search did not reach, which does"
        " not say that nothing can."
    )


FRAGILE = 3
"""Changes that the sentence names."""


def severities(run: Run) -> dict[str, Any] | None:
    """The curves that ``hardcase curve`` left in a run, the most fragile change first; or None."""
    said = read_beside(run.store, CURVES)
    if said is None:
        return None
    try:
        rows = [_curve(row) for row in (*said["corruptions"], *said["conditions"])]
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
        "sentence": _fragile(rows, usable),
    }


def _curve(said: Mapping[str, Any]) -> dict[str, Any]:
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


def _fragile(rows: list[dict[str, Any]], usable: int) -> str:
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
