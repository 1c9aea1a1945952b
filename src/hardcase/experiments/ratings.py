"""What people said of rated images: confusion, leaning, acceptability, time, winners (SINVAD's RQ1)."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardcase import statistics
from hardcase.errors import Problem

COLUMNS = ("rater", "item", "source_score", "target_score", "seconds")


@dataclass(frozen=True, slots=True)
class Rating:
    """One answer: how much the image looks like the source and like the target class (1 to 5), and how long that took."""

    rater: str
    quadruple: int
    method: str
    source: int
    target: int
    seconds: float

    @property
    def confusion(self) -> int:
        """Eq. 2: 5 where both classes are equally likely, 1 where one is certain."""
        return 5 - abs(self.target - self.source)

    @property
    def leaning(self) -> int:
        """Positive where the image still looks more like its source."""
        return self.source - self.target

    @property
    def acceptability(self) -> int:
        return self.source + self.target


def read(path: Path) -> list[Rating]:
    """Ratings from a CSV file with the columns `COLUMNS`; an item is ``q012-fgsm``."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise Problem(f"the ratings {path} cannot be read: {error.strerror or error}") from error
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise Problem(
            f"{path} has no column {missing[0]!r} or no rows.", f"columns: {', '.join(COLUMNS)}"
        )
    return [_rating(row, path, number) for number, row in enumerate(rows, 2)]


def _rating(row: Mapping[str, str], path: Path, line: int) -> Rating:
    try:
        quadruple, _, method = row["item"].partition("-")
        source, target = int(row["source_score"]), int(row["target_score"])
        if not (1 <= source <= 5 and 1 <= target <= 5 and quadruple.startswith("q") and method):
            raise ValueError
        return Rating(
            row["rater"], int(quadruple[1:]), method, source, target, float(row["seconds"])
        )
    except (ValueError, TypeError):
        raise Problem(
            f"{path}, line {line} is no rating: {dict(row)}.",
            fix="item q012-fgsm, scores 1 to 5, seconds a number",
        ) from None


def by_method(
    ratings: Sequence[Rating], value: Callable[[Rating], float]
) -> dict[str, list[float]]:
    """All values by method, in the order in which methods first occur."""
    groups: dict[str, list[float]] = {}
    for rating in ratings:
        groups.setdefault(rating.method, []).append(value(rating))
    return groups


def by_image(ratings: Sequence[Rating], value: Callable[[Rating], float]) -> dict[str, list[float]]:
    """The mean of each image, by method."""
    sums: dict[tuple[str, int], list[float]] = {}
    for rating in ratings:
        sums.setdefault((rating.method, rating.quadruple), []).append(value(rating))
    groups: dict[str, list[float]] = {}
    for (method, _), values in sorted(sums.items()):
        groups.setdefault(method, []).append(sum(values) / len(values))
    return groups


@dataclass(frozen=True, slots=True)
class Winner:
    """The most confusing method of a quadruple; `sure` where Welch's test against the next one gives p < 0.05."""

    quadruple: int
    method: str
    sure: bool


def winners(ratings: Sequence[Rating]) -> list[Winner]:
    """Figure 11: per seed, whose image was the most confusing."""
    per: dict[int, dict[str, list[float]]] = {}
    for rating in ratings:
        per.setdefault(rating.quadruple, {}).setdefault(rating.method, []).append(rating.confusion)
    return [_winner(quadruple, methods) for quadruple, methods in sorted(per.items())]


def _winner(quadruple: int, methods: Mapping[str, list[float]]) -> Winner:
    ranked = sorted(methods.items(), key=lambda item: (-sum(item[1]) / len(item[1]), item[0]))
    if len(ranked) < 2 or min(len(ranked[0][1]), len(ranked[1][1])) < 2:
        return Winner(quadruple, ranked[0][0], False)
    return Winner(quadruple, ranked[0][0], statistics.welch(ranked[0][1], ranked[1][1]).p < 0.05)


def inattentive(ratings: Sequence[Rating]) -> set[str]:
    """Raters who saw, in most of their real images, no more of the true class than of the other."""
    seen: dict[str, list[bool]] = {}
    for rating in ratings:
        if rating.method == "real":
            seen.setdefault(rating.rater, []).append(rating.source > rating.target)
    return {rater for rater, right in seen.items() if 2 * sum(right) <= len(right)}
