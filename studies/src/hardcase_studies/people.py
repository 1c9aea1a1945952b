"""Rating studies: the files that people are shown, how their answers are read, and tests of the differences."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hardcase import statistics, tensors
from hardcase.cache import make_folder, write_atomically
from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.suite.tables import csv_text

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Exhibition:
    """All that a rating page needs.

    Args:
        images: What is shown, by the name of its file in ``images/``.
        tables: CSV files by name, each with its head first.
        instructions: Questions, scales and what else ``study.json`` says.
    """

    images: Mapping[str, UInt8[Tensor, "c h w"]]
    tables: Mapping[str, Sequence[Sequence[object]]]
    instructions: Mapping[str, object]

    def write(self, folder: Path) -> None:
        """``images/``, one CSV file for each table, and ``study.json``."""
        make_folder(folder / "images")
        for name, image in self.images.items():
            write_atomically(folder / "images" / f"{name}.png", tensors.encode(image))
        for name, rows in self.tables.items():
            write_atomically(folder / f"{name}.csv", csv_text(rows))
        text = json.dumps(self.instructions, indent=2) + "\n"
        write_atomically(folder / "study.json", text.encode())


def shuffled(items: Sequence[Answer], rng: torch.Generator) -> list[Answer]:
    """`items` in a random order."""
    return [items[i] for i in torch.randperm(len(items), generator=rng).tolist()]


def raters(count: int, seed: int, *purpose: str) -> dict[str, torch.Generator]:
    """The names of so many people, each with random numbers of their own."""
    return {f"r{i:03d}": stream(seed, *purpose, i) for i in range(count)}


def read_table(path: Path, columns: Sequence[str], what: str) -> list[dict[str, str]]:
    """The rows of a CSV file with these columns; `what` is what an error calls it."""
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


def read_answers(
    path: Path,
    columns: Sequence[str],
    parse: Callable[[Mapping[str, str]], Answer],
    *,
    fix: str,
) -> list[Answer]:
    """What people answered.

    Args:
        path: A CSV file.
        columns: The columns that it must have.
        parse: Turns a row into an answer; a `ValueError` says that it is none.
        fix: What a row should look like.
    """
    found = []
    for line, row in enumerate(read_table(path, columns, "the ratings"), 2):
        try:
            found.append(parse(row))
        except (ValueError, TypeError):
            raise Problem(f"{path}, line {line} is no rating: {dict(row)}.", fix=fix) from None
        except LookupError as error:
            raise Problem(f"{path}, line {line}: {error.args[0]}", fix=fix) from None
    return found


def grouped(
    answers: Sequence[Answer], key: Callable[[Answer], str], value: Callable[[Answer], float]
) -> dict[str, list[float]]:
    """All values by key, in the order in which keys first occur."""
    groups: dict[str, list[float]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(value(answer))
    return groups


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
class PairTest:
    """Two methods on the originals of which both have an image: mean difference, Wilcoxon's p, and p by Holm over all pairs."""

    one: str
    two: str
    difference: float
    p: float
    corrected: float
    count: int


def pairs(values: Float[Tensor, "o m"], methods: Sequence[str]) -> list[PairTest]:
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
    return [
        PairTest(one, two, gap, p, holm, n) for (one, two, gap, p, n), holm in zip(made, corrected)
    ]
