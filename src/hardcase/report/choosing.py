"""Which of many tests are shown: something of everything, smallest changes first."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from hardcase.report.sheet import Sheet


def triples(sheet: Sheet, count: int) -> list[int]:
    """One test of every distinct group of confirmed ones; until there are groups, spread over class pairs."""
    rows = np.flatnonzero(sheet.label)
    confirmed = [row for row in rows.tolist() if sheet.verdict(row) == "confirmed"]
    if not confirmed:
        return _whole(rows[spread(_pair(sheet)[rows], sheet.l2[rows], count)])
    rows, group = np.array(confirmed), _groups(sheet, confirmed)
    return _whole(rows[spread(group, sheet.l2[rows], min(count, len(np.unique(group))))])


def gallery(sheet: Sheet, count: int) -> list[int]:
    """Tests of every class pair, shown in the order of their classes."""
    rows = spread(_pair(sheet), sheet.l2, count)
    return _whole(rows[np.lexsort((sheet.l2[rows], sheet.predicted[rows], sheet.expected[rows]))])


def spread(group: Int[np.ndarray, " t"], size: Float[np.ndarray, " t"], count: int) -> Int[np.ndarray, " s"]:
    """At most `count` rows: the smallest of every group first, then the second smallest of each, and so on."""
    order = np.lexsort((size, group))
    place = np.arange(len(order))
    first = np.ones(len(order), dtype=bool)
    first[1:] = group[order][1:] != group[order][:-1]
    rank = place - np.maximum.accumulate(np.where(first, place, 0)) if len(order) else place
    return np.asarray(order[np.lexsort((size[order], rank))][:count])


def _pair(sheet: Sheet) -> Int[np.ndarray, " t"]:
    return np.asarray(sheet.expected.astype(np.int64) * 1_000_000 + sheet.predicted)


def _groups(sheet: Sheet, rows: list[int]) -> Int[np.ndarray, " r"]:
    """The judge's group of each row as a number; a row without one is a group of its own."""
    names = [(sheet.verdicts or {})[sheet.id[row]].get("group") for row in rows]
    known = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([-1 - row if name is None else known[name] for row, name in zip(rows, names)])


def _whole(rows: Int[np.ndarray, " r"]) -> list[int]:
    return [int(row) for row in rows]
