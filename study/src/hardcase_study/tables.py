"""Answers as tables of numbers, for agreement and rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from hardcase_study.agreement import Level
from hardcase_study.answers import Given
from hardcase_study.bundle import Study
from hardcase_study.forms import NONE, UNSURE, Item

Array = np.ndarray
PRIMARY = {
    "label": ("label", "label"),
    "likert": ("scale", "score"),
    "same": ("same", "same"),
    "fault": ("change", "change"),
    "sinvad": ("resemble", "first"),
}
"""Of each design the form and the question whose agreement is told first."""
LEVELS: dict[str, Level] = {
    "label": "nominal",
    "likert": "ordinal",
    "same": "nominal",
    "fault": "nominal",
    "sinvad": "interval",
    "argus": "ordinal",
    "rank": "ordinal",
    "compare": "nominal",
}


def categories(study: Study) -> tuple[str, ...]:
    """All answers that the primary question of a study knows, "none" and "cannot tell" last."""
    fixed = {
        "same": ("yes", "no", UNSURE),
        "fault": ("more", "less", NONE, UNSURE),
        "likert": ("1", "2", "3", "4", "5"),
        "sinvad": ("1", "2", "3", "4", "5"),
    }
    return fixed.get(study.design, (*study.classes, NONE, UNSURE))


def rating_table(
    study: Study, given: Sequence[Given]
) -> tuple[Float[Array, "u r"], tuple[list[str], list[str]]]:
    """Answers to the primary question: a row per item, a column per rater, NaN where none is.

    Scales hold their numbers, other answers the number of their category.
    """
    form, name = PRIMARY[study.design]
    names = categories(study)
    rows = [one for one in given if study.items[one.item].form == form]
    items = sorted({one.item for one in rows})
    raters = sorted({one.rater for one in rows})
    place = {item: i for i, item in enumerate(items)}
    column = {rater: i for i, rater in enumerate(raters)}
    table = np.full((len(items), len(raters)), np.nan)
    numeric = LEVELS[study.design] != "nominal"
    for one in rows:
        value = one.value[name]
        number = float(value) if numeric else float(names.index(value))
        table[place[one.item], column[one.rater]] = number
    return table, (items, raters)


def shares(study: Study, given: Sequence[Given]) -> list[dict[str, Any]]:
    """Raw vote shares of every main item: what people said, before any model."""
    votes: dict[str, dict[str, int]] = {name: {} for name in study.main}
    for one in given:
        if one.item in votes:
            word = answered(study.items[one.item], one)
            votes[one.item][word] = votes[one.item].get(word, 0) + 1
    made = []
    for name, counts in votes.items():
        total = sum(counts.values())
        made.append({"item": name, "answers": total, "votes": dict(sorted(counts.items()))})
    return made


def answered(item: Item, one: Given) -> str:
    """An answer as one word: the choice, the two scores, the first of an order."""
    value = one.value
    if item.form in ("rank", "grade"):
        return str(value["order"][0])
    return "/".join(str(value[name]) for name in sorted(value))
