"""What runs count: the funnel, the kinds of findings, the status of a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hardcase.types import KINDS

__all__ = [
    *("METRICS", "STEPS", "Metric", "Verdict", "accepted_by", "count", "kinds_in_words"),
    *("settings_in_words", "verdict_status"),
]

STEPS = (
    *("images", "correctly_classified", "searched", "failing", "witnessed", "accepted", "unsure"),
    *("confirmed", "clusters"),
)
"""Counts of seeds, except `distinct`, which counts groups. Steps that nobody judged are None, and
so is `confirmed` until people were asked.
"""

Verdict = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of ``hardcase list metrics``: a number that runs report."""

    name: str
    summary: str
    needs: str
    paper: str = ""
    laws: tuple[str, ...] = ()


_INTERVAL = "Clopper and Pearson, Biometrika 1934"
_GROUPING = "Campello, Moulavi and Sander, PAKDD 2013; Hennig, CSDA 2007"
_SILENCE = "Geifman and El-Yaniv, NeurIPS 2017; Naeini et al., AAAI 2015"

_RATES = {
    "failing": ("a run", "images with a finding that leaves their label, of those attempted"),
    "witnessed": (
        "witnesses",
        "images with a failing finding on which every witness keeps the label",
    ),
    "accepted": ("a judge", "images with a failing finding that keeps its label, by the judge"),
    "unsure": ("a judge", "images with no accepted finding and one of which the judge is unsure"),
    "confirmed": ("people", "images with a failing finding that keeps its label, by a person"),
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
        "groups of accepted findings that look like one fault",
        "a judge",
        _GROUPING,
        ("same findings, same groups", "every accepted finding is in one group"),
    ),
    Metric(
        "high_confidence",
        "accepted findings on which the model is as confident as on correctly classified seeds",
        "a judge and the model's confidences",
        _SILENCE,
        ("one alarm threshold for all findings",),
    ),
    Metric("distance", "how far a finding is from its seed in the method's own space", "a run"),
    Metric("l2", "Euclidean distance of a finding from its seed in pixels", "a run"),
    Metric("linf", "largest change of a pixel of a finding", "a run"),
    Metric("queries", "images given to the subject, per seed and per finding", "a run"),
    Metric("gradients", "images whose gradient was asked for, per seed", "a run"),
    Metric("witness_queries", "images given to witnesses, never charged to a budget", "witnesses"),
    Metric(
        "surrogate_queries",
        "images given to networks that stand for a black box, each with a gradient",
        "surrogates",
    ),
)
"""What runs count and measure."""


_KIND_WORDS = {
    "label": ("failing", "failing"),
    "disagreement": ("disagreement", "disagreements"),
    "non_finite": ("answer that is not a number", "answers that are not numbers"),
    "surprise": ("surprise", "surprises"),
}


def settings_in_words(options: Mapping[str, Any]) -> str:
    """The options of a method as people write them; grey levels as parts of 255.

    Example:
        >>> settings_in_words({"epsilon": 8 / 255, "norm": "linf", "step_size": None})
        'epsilon 8/255, norm linf'
    """
    said = {name: value for name, value in options.items() if value not in (None, "")}
    return ", ".join(f"{name.replace('_', ' ')} {_setting(value)}" for name, value in said.items())


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and 0 < value < 1:
        levels = value * 255
        near = abs(levels - round(levels)) < 1e-6
        return f"{round(levels)}/255" if near and value * 100 % 1 > 1e-6 else f"{value:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def kinds_in_words(kinds: Mapping[str, int]) -> str:
    """How many findings there are of each kind; only what leaves its seed's label is failing.

    Example:
        >>> kinds_in_words({"label": 3, "disagreement": 5})
        '8 findings: 3 failing, 5 disagreements'
    """
    total = sum(kinds.values())
    head = f"{total:,} finding{'' if total == 1 else 's'}"
    some = [(name, number) for name in KINDS if (number := kinds.get(name, 0))]
    told = [f"{number:,} {_KIND_WORDS[name][number != 1]}" for name, number in some]
    return f"{head}: {', '.join(told)}" if told else head


def count(
    seeds: Iterable[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    verdicts: Mapping[str, Verdict] | None,
    *,
    witnesses: bool = False,
    generated: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, int | None]]:
    """`funnel`, `skipped` and `findings` of run.json, from the rows of seeds and findings (without
    images).

    A row of verdicts says of one finding its `verdict`, `by` whom, and its `group`.
    Without `witnesses` nobody is counted as witnessed: the step is None. Where seeds were
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
    kept = len({row["original"] for row in failing if row["witnessed"]}) if witnesses else None
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
            "witnessed": kept,
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
    """Return the failing findings that are accepted, unsure, and confirmed by people; unsure are
    those of seeds with no accepted finding.
    """
    if verdicts is None:
        return {"accepted": None, "unsure": None, "confirmed": None}
    status = {row["id"]: verdict_status(verdicts.get(row["id"])) for row in failing}
    accepted = [row for row in failing if status[row["id"]] == "accepted"]
    known = {row["original"] for row in accepted}
    unsure = [
        row for row in failing if status[row["id"]] == "unsure" and row["original"] not in known
    ]
    asked = any(row.get("by") == "person" for row in verdicts.values())
    confirmed = [row for row in accepted if verdicts[row["id"]].get("by") == "person"]
    return {"accepted": accepted, "unsure": unsure, "confirmed": confirmed if asked else None}


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
    """Whether the check of this finding says that it keeps its label."""
    return verdict_status(verdicts.get(finding)) == "accepted"
