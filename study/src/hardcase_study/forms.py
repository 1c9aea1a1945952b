"""What is asked about one item: questions, their options, and which answers are well formed.

An answer is a mapping from the name of a question to the value of an option, or for an order to
all its values, best first. Nothing here knows which method made an image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hardcase.errors import HardcaseError

NONE = "none"
UNSURE = "unsure"
"""Answers that are no classes: "none of these" and "cannot tell"."""
SCORES = ("1", "2", "3", "4", "5")
GRADES = ("4", "3", "2", "1")
"""ARGUS's four-point scale: excellent, good, fair, poor."""
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stimulus:
    """One image of a study and, for the analysis alone, where it comes from."""

    id: str
    role: str
    seed: str
    expected: int
    predicted: int = -1
    run: str = ""
    method: str = ""
    finding: str = ""
    verdict: str = "unjudged"
    stratum: str = ""
    probability: float | None = None
    arm: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """One page: stimuli, perhaps a reference beside them, and the form that is filled in."""

    id: str
    form: str
    stimuli: tuple[str, ...]
    reference: str = ""
    labels: tuple[str, ...] = ()
    use: str = "main"
    truth: tuple[str, str] = ("", "")
    repeats: str = ""
    unit: str = ""
    quota: str = ""
    fixed: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """`options` are what is stored, `words` what is read: plain text, or ``@key`` of a language."""

    name: str
    kind: Literal["choice", "order"]
    text: str
    options: tuple[str, ...]
    words: tuple[str, ...]
    thing: str = ""
    about: str = ""


def questions(item: Item, thing: str = "") -> list[Question]:
    """The questions of `item`, in the order in which they are asked."""
    return FORMS[item.form](item, thing)


def checked(item: Item, given: Mapping[str, Any], thing: str = "") -> Answer:
    """`given` as an answer to `item`: every question answered once, with an option it has."""
    answer: Answer = {}
    for question in questions(item, thing):
        value = given.get(question.name)
        if question.kind == "order":
            right = isinstance(value, list) and sorted(map(str, value)) == sorted(question.options)
        else:
            right = isinstance(value, str) and value in question.options
        if not right:
            raise HardcaseError(
                f"{value!r} is no answer to question {question.name!r} of item {item.id}.",
                f"options: {', '.join(question.options)}",
            )
        answer[question.name] = value
    return answer


def _label(item: Item, thing: str) -> list[Question]:
    words = (*item.labels, "@none", "@unsure")
    return [Question("label", "choice", "label", (*item.labels, NONE, UNSURE), words)]


def _scale(item: Item, thing: str) -> list[Question]:
    words = tuple(f"@likert.{score}" for score in SCORES)
    return [Question("score", "choice", "likert", SCORES, words)]


def _resemble(item: Item, thing: str) -> list[Question]:
    words = tuple(f"@resemble.{score}" for score in SCORES)
    return [
        Question(name, "choice", "resemble", SCORES, words, thing=label)
        for name, label in zip(("first", "second"), item.labels)
    ]


def _rank(item: Item, thing: str) -> list[Question]:
    return [Question("order", "order", "rank", item.stimuli, item.stimuli)]


def _grade(item: Item, thing: str) -> list[Question]:
    words = tuple(f"@grade.{grade}" for grade in GRADES)
    scores = [
        Question(f"grade-{one}", "choice", "grade", GRADES, words, about=one)
        for one in item.stimuli
    ]
    return [*_rank(item, thing), *scores]


def _choose(item: Item, thing: str) -> list[Question]:
    words = ("@left", "@right", "@unsure")
    return [Question("better", "choice", "compare", (*item.stimuli, UNSURE), words)]


def _same(item: Item, thing: str) -> list[Question]:
    return [Question("same", "choice", "same", ("yes", "no", UNSURE), ("@yes", "@no", "@unsure"))]


def _change(item: Item, thing: str) -> list[Question]:
    options = ("more", "less", NONE, UNSURE)
    words = ("@more", "@less", "@unchanged", "@unsure")
    return [Question("change", "choice", "fault", options, words, thing=thing)]


FORMS = {
    "label": _label,
    "scale": _scale,
    "resemble": _resemble,
    "rank": _rank,
    "grade": _grade,
    "choose": _choose,
    "same": _same,
    "change": _change,
}
