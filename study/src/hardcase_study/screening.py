"""Which raters did not do what was asked: checks failed, too fast, one answer, out of line.

Nobody is thrown out: every result is given with all raters and without those flagged here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from hardcase_study.answers import Given
from hardcase_study.bundle import Study
from hardcase_study.forms import Item

FASTEST = 0.5
"""Seconds: a median below is no reading."""
FASTER = 1 / 3
"""Of the crowd's median time: a median below is suspicious."""
ALIKE = 0.9
"""A rater giving one answer to more than this share, where the others do so half as often."""
APART = 0.3
"""By how much a rater's agreement with others may be below the crowd's."""


@dataclass(frozen=True, slots=True)
class Screened:
    """One rater: the numbers and what is wrong with them (nothing, for most)."""

    rater: str
    answers: int
    checks: int
    passed: int
    repeats: int
    consistent: int
    seconds: float
    hidden: float
    agreement: float
    flags: tuple[str, ...]


def passed(item: Item, value: Mapping[str, Any]) -> bool:
    """Whether `value` is the right answer of an attention check."""
    name, right = item.truth
    if item.form == "resemble":
        return int(value[name]) > int(value[right])
    if item.form == "scale":
        return int(value["score"]) >= int(right)
    if item.form in ("rank", "grade"):
        return bool(value["order"][0] == right)
    return bool(value[name] == right)


def consistent(first: Item, again: Item, one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether a rater said the same of an item and of its twin; scales may differ by one."""
    twins = dict(zip(again.stimuli, first.stimuli))
    for name, value in one.items():
        if name.startswith("grade-"):  # named after the image, which has another id in the twin
            continue
        other = two[name]
        if name == "order":
            if twins[two["order"][0]] != value[0]:
                return False
        elif first.form in ("scale", "resemble"):
            if abs(int(value) - int(other)) > 1:
                return False
        elif twins.get(str(other), other) != value:
            return False
    return True


def screen(study: Study, given: Sequence[Given]) -> list[Screened]:
    """Every rater with an answer, the suspicious ones flagged."""
    by_rater: dict[str, list[Given]] = {}
    for one in given:
        by_rater.setdefault(one.rater, []).append(one)
    votes: dict[str, Counter[str]] = {}
    for one in given:
        votes.setdefault(one.item, Counter())[_mark(one)] += 1
    medians = {name: median(one.seconds for one in rows) for name, rows in by_rater.items()}
    usual = median(medians.values()) if medians else 0.0
    agreed = {name: _agreement(rows, votes, study) for name, rows in by_rater.items()}
    known = [value for value in agreed.values() if value == value]
    common = median(known) if known else float("nan")
    alike = {name: _alike(rows, study) for name, rows in by_rater.items()}
    typical = median(alike.values()) if alike else 0.0
    made = []
    for name, rows in sorted(by_rater.items()):
        right, checks = _checks(study, rows)
        same, twice = _repeats(study, rows)
        flags = []
        if checks and 2 * right <= checks:
            flags.append(f"passed {right} of {checks} checks")
        if twice and 2 * same < twice:
            flags.append(f"{same} of {twice} repeats answered alike")
        if usual and (medians[name] < FASTEST or medians[name] < FASTER * usual):
            flags.append(f"median {medians[name]:.1f} s, the crowd's {usual:.1f} s")
        if len(rows) >= 10 and alike[name] > ALIKE and typical < ALIKE / 2:
            flags.append(f"{100 * alike[name]:.0f} % of the answers are the same")
        if agreed[name] < common - APART:
            flags.append(
                f"agrees with others in {100 * agreed[name]:.0f} %, usual {100 * common:.0f} %"
            )
        hidden = sum(one.hidden for one in rows)
        made.append(
            Screened(
                name,
                len(rows),
                checks,
                right,
                twice,
                same,
                medians[name],
                hidden,
                agreed[name],
                tuple(flags),
            )
        )
    return made


def unflagged(study: Study, given: Sequence[Given]) -> list[Given]:
    """Answers of raters who are not suspicious; of all, where everybody is."""
    flagged = {one.rater for one in screen(study, given) if one.flags}
    return [one for one in given if one.rater not in flagged] or list(given)


def _mark(one: Given) -> str:
    """An answer as one word, for counting: of an order its first place."""
    value = one.value
    return str(value["order"][0]) if "order" in value else json.dumps(value, sort_keys=True)


def _agreement(rows: Sequence[Given], votes: Mapping[str, Counter[str]], study: Study) -> float:
    """The share of other people's answers, to the main items of a rater, that are like his own."""
    same = 0
    others = 0
    for one in rows:
        count = votes[one.item].total() - 1
        if study.items[one.item].use == "main" and count:
            same += votes[one.item][_mark(one)] - 1
            others += count
    return same / others if others else float("nan")


def _alike(rows: Sequence[Given], study: Study) -> float:
    plain = [_mark(one) for one in rows if "order" not in one.value and "better" not in one.value]
    return Counter(plain).most_common(1)[0][1] / len(plain) if plain else 0.0


def _checks(study: Study, rows: Sequence[Given]) -> tuple[int, int]:
    asked = [one for one in rows if study.items[one.item].use == "attention"]
    return sum(passed(study.items[one.item], one.value) for one in asked), len(asked)


def _repeats(study: Study, rows: Sequence[Given]) -> tuple[int, int]:
    own = {one.item: one.value for one in rows}
    same = 0
    count = 0
    for one in rows:
        item = study.items[one.item]
        if item.use == "repeat" and item.repeats in own:
            first = study.items[item.repeats]
            same += consistent(first, item, own[item.repeats], one.value)
            count += 1
    return same, count
