"""Whether a published claim was met here, computed from stored results by rules that were fixed before them.

A claim has up to three tests, each of one figure with its 95 % interval:

* *direction*: the interval lies wholly above (or below) what the paper compares with;
* *size*: it lies inside half to twice the published value, or, for rates, within five percentage points of it;
* *threshold*: its nearer end lies beyond the threshold that the paper names.

The verdict on a figure is the first of these that applies: *inconclusive* with fewer than six independent units or without an
interval; *yes* where every test holds; *partly* where the direction holds and the size does not; *no* where the direction is the
opposite, the threshold is missed by the whole interval, or the interval lies wholly outside the size's band; else *inconclusive*.

An item of a paper has one or more figures: it is *yes* where all are, *no* where at least one is and none is yes or partly,
*inconclusive* where all are, and *partly* otherwise; also where a figure that may miss does miss. Imports no torch.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Verdict = Literal["yes", "partly", "no", "inconclusive"]
Holds = Literal["holds", "fails", "open"]

LEAST_UNITS = 6
"""Fewer runs, trainings or images than this say nothing."""
BAND = (0.5, 2.0)
"""A size is met inside these multiples of the published value."""
POINTS = 5.0
"""A rate's size is met within so many percentage points."""
MATRIX = Path(__file__).with_name("papers.toml")


@dataclass(frozen=True, slots=True)
class Figure:
    """A stored number with its interval (NaN where it has none) and how many units it rests on."""

    value: float
    low: float = math.nan
    high: float = math.nan
    units: int | None = None

    @property
    def known(self) -> bool:
        return not math.isnan(self.low)

    def scaled(self, factor: float) -> Figure:
        return Figure(factor * self.value, factor * self.low, factor * self.high, self.units)

    def __str__(self) -> str:
        shown = f"{self.value:.3g}"
        return f"{shown} [{self.low:.3g}, {self.high:.3g}]" if self.known else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is asked of one figure. `above`, `below`: a number or another figure; `rate`: in percent."""

    figure: Figure
    above: Figure | None = None
    below: Figure | None = None
    published: float | None = None
    rate: bool = False
    at_least: float | None = None
    at_most: float | None = None

    def direction(self) -> Holds | None:
        """Whether the figure lies on the claimed side."""
        if self.above is not None:
            return _beyond(self.figure, self.above)
        if self.below is not None:
            return _beyond(self.below, self.figure)
        return None

    def threshold(self) -> Holds | None:
        if self.at_least is not None:
            return _beyond(self.figure, exactly(self.at_least))
        if self.at_most is not None:
            return _beyond(exactly(self.at_most), self.figure)
        return None

    def size(self) -> Holds | None:
        """Whether the interval lies inside the band around the published value, or wholly outside."""
        if self.published is None:
            return None
        low, high = self.band()
        if low <= self.figure.low and self.figure.high <= high:
            return "holds"
        if self.figure.high < low or high < self.figure.low:
            return "fails"
        return "open"

    def band(self) -> tuple[float, float]:
        if self.published is None:
            return -math.inf, math.inf
        if self.rate:
            return self.published - POINTS, self.published + POINTS
        low, high = sorted(factor * self.published for factor in BAND)
        return low, high

    def verdict(self) -> Verdict:
        few = self.figure.units is not None and self.figure.units < LEAST_UNITS
        if few or not self.figure.known:
            return "inconclusive"
        tests = [self.direction(), self.threshold(), self.size()]
        given = [test for test in tests if test is not None]
        if given and all(test == "holds" for test in given):
            return "yes"
        if tests[0] == "holds":
            return "partly"
        return "no" if "fails" in given else "inconclusive"


def exactly(value: float) -> Figure:
    """A number that is given, without uncertainty."""
    return Figure(value, value, value)


def _beyond(upper: Figure, lower: Figure) -> Holds:
    """Whether one interval lies wholly above the other; a figure without one counts as a point."""
    least = upper.low if upper.known else upper.value
    most = lower.high if lower.known else lower.value
    if least > most:
        return "holds"
    highest = upper.high if upper.known else upper.value
    lowest = lower.low if lower.known else lower.value
    return "fails" if highest < lowest else "open"


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on an item of several figures."""
    found = set(verdicts)
    if found == {"yes"}:
        return "yes"
    if not found or found == {"inconclusive"}:
        return "inconclusive"
    if "no" in found and not found & {"yes", "partly"}:
        return "no"
    return "partly"


# --- reading figures from stored results -------------------------------------------------------

_NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_UNITS = re.compile(r"\(t, (\d+) |no interval: (\d+) ")
_ALL = re.compile(rf"({_NUMBER}) ?%? in all (\d+)")
_COUNT = re.compile(r"(\d[\d,]*) of (\d[\d,]*)")


