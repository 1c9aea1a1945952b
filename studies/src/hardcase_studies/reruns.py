"""Results of studies that are kept, and whether a re-run agrees with them.

A kept result is one row for each cell of each table. A re-run agrees in a cell if its number lies
in the 95 % prediction interval of a re-run of its size: for counts that of a beta-binomial law, for
numbers with an interval that of the difference of two such estimates. One cell in twenty lies
outside by chance, so a study disagrees only if more do than chance explains.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from scipy import stats

from hardcase.data.sources import load
from hardcase.environment import VERSION
from hardcase.errors import HardcaseError
from hardcase.suite.tables import Outcome, said
from hardcase_studies import stored
from hardcase_studies.bench import Bench

COLUMNS = ("table", "row", "column", "value")
LEVEL = 0.05
"""The share of cells that lie outside their intervals by chance."""
_COUNT = re.compile(r"([\d,]+) of ([\d,]+)\b")
_NUMBER = r"([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_INTERVAL = re.compile(rf"{_NUMBER} ?%? \[{_NUMBER} ?%?, {_NUMBER} ?%?\]")

Agreement = Literal["agrees", "differs", "not compared"]


@dataclass(frozen=True, slots=True)
class CheckedCell:
    """One cell of a table, as it was kept and as it is now."""

    table: str
    row: str
    column: str
    then: str
    now: str

    @property
    def agreement(self) -> Agreement:
        """What the two numbers say of each other.

        Example:
            >>> CheckedCell("t", "r", "c", "50 of 100", "55 of 100").agreement
            'agrees'
            >>> CheckedCell("t", "r", "c", "0.10 [0.08, 0.12]", "0.20 [0.18, 0.22]").agreement
            'differs'
        """
        if self.then == self.now:
            return "agrees"
        inside = _counts_agree(self.then, self.now)
        if inside is None:
            inside = _intervals_agree(self.then, self.now)
        if inside is None:
            return "not compared"
        return "agrees" if inside else "differs"


@dataclass(frozen=True, slots=True)
class Rerun:
    """All cells of a re-run beside those that were kept."""

    cells: tuple[CheckedCell, ...]
    lost: tuple[str, ...]
    """Cells that only one of the two has."""

    def count(self, agreement: Agreement) -> int:
        return sum(cell.agreement == agreement for cell in self.cells)

    @property
    def allowed(self) -> int:
        """Cells that may differ by chance: exceeded once in a hundred re-runs."""
        compared = self.count("agrees") + self.count("differs")
        return int(stats.binom.ppf(0.99, compared, LEVEL)) if compared else 0

    @property
    def agrees(self) -> bool:
        return not self.lost and self.count("differs") <= self.allowed

    def __str__(self) -> str:
        differs, compared = self.count("differs"), self.count("agrees") + self.count("differs")
        verdict = "agrees" if self.agrees else "does not agree"
        return (
            f"{verdict}: {differs} of {compared} cells lie outside the prediction interval of a"
            f" re-run (up to {self.allowed} by chance); {self.count('not compared')} have none;"
            f" {len(self.lost)} are only in one of the two"
        )


def keep(outcome: Outcome, bench: Bench, name: str, place: Path) -> Path:
    """Write an outcome as a stored result: ``FOLDER/NAME.json``, or the file that is named.

    A study of a file of one's own (``file.py:function``) is kept by its outcome's name.
    """
    study = outcome.name if ".py:" in name else name
    path = place if place.suffix == ".json" else place / f"{study}.json"
    record = {
        "name": path.stem,
        "command": bench.command(study),
        "seeds": bench.seed,
        "data": _data(bench.data),
        "device": _device(bench.device),
        "versions": {"hardcase": VERSION, "torch": metadata.version("torch")},
        "notes": [note for table in outcome.tables for note in table.notes],
        "columns": list(COLUMNS),
        "rows": [dict(zip(COLUMNS, cell, strict=True)) for cell in _cells(outcome)],
    }
    return stored.write(path, record)


def _device(device: str) -> str:
    """The device with its make, where it has one."""
    if not device.startswith("cuda"):
        return device
    return f"{device}, {torch.cuda.get_device_name(device)}"


def _data(spec: str) -> str:
    """The data's name with the hash of its test images, where they can be loaded."""
    try:
        return f"{spec}, {load(spec, split='test').hash}"
    except HardcaseError:
        return spec


def kept(name: str, folder: Path) -> Mapping[str, Any]:
    """The kept result of a study.

    Raises:
        HardcaseError: If there is none, or it is not one.
    """
    path = folder / f"{name}.json"
    try:
        record = json.loads(path.read_bytes())
        rows = record["rows"]
        sound = all(set(row) == set(COLUMNS) for row in rows)
    except FileNotFoundError as error:
        fix = f"hardcase reproduce {name} --keep {folder}"
        raise HardcaseError(f"there is no kept result {path} to compare with.", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise HardcaseError(f"{path} is not a kept result.", str(error)) from error
    if not sound:
        raise HardcaseError(f"{path} does not have the columns {', '.join(COLUMNS)}.")
    return dict(record)


def check(record: Mapping[str, Any], outcome: Outcome) -> Rerun:
    """Compare a re-run with what was kept, cell by cell."""
    then = {(row["table"], row["row"], row["column"]): row["value"] for row in record["rows"]}
    now = {(table, row, column): value for table, row, column, value in _cells(outcome)}
    both = [place for place in then if place in now]
    lost = [", ".join(place) for place in {**then, **now} if place not in then or place not in now]
    return Rerun(
        tuple(CheckedCell(*place, then=then[place], now=now[place]) for place in both), tuple(lost)
    )


def _cells(outcome: Outcome) -> Iterator[tuple[str, str, str, str]]:
    """Every cell but the first of its row, which names the row; equal names are numbered."""
    for table in outcome.tables:
        seen: dict[str, int] = {}
        for row in table.rows:
            name = said(row[0])
            seen[name] = seen.get(name, 0) + 1
            label = name if seen[name] == 1 else f"{name} ({seen[name]})"
            for column, cell in zip(table.columns[1:], row[1:], strict=True):
                yield table.title, label, column, said(cell)


def _counts_agree(then: str, now: str) -> bool | None:
    """Whether a count lies within the prediction interval of the other; None if one is none."""
    first, second = _COUNT.search(then), _COUNT.search(now)
    if first is None or second is None:
        return None
    hits, total = (int(number.replace(",", "")) for number in first.groups())
    again, size = (int(number.replace(",", "")) for number in second.groups())
    law = stats.betabinom(size, hits + 0.5, total - hits + 0.5)
    low, high = law.ppf(LEVEL / 2), law.ppf(1 - LEVEL / 2)
    return bool(low <= again <= high)


def _intervals_agree(then: str, now: str) -> bool | None:
    """Whether two estimates with 95 % intervals differ by no more than chance; None if one has
    none.
    """
    first, second = _INTERVAL.search(then), _INTERVAL.search(now)
    if first is None or second is None:
        return None
    value, low, high = (float(number) for number in first.groups())
    other, bottom, top = (float(number) for number in second.groups())
    spread = math.hypot(high - low, top - bottom) / 2  # half the width of the difference's interval
    return abs(value - other) <= spread + 1e-12
