"""People's answers about a run: stored with it, and entered into its verdicts.

``RUN/answers.jsonl`` has two lines for every question: how it was drawn, written before it is
shown, and the answer. Who asks, and how, is the companion ``hardcase-study``'s affair. A
person's answer about an image stands in place of the networks' verdict on this image, and changes
no other.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hardcase import cache
from hardcase.errors import HardcaseError
from hardcase.plain import read_plain
from hardcase.runs.files import require_plain
from hardcase.types import Verdicts

FILE = "answers.jsonl"
NONE = "none"
UNSURE = "unsure"
"""Answers that are no classes: none of these is visible, or the person is unsure."""


@dataclass(frozen=True, slots=True)
class PersonAnswer:
    """The answer of a person on an image."""

    image: str
    said: str
    expected: str
    rater: str
    seconds: float
    probability: float | None
    rule: str
    session: str
    check: bool = False

    @property
    def kept(self) -> bool:
        """Whether the person named the class of the original."""
        return self.said == self.expected

    @property
    def verdict(self) -> str:
        """The answer as a verdict."""
        if self.said == UNSURE:
            return "unsure"
        if self.said == NONE:
            return "foreign"
        return "kept" if self.kept else "lost"


class AnswerFile:
    """The answers of a session, written as they come; each line is on disk before it returns.

    Args:
        run: The folder of the run.
        rater: Who answers; by default somebody whom nobody knows.
    """

    def __init__(self, run: Path, *, rater: str = "") -> None:
        self.path = run / FILE
        self.session = secrets.token_hex(4)
        self.rater = rater or f"rater-{self.session}"

    def ask(self, image: str, question: Mapping[str, Any]) -> None:
        """Store the next question, and how it was drawn."""
        self._append({"asked": image, "session": self.session, "at": time.time(), **question})

    def add(self, answer: PersonAnswer) -> None:
        """Store an answer."""
        self._append({"answered": answer.image, "at": time.time(), **asdict(answer)})

    def _append(self, row: Mapping[str, Any]) -> None:
        require_plain(self.path)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise cache.unwritable(self.path, error) from error


def read_answers(run: Path) -> list[PersonAnswer]:
    """Return what people answered about a run, checks included; of an image the last answer."""
    path = run / FILE
    if not path.exists():
        return []
    by_question: dict[tuple[str, bool], PersonAnswer] = {}
    try:
        for line in read_plain(path).decode().splitlines():
            row = json.loads(line)
            if "answered" in row:
                answer = PersonAnswer(**{name: row[name] for name in PersonAnswer.__slots__})
                by_question[answer.image, answer.check] = answer
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HardcaseError(
            f"{path} cannot be read: {type(error).__name__} {error}",
            fix="remove its damaged line, or the file",
        ) from error
    return list(by_question.values())


def trusted(answers: Sequence[PersonAnswer]) -> list[PersonAnswer]:
    """Leave out the sessions in which most check images were named wrongly."""
    checks: dict[str, list[bool]] = {}
    for answer in answers:
        if answer.check:
            checks.setdefault(answer.session, []).append(answer.kept)
    bad = {name for name, passed in checks.items() if 2 * sum(passed) < len(passed)}
    return [answer for answer in answers if answer.session not in bad]


def apply_answers(
    verdicts: Verdicts, ids: Sequence[str], answers: Sequence[PersonAnswer]
) -> Verdicts:
    """Let a person's answer about a failure stand in place of the networks' verdict on it; the
    column ``by`` says who decided.
    """
    by_image = {answer.image: answer.verdict for answer in answers if not answer.check}
    by = verdicts.columns["by"]
    return replace(
        verdicts,
        verdict=[
            by_image.get(name, word) for name, word in zip(ids, verdicts.verdict, strict=True)
        ],
        columns={
            **verdicts.columns,
            "by": ["person" if name in by_image else who for name, who in zip(ids, by)],
        },
    )
