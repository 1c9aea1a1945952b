"""What the label check and people say of a run's failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.statistics import Rate
from hardcase.wording.numbers import span

__all__ = ["accepted_between", "against_people_in_words", "lost_in_words", "people_said"]

MEASURES_ALONE = "none"
"""The method of a run without a search."""
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
    against_people = judge.get("against_people")
    if not against_people:
        method = record.get("method", MEASURES_ALONE)
        return "never held against people" + ("" if method == MEASURES_ALONE else f" for {method}")
    precision = Rate.from_json(against_people["precision"])
    text = (
        f"of the images of {against_people['method']} that people rated it accepted rightly"
        f" {precision}"
    )
    if against_people["losses"] < ENOUGH_LOSSES:
        text += f"; {against_people['losses']} of them had lost their label, too few to say more"
    return text


def people_said(people: Mapping[str, Any]) -> str:
    """What people said of a run (``"people"`` of its record) in words.

    >>> people_said({"rated": 9, "confirmed": 4, "undecided": 1, "rate": None})
    '4 confirmed and 1 undecided of 9 rated'
    """
    rate = people.get("rate")
    counts = f"{people['confirmed']} confirmed and {people['undecided']} undecided of"
    how_many = _asked_in_words(people.get("asked") or {})
    if not rate:
        return f"{counts} {people['rated']} rated{how_many}"
    low, value, high = (f"{100 * rate[name]:.1f}" for name in ("low", "value", "high"))
    return (
        f"{value} % of {rate['searched']} searched images confirmed [{low}, {high}]; "
        f"{rate['rated']} of {rate['failing']} rated ({counts} these){how_many}"
    )


def _asked_in_words(drawn: Mapping[str, Any]) -> str:
    """By how many people, and how the images were chosen, if they were by what was seen."""
    if not drawn.get("answers"):
        return f"; {drawn['left_out']} answers do not count" if drawn.get("left_out") else ""
    people = drawn["people"]
    who = "one person" if people == 1 else f"{people} people"
    return (
        f"; {drawn['answers']} answers by {who}, images drawn with known chances:"
        f" {'; '.join(drawn['chosen'])}; {drawn['checks_passed']} of {drawn['checks']} check images"
        " named rightly"
    )


def lost_in_words(risk: Mapping[str, Any]) -> str:
    """Return which share of random failing images no longer shows what the seed showed."""
    sentences = list[str]()
    for key in ("lost_labels", "lost_labels_people"):
        share = risk.get(key)
        if not share:
            continue
        who = f"{share['people']} people call" if "people" in share else "the label check calls"
        text = f"{who} {share['lost']} lost, {share['decided'] - share['lost']} kept"
        if share["shown"] > share["decided"]:
            text += f" and {share['shown'] - share['decided']} unsure"
        text += f" (so {span(share['low'], share['high'])} % lost their label)"
        if share.get("unreadable"):
            text += f", and misreads {share['unreadable']} more even unmodified"
        sentences.append(text)
        shown = share["shown"]
    if not sentences:
        return "no judge was asked whether the failing images still show what they showed"
    text = f"of {shown} random failing images {'; '.join(sentences)}"
    share = risk.get("lost_labels") or {}
    if share.get("perhaps_mislabelled"):
        text += (
            f"; {len(share['perhaps_mislabelled'])} of their {share['images']:,} images"
            " may be mislabelled"
        )
    return text
