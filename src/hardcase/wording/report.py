"""What the report says and no other face does: its plot, its next steps, its pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hardcase.wording.numbers import difference, percent, rate
from hardcase.wording.summary import Word, conditions_name, short_name

__all__ = [
    *("NextStep", "PlotRow", "change_in_brief", "conditions_sentence", "next_steps", "plot_rows"),
    *("region_sentence", "unfinished_sentence"),
]

BRIEF = 3
"""Changes of an image that a caption names."""


class PlotRow(NamedTuple):
    """One line of the plot: a rate with the ends of its whisker, and how it is written."""

    name: str
    value: float
    low: float | None
    high: float | None
    text: str


def plot_rows(record: Mapping[str, Any]) -> list[PlotRow]:
    """Return what the plot of a measured run shows: every rate that bears on the decision."""
    risk = record.get("risk")
    if not risk:
        return []
    model = short_name(str(record.get("model", "the model")))
    others = risk.get("baselines") or []
    prefix = f"{model}, " if others else ""
    rows = [_row(f"{prefix}unmodified images", risk["unmodified"])]
    if record.get("conditions"):
        rows.append(_row(f"{prefix}{conditions_name(record)}", risk))
    region = risk.get("worst_region")
    if region:
        text = f"at least {100 * region['low']:.0f} %"
        rows.append(PlotRow("worst region found", region["value"], region["low"], None, text))
    for wider in risk.get("wider") or []:
        rows.append(_row(f"ranges {wider['scale']:g} times as wide", wider))
    for other in others:
        name = f"{short_name(other['name'])} (baseline)"
        if record.get("conditions"):
            name = f"{name}, {conditions_name(record)}"
        text = f"{percent(other['value'])}; difference {difference(other['difference'])}"
        rows.append(_row(name, other)._replace(text=text))
    return rows


def _row(name: str, found: Mapping[str, Any]) -> PlotRow:
    low, high = found.get("low"), found.get("high")
    text = percent(found["value"]) if low is None else rate(found)
    return PlotRow(name, found["value"], low, high, text)


def region_sentence(record: Mapping[str, Any]) -> str:
    """Return where the failure rate is highest; nothing where no region was found."""
    region = (record.get("risk") or {}).get("worst_region")
    if not region:
        return ""
    return (
        f"The worst region: {region['words']}. It was chosen on one half of the images and measured"
        f" on the other {region['images']:,}."
    )


def conditions_sentence(record: Mapping[str, Any]) -> str:
    """Return on what the failure rate rests: how many images, and the declared ranges."""
    risk = record.get("risk")
    if not risk:
        return ""
    images = f"{risk['images']:,}"
    if risk.get("of", risk["images"]) > risk["images"]:
        images += f" of {risk['of']:,}"
    what = f"{images} images"
    claims = record.get("claims")
    if claims:
        what = f"{images} claims about {claims['images']:,} images"
    where = f"Measured on {what} of {record.get('data')}"
    declared = dict(record.get("conditions") or {})
    if not declared:
        return f"{where}, unmodified."
    name = declared.pop("name", "declared")
    ranges = ", ".join(f"{key} {value}" for key, value in declared.items())
    return f"{where}, {risk['samples']} random samples each. {name.capitalize()}: {ranges}."


def unfinished_sentence(record: Mapping[str, Any]) -> str:
    """Return which phases of a run are not done yet; nothing where all are."""
    if record.get("complete"):
        return ""
    names = {"measure": "the measurement", "search": "the search", "check": "the label check"}
    phases = record.get("phases") or {}
    waiting = [names[key] for key in names if _status(phases, key) not in ("done", "skipped")]
    if not phases or not waiting:
        return "This run is not finished."
    return f"This run is not finished: {', '.join(waiting)} did not end."


def _status(phases: Mapping[str, Any], name: str) -> str:
    return str((phases.get(name) or {}).get("status", "not begun"))


class NextStep(NamedTuple):
    """Something to do, and the command for it where there is one."""

    text: str
    command: str = ""


def next_steps(
    word: Word,
    folder: str,
    *,
    complete: bool,
    unchecked: bool,
    declared: float | None,
    decide: Sequence[str],
) -> list[NextStep]:
    """Return what to do after a run.

    Args:
        word: What the run comes to.
        folder: The run folder, as a person types it.
        complete: Whether all its phases have ended.
        unchecked: Whether it has failures whose labels nobody has checked.
        declared: A limit on the failure rate that would pass, where none was declared.
        decide: What would decide the limits that are inconclusive.
    """
    steps = list[NextStep]()
    if not complete:
        steps.append(NextStep("Finish the run.", f"hardcase resume {folder}"))
    if word == "FAIL":
        steps.append(NextStep("Repair the model and prove it.", f"hardcase repair {folder}"))
    if word == "MEASURED" and declared is not None:
        command = f"hardcase gate {folder} --max-risk {declared:g}"
        steps.append(NextStep("Declare a limit.", command))
    steps += [NextStep(f"Decide it with {text.replace('RUN', folder)}.") for text in decide]
    if unchecked:
        steps.append(NextStep("Check the labels of the failures.", f"hardcase judge {folder}"))
    if word in ("PASS", "MEASURED") and complete:
        command = f"hardcase gate NEXT --baseline {folder}"
        steps.append(NextStep("Hold the next version against this one.", command))
    return steps


def change_in_brief(words: str | None) -> str:
    """Return the first changes of an image, and how many more there are.

    Example:
        >>> change_in_brief("tilted 3°, 9 % smaller, faded by 16 %, noise of 1 levels")
        'tilted 3°, 9 % smaller, faded by 16 % and 1 more'
    """
    changes = (words or "").split(", ")
    brief = ", ".join(changes[:BRIEF])
    more = len(changes) - BRIEF
    return f"{brief} and {more} more" if more > 0 else brief
