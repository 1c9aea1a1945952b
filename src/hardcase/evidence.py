"""What a user requires of a model, and whether runs show it.

A limit is compared with the far end of the 95 % interval, so that few seeds never show what they
cannot show. Whether a standard or a contract is satisfied is for an assessor to say.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from hardcase.cache import write_atomically
from hardcase.environment import one_line
from hardcase.errors import Problem, choice
from hardcase.runs.results import Run
from hardcase.statistics import interval

__all__ = ["Requirement", "check_requirement", "read_requirements", "write_requirements"]

RATES = {"failing_rate": "failing", "witnessed_rate": "witnessed", "confirmed_rate": "confirmed"}
"""Rates over attempted seeds that a requirement may limit, and the step of the funnel of each."""
METRICS = (*RATES, "accuracy", "distinct")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement of the user's.

    Args:
        id: As it is called elsewhere.
        text: In words.
        metric: One of `METRICS`; None where no run can show it.
        most: The greatest value allowed, compared with the upper end of the 95 % interval.
        least: The smallest value allowed, compared with the lower end.
        not_applicable: Why the requirement does not apply; empty where it does.
    """

    id: str
    text: str
    metric: str | None = None
    most: float | None = None
    least: float | None = None
    not_applicable: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementCheck:
    """Whether runs show a requirement, why, and the value of each run with its interval."""

    requirement: Requirement
    status: Literal["shown", "not shown", "not applicable"]
    why: str
    values: Sequence[Mapping[str, Any]] = ()


def read_requirements(path: Path) -> list[Requirement]:
    """Read a TOML file of ``[[requirement]]`` tables, whose keys are the fields of `Requirement`.

    Raises:
        Problem: If the file cannot be read, names an unknown key or metric, or states no limit.
    """
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("requirement")
    except (OSError, ValueError) as error:
        raise Problem(
            f"{path} cannot be read as TOML: {error}", fix="[[requirement]] id = ... text = ..."
        ) from error
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise Problem(f"{path} states no requirement.", fix="[[requirement]] with id and text")
    return [_requirement(row, path) for row in rows]


def _requirement(row: Mapping[str, Any], path: Path) -> Requirement:
    known = tuple(field.name for field in fields(Requirement))
    for name in row:
        if name not in known:
            raise choice("key of a requirement", name, known)
    if not row.get("id") or not row.get("text"):
        raise Problem(
            f"a requirement in {path} has no id or no text.", fix="[[requirement]] with id and text"
        )
    made = Requirement(**row)
    if made.metric is not None and made.metric not in METRICS:
        raise choice("metric", made.metric, METRICS)
    if made.metric is not None and made.most is None and made.least is None:
        raise Problem(
            f"requirement {made.id} names a metric but no limit.", fix="most = 0.05, or least = 0.9"
        )
    return made


def check_requirement(requirement: Requirement, runs: Mapping[str, Run]) -> RequirementCheck:
    """Compare a requirement with every run: it is shown only if each of them shows it.

    Args:
        requirement: The limit.
        runs: Stored runs by a name for each.
    """
    if requirement.not_applicable:
        why = requirement.not_applicable
        return RequirementCheck(requirement=requirement, status="not applicable", why=why)
    if requirement.metric is None:
        why = "no run can show it: it names no metric"
        return RequirementCheck(requirement=requirement, status="not shown", why=why)
    most = float("inf") if requirement.most is None else requirement.most
    least = float("-inf") if requirement.least is None else requirement.least
    values: list[dict[str, Any]] = []
    messages = []
    good = bool(runs)
    for name, run in runs.items():
        measured = _measured(requirement.metric, run)
        if measured is None:
            values.append({"run": name, "value": None})
            messages.append(f"{name}: not measured")
            good = False
            continue
        value, low, high = measured
        values.append({"run": name, "value": value, "low": low, "high": high})
        messages.append(f"{name}: {value:.4g} (95 % interval {low:.4g} to {high:.4g})")
        good = good and high <= most and low >= least
    ends = (("at most", requirement.most), ("at least", requirement.least))
    limit = " and ".join(f"{word} {value:g}" for word, value in ends if value is not None)
    return RequirementCheck(
        requirement=requirement,
        status="shown" if good else "not shown",
        why=f"{requirement.metric} {limit}: {'; '.join(messages)}",
        values=values,
    )


def _measured(metric: str, run: Run) -> tuple[float, float, float] | None:
    """A metric of a run and the ends of its 95 % interval; None where it was not measured."""
    funnel = run.counts()["funnel"]
    if metric == "distinct":
        count = funnel["distinct"]
        return None if count is None else (float(count), float(count), float(count))
    if metric == "accuracy":
        known = run.record.get("accuracy") or {}
        total = int(known.get("images") or 0)
        hits: int | None = round(float(known.get("value") or 0) * total)
    else:
        total = funnel["attempted"] or 0
        hits = funnel.get(RATES[metric])
    if hits is None or not total:
        return None
    return (hits / total, *interval(hits, total))


def write_requirements(checks: Sequence[RequirementCheck], folder: Path) -> Path:
    """Write ``requirements.md`` for people and ``requirements.json`` for programs."""
    lines = ["# Requirements", "", "| requirement | text | status | seen |", "|---|---|---|---|"]
    for check in checks:
        cells = (check.requirement.id, check.requirement.text, check.status, check.why)
        escaped = [re.sub(r"([\\|`*_\[\]<>])", r"\\\1", one_line(cell)) for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    values = json.dumps([asdict(check) for check in checks], indent=1, default=str)
    write_atomically(folder / "requirements.json", values.encode())
    return write_atomically(folder / "requirements.md", ("\n".join(lines) + "\n").encode())
