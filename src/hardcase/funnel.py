"""The funnel: how many seeds survive each step from "given" to "confirmed", with the denominators said."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

STEPS = ("seeds", "usable", "attempted", "failing", "valid", "label_kept", "confirmed", "distinct")
"""Counts of seeds, except `distinct`, which counts groups. Steps that nobody judged are None."""

Verdict = Mapping[str, Any]


def interval(hits: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if total == 0:
        return 0.0, 1.0
    share, weight = hits / total, z * z / total
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return max(0.0, centre - half), min(1.0, centre + half)


def count(
    seeds: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Verdict] | None
) -> dict[str, dict[str, int | None]]:
    """`funnel`, `skipped` and `findings` of run.json, from the rows of seeds and findings (without images).

    A verdict says `valid` and `label_kept` (True, False or None for undecided) and `group` of one finding.
    """
    usable = [row for row in seeds if row["status"] not in ("skipped: misclassified", "skipped: non-finite")]
    attempted = [row for row in usable if row["status"] in ("done", "out of time") and row["looked"] > 0]
    failing = [row for row in findings if row["kind"] == "label"]
    judged = _judged(failing, verdicts)
    looked = sum(row["looked"] for row in seeds)
    return {
        "funnel": {
            "seeds": len(seeds),
            "usable": len(usable),
            "attempted": len(attempted),
            "failing": len({row["seed"] for row in failing}),
            **{name: None if rows is None else len({row["seed"] for row in rows}) for name, rows in judged.items()},
            "distinct": None if verdicts is None else _groups(judged["confirmed"] or [], verdicts),
        },
        "skipped": _skipped(seeds),
        "findings": {
            "looked": looked,
            "failing": sum(row["failing"] for row in seeds),
            "kept": len(findings),
            **{name: None if rows is None else len(rows) for name, rows in judged.items()},
        },
    }


def _judged(
    failing: list[Mapping[str, Any]], verdicts: Mapping[str, Verdict] | None
) -> dict[str, list[Mapping[str, Any]] | None]:
    if verdicts is None:
        return {"valid": None, "label_kept": None, "confirmed": None}
    known = [(row, verdicts[row["id"]]) for row in failing if row["id"] in verdicts]
    return {
        "valid": [row for row, said in known if said["valid"]],
        "label_kept": [row for row, said in known if said["label_kept"]],
        "confirmed": [row for row, said in known if said["valid"] and said["label_kept"]],
    }


def _groups(confirmed: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Verdict]) -> int:
    return len({verdicts[row["id"]].get("group") for row in confirmed} - {None})


def _skipped(seeds: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    statuses = [row["status"] for row in seeds]
    return {
        "misclassified": statuses.count("skipped: misclassified"),
        "non_finite": statuses.count("skipped: non-finite"),
        "reconstruction": statuses.count("skipped: reconstruction"),
        "out_of_time": statuses.count("out of time"),
        "waiting": statuses.count("waiting"),
    }
