"""What people said of ARGUS's images and its rivals': ranks and scores from a file, and how methods differ in them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase import statistics
from hardcase.errors import Problem

COLUMNS = ("rater", "item", "rank", "score")
KEY = ("item", "original", "method")
SCORES = {4: "excellent", 3: "good", 2: "fair", 1: "poor"}
_FIX = f"columns {', '.join(COLUMNS)}: an item of key.csv, its rank among the images of its original (1: most like it), a score of 4 to 1"


@dataclass(frozen=True, slots=True)
class Opinion:
    """One person on one image: its rank among those made from the same original (1 is best), and a score of 4 to 1."""

    rater: str
    original: str
    method: str
    rank: int
    score: int


def read(path: Path, key: Path) -> list[Opinion]:
    """Opinions from a CSV file with the columns `COLUMNS`; `key` is the study's ``key.csv``, which says what an item is."""
    items = {row["item"]: (row["original"], row["method"]) for row in _table(key, KEY, "the key")}
    found = [
        _opinion(row, items, path, line)
        for line, row in enumerate(_table(path, COLUMNS, "the ratings"), 2)
    ]
    _refuse_bad_rankings(found, path)
    return found


def _table(path: Path, columns: Sequence[str], what: str) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise Problem(
            f"{what} {path} cannot be read: {why}.", fix="--ratings FILE, --set key=FILE"
        ) from error
    missing = [name for name in columns if not rows or name not in rows[0]]
    if missing:
        raise Problem(
            f"{path} has no column {missing[0]!r} or no rows.", f"columns: {', '.join(columns)}"
        )
    return rows


def _opinion(
    row: Mapping[str, str], items: Mapping[str, tuple[str, str]], path: Path, line: int
) -> Opinion:
    if row["item"] not in items:
        raise Problem(
            f"{path}, line {line}: the key knows no item {row['item']!r}.",
            fix="the key.csv of this very study",
        )
    try:
        rank, score = int(row["rank"]), int(row["score"])
        if not row["rater"] or rank < 1 or score not in SCORES:
            raise ValueError
    except (ValueError, TypeError):
        raise Problem(f"{path}, line {line} is no rating: {dict(row)}.", fix=_FIX) from None
    return Opinion(row["rater"], *items[row["item"]], rank, score)


def _refuse_bad_rankings(found: Sequence[Opinion], path: Path) -> None:
    """The images that a person saw of one original have the ranks 1, 2, 3 ... once each."""
    groups: dict[tuple[str, str], list[Opinion]] = {}
    for opinion in found:
        groups.setdefault((opinion.rater, opinion.original), []).append(opinion)
    for (rater, original), some in groups.items():
        ranks = sorted(opinion.rank for opinion in some)
        if len({opinion.method for opinion in some}) < len(some):
            raise Problem(f"{path}: rater {rater} has rated an image of original {original} twice.")
        if ranks != list(range(1, len(some) + 1)):
            raise Problem(
                f"{path}: rater {rater} has given the {len(some)} images of original {original} the ranks {ranks}.",
                fix=f"every rank from 1 to {len(some)} once",
            )


@dataclass(frozen=True, slots=True)
class Ratings:
    """Means over the people: one row an original, one column a method, NaN where a method had no image."""

    methods: tuple[str, ...]
    rank: Float[Tensor, "o m"]
    score: Float[Tensor, "o m"]


def by_original(found: Sequence[Opinion], methods: Sequence[str]) -> Ratings:
    """`found` as tables, methods in the given order, then any other."""
    names = [*methods, *dict.fromkeys(o.method for o in found if o.method not in methods)]
    known = tuple(name for name in names if any(o.method == name for o in found))
    rows = {name: i for i, name in enumerate(dict.fromkeys(opinion.original for opinion in found))}
    place = torch.tensor([rows[o.original] * len(known) + known.index(o.method) for o in found])
    count = place.bincount(minlength=len(rows) * len(known))

    def means(values: Sequence[int]) -> Tensor:
        total = torch.zeros(len(count), dtype=torch.float64).index_add_(
            0, place, torch.tensor(values).double()
        )
        return (total / count).reshape(len(rows), len(known))

    return Ratings(known, means([o.rank for o in found]), means([o.score for o in found]))


@dataclass(frozen=True, slots=True)
class Friedman:
    """Do methods differ at all? `w` is Kendall's coefficient: 0 no agreement of the originals, 1 full; `blocks` took part."""

    statistic: float
    p: float
    w: float
    blocks: int


def friedman(values: Float[Tensor, "o m"]) -> Friedman | None:
    """Friedman's test (M. Friedman, 1937) over the originals of which every method has an image; None where it cannot be made."""
    from scipy.stats import friedmanchisquare

    whole = values[values.isfinite().all(1)]
    blocks, methods = whole.shape
    if blocks < 2 or methods < 3 or bool((whole == whole[:, :1]).all()):
        return None
    found = friedmanchisquare(*whole.T.numpy())
    return Friedman(
        float(found.statistic),
        float(found.pvalue),
        float(found.statistic) / (blocks * (methods - 1)),
        blocks,
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """Two methods on the originals of which both have an image: mean difference, Wilcoxon's p, and p by Holm over all pairs."""

    one: str
    two: str
    difference: float
    p: float
    corrected: float
    count: int


def pairs(values: Float[Tensor, "o m"], methods: Sequence[str]) -> list[Pair]:
    """Every two methods that share an original, in the order of `methods`."""
    made = []
    for i, j in combinations(range(len(methods)), 2):
        both = values[:, [i, j]]
        both = both[both.isfinite().all(1)]
        if len(both):
            test = statistics.wilcoxon(both[:, 0], both[:, 1])
            made.append(
                (methods[i], methods[j], float((both[:, 0] - both[:, 1]).mean()), test.p, len(both))
            )
    corrected = statistics.holm([row[3] for row in made])
    return [Pair(one, two, gap, p, holm, n) for (one, two, gap, p, n), holm in zip(made, corrected)]
