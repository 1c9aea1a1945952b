"""The page of an analysis: one file, nothing loaded from elsewhere."""

from __future__ import annotations

from importlib import resources
from typing import Any

from hardcase_study.bundle import Study

MOST = 24
"""Images shown one by one: those people disagreed about most."""


def page(study: Study, found: dict[str, Any]) -> str:
    """`found` (see `hardcase_study.analysis.analyse`) as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hardcase_study", "pages")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    pages.filters.update(percent=_percent, number=_number, interval=_interval)
    style = resources.files("hardcase_study").joinpath("pages", "study.css").read_text("utf-8")
    return pages.get_template("report.html").render(
        study=study,
        found=found,
        style=style,
        lead=lead(study, found),
        disputed=_disputed(study, found),
        inline=study.inline,
        title=study.settings["title"] or f"What {_who(found)} saw",
    )


def _who(found: dict[str, Any]) -> str:
    return "a simulated crowd" if found["simulated"] else "people"


def lead(study: Study, found: dict[str, Any]) -> str:
    """The result in one or two sentences."""
    everyone = found["all"]
    count = everyone["raters"]
    who = "person" if count == 1 else "people"
    kind = "simulated raters (no people)" if found["simulated"] else who
    start = f"{count} {kind} gave {everyone['answers']} answers"
    if found["confirmed"]:
        told = []
        for name, rate in found["confirmed"].items():
            told.append(
                f"{name}: {_percent(rate['value'])} of {rate['searched']} searched images "
                "confirmed "
                f"({_percent(rate['low'])} to {_percent(rate['high'])}; {rate['rated']} of "
                f"{rate['failing']} rated)"
            )
        return f"{start}. {'; '.join(told)}."
    if found["lost_labels"]:
        from hardcase.analysis.conditions import lost_in_words

        lost = [
            f"{name}: {lost_in_words({'lost_labels_people': one})}"
            for name, one in found["lost_labels"].items()
        ]
        return f"{start}. {'; '.join(lost)}."
    return f"{start}."


def _disputed(study: Study, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Items of one image with their votes, the most disputed first."""
    rows = []
    for row in found["shares"]:
        item = study.items[row["item"]]
        if not row["answers"] or len(item.stimuli) != 1:
            continue
        stimulus = study.stimuli[item.stimuli[0]]
        top = max(row["votes"].values()) / row["answers"]
        votes = sorted(row["votes"].items(), key=lambda pair: -pair[1])
        own = study.classes[stimulus.expected]
        rows.append(
            {
                "top": top,
                "votes": votes,
                "answers": row["answers"],
                "image": study.inline(stimulus.id),
                "original": study.inline(item.reference) if item.reference else "",
                "method": stimulus.run or "real image",
                "expected": own,
                "predicted": study.class_name(stimulus.predicted),
                "verdict": stimulus.verdict,
            }
        )
    return sorted(rows, key=lambda one: (one["top"], -one["answers"]))[:MOST]


def _percent(value: float | None, digits: int = 0) -> str:
    return "–" if value is None or value != value else f"{100 * value:.{digits}f} %"


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None or value != value else f"{value:.{digits}f}"


def _interval(one: dict[str, Any] | None, digits: int = 2) -> str:
    """A value with the ends of its interval."""
    if one is None or one["value"] is None or one["value"] != one["value"]:
        return "–"
    if one["low"] is None or one["low"] != one["low"]:
        return f"{one['value']:.{digits}f} {one['kind']}".rstrip()
    low = _number(one["low"], digits)
    high = _number(one["high"], digits)
    return f"{one['value']:.{digits}f} ({low} to {high}) {one['kind']}".rstrip()
