"""What runs count: the search results, the kinds of failures, the status of a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    *("METRICS", "STEPS", "Metric", "Verdict", "accepted_by", "count", "verdict_status"),
]

STEPS = (
    *("images", "correctly_classified", "searched", "failing", "witnessed", "accepted", "unsure"),
    *("confirmed", "clusters"),
)
"""Counts of images, except `distinct`, which counts groups. Steps that nobody judged are None, and
so is `confirmed` until people were asked.
"""

Verdict = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """A line of ``hardcase list metrics``: a number that runs report."""

    name: str
    summary: str
    needs: str
    paper: str = ""
    laws: tuple[str, ...] = ()


_INTERVAL = "Clopper and Pearson, Biometrika 1934"
_GROUPING = "Campello, Moulavi and Sander, PAKDD 2013; Hennig, CSDA 2007"
_SILENCE = "Geifman and El-Yaniv, NeurIPS 2017; Naeini et al., AAAI 2015"

_RATES = {
    "failing": ("a run", "images with a failure that leaves their label, of those searched"),
    "witnessed": (
        "witnesses",
        "images with a failure on which every witness keeps the label",
    ),
    "accepted": ("a judge", "images with a failure that keeps its label, by the judge"),
    "unsure": (
        "a judge",
        "images with no accepted failure, and with a failure of which the judge is unsure",
    ),
    "confirmed": ("people", "images with a failure that keeps its label, by a person"),
}
METRICS = (
    Metric(
        "correctly_classified",
        "images that the model classifies correctly, of all images",
        "labels",
    ),
    Metric("searched", "correctly classified images that were searched from", "a run"),
    *(Metric(name, text, needs, _INTERVAL) for name, (needs, text) in _RATES.items()),
    Metric(
        "clusters",
        "groups of accepted failures that look like one fault",
        "a judge",
        _GROUPING,
        ("same failures, same groups", "every accepted failure is in one group"),
    ),
    Metric(
        "high_confidence",
        "accepted failures on which the model is as confident as on correctly classified images",
        "a judge and the model's confidences",
        _SILENCE,
        ("one alarm threshold for all failures",),
    ),
    Metric("distance", "how far a failure is from its image in the method's own space", "a run"),
    Metric("l2", "Euclidean distance of a failure from its image in pixels", "a run"),
    Metric("linf", "largest change of a pixel of a failure", "a run"),
    Metric("queries", "images given to the model, per original and per failure", "a run"),
    Metric("gradients", "images whose gradient was asked for, per original", "a run"),
    Metric("witness_queries", "images given to witnesses, never charged to a budget", "witnesses"),
    Metric(
        "surrogate_queries",
        "images given to networks that stand for a black box, each with a gradient",
        "surrogates",
    ),
)
"""What runs count and measure."""


def count(
    seeds: Iterable[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    verdicts: Mapping[str, Verdict] | None,
    *,
    witnesses: bool = False,
    generated: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, int | None]]:
    """`funnel`, `skipped` and `findings` of run.json, from the rows of originals and failures
    (without images).

    A row of verdicts says of one failure its `verdict`, `by` whom, and its `group`.
    Without `witnesses` nobody is counted as witnessed: the step is None. Where originals were
    `generated`, the funnel begins with the samples and those that independent networks verified.
    """
    first = generated or {}
    statuses = Counter[str]()
    attempted = looked = left = 0
    for row in seeds:
        statuses[row["status"]] += 1
        attempted += row["status"] in ("done", "out of time") and row["evaluated"] > 0
        looked += row["evaluated"]
        left += row["failing"]
    unusable = statuses["skipped: misclassified"] + statuses["skipped: non-finite"]
    failing = [row for row in findings if row["kind"] == "label"]
    judged = _judged(failing, verdicts)
    witnessed = len({row["original"] for row in failing if row["witnessed"]}) if witnesses else None
    distinct = None
    if verdicts is not None:
        groups = {verdicts[row["id"]].get("group") for row in judged["accepted"] or []}
        distinct = len(groups - {None})
    return {
        "search_results": {
            **{name: first[name] for name in ("generated", "verified") if name in first},
            "images": statuses.total(),
            "correctly_classified": statuses.total() - unusable,
            "searched": attempted,
            "failing": len({row["original"] for row in failing}),
            "witnessed": witnessed,
            **{
                name: None if rows is None else len({row["original"] for row in rows})
                for name, rows in judged.items()
            },
            "clusters": distinct,
        },
        "skipped": {
            "misclassified": statuses["skipped: misclassified"],
            "non_finite": statuses["skipped: non-finite"],
            "target": statuses["skipped: target"],
            "reconstruction": statuses["skipped: reconstruction"],
            "out_of_time": statuses["out of time"],
            "waiting": statuses["waiting"],
        },
        "findings": {
            "evaluated": looked,
            "failing": left,
            "kept": len(findings),
            **{name: None if rows is None else len(rows) for name, rows in judged.items()},
        },
    }


def _judged(
    failing: list[Mapping[str, Any]], verdicts: Mapping[str, Verdict] | None
) -> dict[str, list[Mapping[str, Any]] | None]:
    """Return the failing failures that are accepted, unsure, and confirmed by people; unsure are
    those of images with no accepted finding.
    """
    if verdicts is None:
        return {"accepted": None, "unsure": None, "confirmed": None}
    status = {row["id"]: verdict_status(verdicts.get(row["id"])) for row in failing}
    accepted = [row for row in failing if status[row["id"]] == "accepted"]
    accepted_images = {row["original"] for row in accepted}
    unsure = [
        row
        for row in failing
        if status[row["id"]] == "unsure" and row["original"] not in accepted_images
    ]
    by_people = any(row.get("by") == "person" for row in verdicts.values())
    confirmed = [row for row in accepted if verdicts[row["id"]].get("by") == "person"]
    return {"accepted": accepted, "unsure": unsure, "confirmed": confirmed if by_people else None}


def verdict_status(verdict: Verdict | None) -> Literal["accepted", "refused", "unsure"]:
    """Return what a verdict comes to; unsure where nobody judged.

    >>> verdict_status({"verdict": "kept"}), verdict_status({"verdict": "foreign"})
    ('accepted', 'refused')
    >>> verdict_status(None)
    'unsure'
    """
    if verdict is None or verdict["verdict"] == "unsure":
        return "unsure"
    return "accepted" if verdict["verdict"] == "kept" else "refused"


def accepted_by(verdicts: Mapping[str, Verdict], finding: str) -> bool:
    """Whether the check of this failure says that it keeps its label."""
    return verdict_status(verdicts.get(finding)) == "accepted"
