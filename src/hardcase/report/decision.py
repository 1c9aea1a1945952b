"""The first screen of a run: its decision in one sentence, the plot, and what to do next."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from hardcase.errors import HardcaseError
from hardcase.runs.results import Run
from hardcase.suite.gate import Check, GateLimits, limit_checks
from hardcase.wording.gate import limit_words
from hardcase.wording.report import (
    conditions_sentence,
    next_steps,
    plot_rows,
    region_sentence,
    unfinished_sentence,
)
from hardcase.wording.summary import Decision, decide

__all__ = ["decision", "folder_as_typed"]


def decision(run: Run, limits: GateLimits | None) -> dict[str, Any]:
    """Return what the first screen says of a run."""
    decided, checks = _decided(run, limits)
    return {
        "word": decided.word,
        "sentence": decided.sentence,
        "unfinished": unfinished_sentence(run.record),
        "limits": [check.to_json() for check in checks],
        "plot": _plot(run, checks),
        "conditions": conditions_sentence(run.record),
        "region": region_sentence(run.record),
        "next": _next(run, decided, checks),
    }


def _decided(run: Run, limits: GateLimits | None) -> tuple[Decision, list[Check]]:
    """The decision by all limits; by the figures alone where the limits cannot be read or held."""
    checks = list[Check]()
    with suppress(HardcaseError):
        checks = limit_checks(run, limits)
    return decide(run.record, checks), checks


def _plot(run: Run, checks: list[Check]) -> dict[str, Any] | None:
    """The rates with their whiskers, and the limit on the failure rate where one was declared."""
    rows = plot_rows(run.record)
    if not rows:
        return None
    limit = next((check.limit for check in checks if check.name == "failure rate"), None)
    text = None if limit is None else f"limit {limit_words(limit)}"
    return {"rows": [row._asdict() for row in rows], "limit": limit, "limit_text": text}


def _next(run: Run, decided: Decision, checks: list[Check]) -> list[dict[str, str]]:
    """What to do, each with a command where there is one."""
    record = run.record
    high = (record.get("risk") or {}).get("high")
    steps = next_steps(
        decided.word,
        folder_as_typed(run),
        complete=bool(record.get("complete")),
        unchecked=bool(len(run)) and run.verdicts is None and not record.get("claims"),
        declared=None if high is None else math.ceil(100 * high) / 100,
        decide=list(dict.fromkeys(check.decide for check in checks if check.decide)),
    )
    return [step._asdict() for step in steps]


def folder_as_typed(run: Run) -> str:
    """Return the run folder as one types it where the page is written."""
    place, here = run.folder.resolve(), Path.cwd()
    if place.is_relative_to(here):
        return quote(str(place.relative_to(here)))
    return quote(place.name)