def read_figure(cell: object, pick: str | None = None) -> Figure:
    """The figure of a cell: ``0.07 [0.06, 0.08]``, ``25 of 30 = 83.3% [66, 93]``, ``100 % in all 24`` or a plain number.

    A share that is the same in all units, and a count without an interval, get the interval of a share.
    """
    text = str(cell)
    if pick is not None:
        found = re.search(pick, text)
        if found is None:
            raise ValueError(f"nothing in {text!r} is like {pick!r}")
        text = found[1]
    whole = _ALL.search(text)
    if whole:
        return _same_in_all(_number(whole[1]), int(whole[2]), percent="%" in text)
    count = _COUNT.search(text)
    units = next((int(n) for found in _UNITS.findall(text) for n in found if n), None)
    numbers = [_number(n) for n in re.findall(_NUMBER, text.rpartition("= ")[2])]
    if "[" in text:
        value, low, high = numbers[:3]
        return Figure(value, low, high, units or (int(count[2]) if count else None))
    if count:
        return _counted(int(_number(count[1])), int(_number(count[2])))
    return Figure(numbers[0], units=units)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _same_in_all(value: float, units: int, *, percent: bool) -> Figure:
    if percent and value in (0.0, 100.0):
        return _counted(units if value else 0, units)
    return Figure(value, value, value, units)


def _counted(hits: int, of: int) -> Figure:
    """A share in percent."""
    from hardcase.statistics import binomial_interval

    low, high = binomial_interval(hits, of)
    return Figure(100 * hits / max(of, 1), 100 * low, 100 * high, of)


class NotStoredError(LookupError):
    """A result, or a table of it that was added since, is not stored."""


@dataclass(frozen=True)
class Store:
    """The stored results of a folder, read once each."""

    folder: Path
    _records: dict[str, dict[str, Any] | None] = field(default_factory=dict)

    def record(self, name: str) -> dict[str, Any] | None:
        if name not in self._records:
            path = self.folder / f"{name}.json"
            there = path.is_file()
            self._records[name] = json.loads(path.read_text(encoding="utf-8")) if there else None
        return self._records[name]

    def first(self, names: str | Sequence[str]) -> str:
        """The first of these results that is stored."""
        every = (names,) if isinstance(names, str) else names
        for name in every:
            if self.record(name) is not None:
                return name
        raise NotStoredError(f"none of {', '.join(every)} is stored")

    def rows(self, name: str, table: str) -> dict[str, dict[str, Any]]:
        """The rows of the first table whose title begins with `table`."""
        record = self.record(name)
        if record is None:
            raise NotStoredError(f"{name} is not stored")
        titles = [row["table"] for row in record["rows"] if row["table"].startswith(table)]
        if not titles:
            raise NotStoredError(f"{name} has no table {table!r}")
        rows: dict[str, dict[str, Any]] = {}
        for row in record["rows"]:
            if row["table"] == titles[0]:
                rows.setdefault(row["row"], {"row": row["row"]})[row["column"]] = row["value"]
        return rows

    def figure(self, place: Mapping[str, Any]) -> Figure:
        """The figure at ``{file, table, row, column}``; a row is named, or given by cells that it has."""
        rows = self.rows(place["file"], place.get("table", ""))
        row = _row(rows, place["row"])
        if place["column"] not in row:
            raise NotStoredError(f"{place['file']} has no column {place['column']!r}")
        found = read_figure(row[place["column"]], place.get("pick")).scaled(place.get("scale", 1))
        units = place.get("units", found.units)
        if units == "repeats":  # of the stored command
            record = self.record(place["file"]) or {}
            units = int(re.findall(r"--repeats (\d+)", record["command"])[0])
        elif isinstance(units, str):  # a column that counts them
            units = int(_number(re.findall(_NUMBER, str(row[units]))[0]))
        return Figure(found.value, found.low, found.high, units)

    def share(self, place: Mapping[str, Any]) -> Figure:
        """Of the rows of a table that have such a cell, the percentage whose interval lies above `beyond`
        (or below, with `side`); the rows are the units."""
        rows = self.rows(place["file"], place.get("table", "")).values()
        cells = [read_figure(row[place["column"]]) for row in rows if row.get(place["column"])]
        if not cells:
            raise NotStoredError(f"{place['file']} has no column {place['column']!r}")
        beyond = exactly(place.get("beyond", 0.0))
        below = place.get("side") == "below"
        pairs = [(beyond, cell) if below else (cell, beyond) for cell in cells]
        return _counted(sum(_beyond(*pair) == "holds" for pair in pairs), len(cells))


def _row(rows: Mapping[str, Mapping[str, Any]], wanted: Any) -> Mapping[str, Any]:
    if isinstance(wanted, str):
        wanted = {"row": wanted}
    for row in rows.values():
        if all(row.get(column) == value for column, value in wanted.items()):
            return row
    raise NotStoredError(f"no row has {dict(wanted)}")


