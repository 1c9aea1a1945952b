"""What a user requires, and whether runs show it: limits are held against the far end of the 95 %
interval."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardcase.errors import Problem, choice
from hardcase.evidence.pages import Named, Page, bullets, cell
from hardcase.runs.results import Run
from hardcase.statistics import interval

METRICS = {
    "failing_rate": "failing",
    "witnessed_rate": "witnessed",
    "confirmed_rate": "confirmed",
}
"""Rates over attempted seeds that a requirement may limit, and the step of the funnel each
counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement of the user's.

    Args:
        id: As it is called elsewhere.
        text: In words.
        metric: One of `METRICS`, ``accuracy`` or ``distinct``; None where no run can show it.
        most: The greatest value allowed: held against the upper end of the 95 % interval of a rate.
        least: The smallest value allowed: held against the lower end.
        not_applicable: Why the requirement does not apply; empty where it does.
    """

    id: str
    text: str
    metric: str | None = None
    most: float | None = None
    least: float | None = None
    not_applicable: str = ""


def read_requirements(path: Path) -> list[Requirement]:
    """Requirements from a TOML file with ``[[requirement]]`` tables: id, text, metric, most, least,
    not_applicable."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise Problem(
            f"{path} cannot be read as TOML: {error}", fix="[[requirement]] id = ... text = ..."
        ) from error
    rows = values.get("requirement", [])
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise Problem(f"{path} states no requirement.", fix="[[requirement]] with id and text")
    return [_requirement(row, path) for row in rows]


def _requirement(row: Mapping[str, Any], path: Path) -> Requirement:
    known = ("id", "text", "metric", "most", "least", "not_applicable")
    for name in row:
        if name not in known:
            raise choice("key of a requirement", name, known)
    if not row.get("id") or not row.get("text"):
        raise Problem(
            f"a requirement in {path} has no id or no text.", fix="[[requirement]] with id and text"
        )
    made = Requirement(**row)
    metrics = (*METRICS, "accuracy", "distinct")
    if made.metric is not None and made.metric not in metrics:
        raise choice("metric", made.metric, metrics)
    if made.metric is not None and made.most is None and made.least is None:
        raise Problem(
            f"requirement {made.id} names a metric but no limit.", fix="most = 0.05, or least = 0.9"
        )
    return made


def held(one: Requirement, runs: Sequence[Named]) -> Page:
    """A requirement against every run: shown only if each of them shows it."""
    if one.not_applicable:
        return Page(one.text, [], "not applicable", one.not_applicable)
    if one.metric is None:
        return Page(one.text, [], "not shown", "no run can show it: it names no metric")
    values: list[dict[str, Any]] = [{"run": name, **_value(one.metric, run)} for name, run in runs]
    told = [_told(row) for row in values]
    good = all(row["value"] is not None and _fits(one, row["low"], row["high"]) for row in values)
    ends = (("at most", one.most), ("at least", one.least))
    limit = " and ".join(f"{word} {value:g}" for word, value in ends if value is not None)
    why = f"{one.metric} {limit}: {'; '.join(told)}"
    return Page(one.text, values, "shown" if good else "not shown", why)


def _fits(one: Requirement, low: float, high: float) -> bool:
    return (one.most is None or high <= one.most) and (one.least is None or low >= one.least)


def _told(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return f"{row['run']}: not measured"
    return f"{row['run']}: {row['value']:.4g} (95 % interval {row['low']:.4g} to {row['high']:.4g})"


def _value(metric: str, run: Run) -> dict[str, float | None]:
    """A metric of a run with the ends of its interval; None where it was not measured."""
    counts = run.counts()["funnel"]
    if metric == "distinct":
        count = None if counts["distinct"] is None else float(counts["distinct"])
        return {"value": count, "low": count, "high": count}
    if metric == "accuracy":
        known = run.record.get("accuracy") or {}
        total = int(known.get("images") or 0)
        hits: int | None = round(float(known.get("value") or 0) * total)
    else:
        total = counts["attempted"] or 0
        hits = counts.get(METRICS[metric])
    if hits is None or not total:
        return {"value": None, "low": None, "high": None}
    low, high = interval(hits, total)
    return {"value": hits / total, "low": low, "high": high}


def requirements_page(asked: Sequence[Requirement], pages: Sequence[Page]) -> Page:
    """All requirements on one page."""
    lines = ["# Requirements", "", "| requirement | text | status | seen |", "|---|---|---|---|"]
    rows = list(zip(asked, pages))
    lines += [
        f"| {cell(one.id)} | {cell(one.text)} | {page.status} | {cell(page.why)} |"
        for one, page in rows
    ]
    values = [
        {
            "id": one.id,
            "text": one.text,
            "status": page.status,
            "why": page.why,
            "runs": page.values,
        }
        for one, page in rows
    ]
    if not pages:
        return Page(
            bullets("Requirements", "None were given.", []),
            values,
            "not shown",
            "no requirements were given",
        )
    lacking = sum(page.status == "not shown" for page in pages)
    if lacking:
        why = f"{lacking} of {len(pages)} requirements are not shown"
        return Page("\n".join(lines) + "\n", values, "not shown", why)
    return Page(
        "\n".join(lines) + "\n",
        values,
        "shown",
        f"{len(pages)} requirements, each shown or not applicable",
    )
