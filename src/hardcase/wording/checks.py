"""What the label check and people say of a run's failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.statistics import Rate
from hardcase.wording.numbers import span

__all__ = ["accepted_between", "against_people_in_words", "lost_in_words", "people_said"]

ENOUGH_LOSSES = 200
"""Rated losses of a label below which a precision says little of a method."""


def accepted_between(funnel: Mapping[str, int | None]) -> str | None:
    """Say how many searched images have an accepted failure: between all unsure ones lost and all
    unsure ones kept, without an interval; None where nobody judged.

    >>> accepted_between({"searched": 40, "accepted": 10, "unsure": 6})
    'between 10 and 16 of 40 (25.0 to 40.0 %)'
    >>> accepted_between({"searched": 40, "accepted": 10, "unsure": 0})
    '10 of 40 (25.0 %)'
    """
    accepted, unsure, total = (funnel[name] for name in ("accepted", "unsure", "searched"))
    if accepted is None:
        return None
    most = accepted + (unsure or 0)
    if not total:
        return f"{accepted} of {total}"
    low, high = (f"{100 * count / total:.1f}" for count in (accepted, most))
    if most == accepted:
        return f"{accepted} of {total} ({low} %)"
    return f"between {accepted} and {most} of {total} ({low} to {high} %)"


def against_people_in_words(record: Mapping[str, Any]) -> str:
    """Say how the label check did on images of the run's method that people rated, if there are
    any; a precision is said of no other method.
    """
    judge = record.get("judge") or {}
    found = judge.get("against_people")
    if not found:
        return f"never held against people for {record.get('method')}"
    precision = Rate.from_json(found["precision"])
    text = f"of the images of {found['method']} that people rated it accepted rightly {precision}"
    if found["losses"] < ENOUGH_LOSSES:
        text += f"; {found['losses']} of them had lost their label, too few to say more"
    return text


def people_said(people: Mapping[str, Any]) -> str:
    """What people said of a run (``"people"`` of its record) in words.

    >>> people_said({"rated": 9, "confirmed": 4, "undecided": 1, "rate": None})
    '4 confirmed and 1 undecided of 9 rated'
    """
    rate = people.get("rate")
    counts = f"{people['confirmed']} confirmed and {people['undecided']} undecided of"
    asked = _asked_in_words(people.get("asked") or {})
    if not rate:
        return f"{counts} {people['rated']} rated{asked}"
    low, value, high = (f"{100 * rate[name]:.1f}" for name in ("low", "value", "high"))
    return (
        f"{value} % of {rate['searched']} searched images confirmed [{low}, {high}]; "
        f"{rate['rated']} of {rate['failing']} rated ({counts} these){asked}"
    )


def _asked_in_words(asked: Mapping[str, Any]) -> str:
    """By how many people, and how the images were chosen, if they were by what was seen."""
    if not asked.get("answers"):
        return f"; {asked['left_out']} answers do not count" if asked.get("left_out") else ""
    people = asked["people"]
    who = "one person" if people == 1 else f"{people} people"
    return (
        f"; {asked['answers']} answers by {who}, images drawn with known chances:"
        f" {'; '.join(asked['chosen'])}; {asked['checks_passed']} of {asked['checks']} check images"
        " named rightly"
    )


def lost_in_words(risk: Mapping[str, Any]) -> str:
    """Return which share of random failing images no longer shows what the seed showed."""
    told = list[str]()
    for key in ("lost_labels", "lost_labels_people"):
        said = risk.get(key)
        if not said:
            continue
        who = f"{said['people']} people call" if "people" in said else "the judge calls"
        text = f"{who} {said['lost']} lost and {said['decided'] - said['lost']} kept"
        if said["shown"] > said["decided"]:
            text += f", {said['shown'] - said['decided']} unsure"
        text += f" ({span(said['low'], said['high'])} % lost)"
        if said.get("unreadable"):
            text += f", {said['unreadable']} more show images that it cannot read unmodified either"
        told.append(text)
        shown = said["shown"]
    if not told:
        return "no judge was asked whether the failing images still show what they showed"
    text = f"of {shown} random failing images {'; '.join(told)}"
    said = risk.get("lost_labels") or {}
    if said.get("perhaps_mislabelled"):
        text += f"; perhaps mislabelled: {len(said['perhaps_mislabelled'])} of {said['images']:,}"
    return text