# --- the matrix --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A table, figure or question of a document, as `papers.toml` has it.

    Args:
        document: Key of the document.
        item: What the document calls it.
        claim: What it says, in its words and numbers.
        command: What we run.
        scope: Substituted data, networks and sizes; empty where nothing was.
        place: File and table of the figures, where a test names no other.
        tests: What is asked of which stored figures; those that are `shown` do not decide.
        result: What a reader must know beside the figures.
        absent: Why it cannot be had; empty where it can.
        tried: What stopped it and what it would need, while no result is stored; alone where it came to no figure.
        built: The test that holds what is no claim but an algorithm or a definition.
    """

    document: str
    item: str
    claim: str
    command: str
    scope: str = ""
    place: Mapping[str, Any] = field(default_factory=dict)
    tests: tuple[Mapping[str, Any], ...] = ()
    result: str = ""
    absent: str = ""
    tried: str = ""
    built: str = ""

    def at(self, place: Mapping[str, Any]) -> dict[str, Any]:
        """A place with what the item says of all of them."""
        return {**self.place, **place}


@dataclass(frozen=True, slots=True)
class Judged:
    """An item with what was found: a verdict, or why there is none."""

    item: Item
    verdict: str
    figures: tuple[tuple[str, Figure, Verdict], ...]
    files: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The figures in words."""
        parts = [f"{label} {figure}".strip() for label, figure, _ in self.figures]
        return "; ".join([*parts, *filter(None, [self.item.result])])


@dataclass(frozen=True, slots=True)
class Matrix:
    """The documents' titles, their items, what audits found wrong, and results known when the rules were written."""

    documents: Mapping[str, str]
    items: tuple[Item, ...]
    errors: tuple[Mapping[str, str], ...]
    known: Mapping[str, str]

    def of(self, document: str) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.document == document)

    def was_known(self, judged: Judged, store: Store) -> bool:
        """Whether the rule was written when a result that it judges was known."""
        records = ((name, store.record(name) or {}) for name in judged.files)
        return any(
            record.get("checksum", "").startswith(self.known.get(name, "-"))
            for name, record in records
        )


@cache
def matrix(path: Path = MATRIX) -> Matrix:
    """The matrix as data."""
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    items = tuple(Item(**{**row, "tests": tuple(row.get("tests", ()))}) for row in told["items"])
    return Matrix(told["documents"], items, tuple(told["errors"]), told["known"])


def judge(item: Item, store: Store) -> Judged:
    """The verdict on an item by its stored figures."""
    if item.absent:
        return Judged(item, "cannot be had", ())
    if item.built:
        return Judged(item, "built", ())
    if not item.tests:
        return Judged(item, "tried", ())
    try:
        return _judged(item, store)
    except NotStoredError:
        return Judged(item, "tried" if item.tried else "not run", ())


def _judged(item: Item, store: Store) -> Judged:
    figures = []
    deciding = []
    used: list[str] = []
    missing = False
    for test in item.tests:
        try:
            claim = _claim(item, test, store, used)
        except NotStoredError:
            if test.get("optional"):
                missing = True
                continue
            raise
        figures.append((str(test.get("label", "")), claim.figure, claim.verdict()))
        if not test.get("shown"):
            deciding.append(claim.verdict())
    verdict = joined(deciding)
    if missing and verdict == "yes":
        verdict = "partly"  # not all that the document says was asked
    return Judged(item, verdict, tuple(figures), tuple(dict.fromkeys(used)))


def _claim(item: Item, test: Mapping[str, Any], store: Store, used: list[str]) -> Claim:
    """What a test asks; the results that it reads are added to `used`."""
    limits = ("published", "rate", "at_least", "at_most")
    found: dict[str, Any] = {key: test[key] for key in limits if key in test}
    for key in ("figure", "above", "below"):
        place = test.get(key)
        if isinstance(place, Mapping | Sequence):
            found[key] = _first_figure(item, place, store, used)
        elif place is not None:
            found[key] = exactly(float(place))
    return Claim(**found)


def _first_figure(
    item: Item,
    places: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    store: Store,
    used: list[str],
) -> Figure:
    """The figure at a place, or at the first of several that is stored."""
    several = [places] if isinstance(places, Mapping) else list(places)
    for number, place in enumerate(several):
        try:
            whole = item.at(place)
            whole["file"] = store.first(whole["file"])
            figure = store.share(whole) if whole.get("share") else store.figure(whole)
        except NotStoredError:
            if number == len(several) - 1:
                raise
            continue
        used.append(whole["file"])
        return figure
    raise NotStoredError(f"{item.item}: no place is given")
