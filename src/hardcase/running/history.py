"""The growth curves of a run: a row for every shard at first, then fewer, so that the file stays small for ever."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from hardcase.store.mending import set_aside

COLUMNS = ["seconds", "queries", "gradients", "seeds_done", "failing_seeds", "findings"]
LONGEST = 2000
"""Rows after which every second one is dropped."""

Row = list[float]


def read(path: Path) -> list[Row]:
    """The rows that are whole. If some are not, the file is set aside and the good rows go on."""
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8", errors="replace"))))[1:]
    except (OSError, csv.Error):
        return []
    rows = [row for line in lines if (row := _numbers(line)) is not None]
    if len(rows) < len(lines):
        set_aside(path)
    return rows


def to_csv(rows: list[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue().encode()


def thinned(rows: list[Row]) -> list[Row]:
    """`rows`, or every second one of them with the last if there are too many."""
    return rows if len(rows) <= LONGEST else [*rows[:-1:2], rows[-1]]


def _numbers(line: list[str]) -> Row | None:
    try:
        first, *rest = line
        row: Row = [float(first), *map(int, rest)]
    except ValueError:
        return None
    return row if len(row) == len(COLUMNS) else None
