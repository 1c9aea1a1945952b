"""Pass a repaired network only if nothing is worse than in the network before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hardcase.errors import Problem
from hardcase.repair.front import RECORD
from hardcase.repair.proof import ProofRow, ProofValues, compare_values
from hardcase.runs.files import read_checked_json, read_plain
from hardcase.runs.identity import Identity
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_beside
from hardcase.suite.gate import Check, Outcome

__all__ = ["repair_checks"]

_KEYS = ("group", "name", "before", "after", "low", "high", "units", "margin", "decides")


def repair_checks(new: Path, old: Run, margin: float) -> list[Check]:
    """Return a check for every figure of a repaired network against the network before."""
    if (new / RECORD).exists():
        return [_check(row) for row in _proof_rows(new, old)]
    run = Run(new)
    if run.record.get("conditions") != old.record.get("conditions"):
        raise Problem("the two runs have other conditions, so their risks cannot be compared.")
    before, after = _common(_seeds(old), _seeds(run))
    return [_check(row) for row in compare_values(before, after, old.classes, margin)]


def _proof_rows(folder: Path, old: Run) -> list[ProofRow]:
    """The rows of a repair whose parent is the network of a run."""
    try:
        record, sound = read_checked_json(read_plain(folder / RECORD))
        rows = [ProofRow(*(row[key] for key in _KEYS)) for row in record["proof"]["rows"]]
        parent = str(record["parents"]["hash"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Problem(f"{folder / RECORD} cannot be read: {error}") from error
    if not sound:
        raise Problem(f"{folder / RECORD} is not what was written.", fix="hardcase repair again")
    then = Identity.from_json(old.record.get("identity"))
    if then is None or then.parts.get("model") != parent:
        raise Problem(
            f"{folder} repaired another network than that of {old.folder}.",
            fix="--repaired-from with the run of the network that was repaired",
        )
    return rows


def _check(row: ProofRow) -> Check:
    """A figure passes if it is not worse; one of many passes unless it is certainly worse."""
    said: Outcome = "pass"
    if row.outcome == "worse":
        said = "fail"
    elif row.outcome == "cannot tell" and row.decides:
        said = "cannot tell"
    text = (
        f"{row.group}, {row.name}: {row.before:.2%} before, {row.after:.2%} after, change"
        f" {row.low:+.2%} to {row.high:+.2%} over {row.units} images, margin {row.margin:.2%}"
    )
    decide = "more images: a larger test split, or --proof full" if said == "cannot tell" else ""
    return Check(f"{row.group}: {row.name}", said, text, decide, limit=row.margin)


def _seeds(run: Run) -> dict[str, dict[str, Any]]:
    kept = read_beside(run.store, CONDITIONS)
    if kept is None:
        raise Problem(
            f"{run.folder} has no risk: it was run without declared conditions.",
            fix="hardcase run ... --conditions scanner",
        )
    return {row["id"]: {**row, "risk": row["failing"] / kept["draws"]} for row in kept["seeds"]}


def _common(
    one: dict[str, dict[str, Any]], two: dict[str, dict[str, Any]]
) -> tuple[ProofValues, ProofValues]:
    """What two networks do with the seeds that both runs have."""
    names = [name for name in one if name in two]
    if not names:
        raise Problem("the two runs have no seed in common: they cannot be compared.")

    def values(rows: dict[str, dict[str, Any]]) -> ProofValues:
        label, clean, risk = (
            np.array([rows[name][key] for name in names]) for key in ("label", "clean", "risk")
        )
        return ProofValues(label, clean.astype(np.float64), risk)

    return values(one), values(two)
