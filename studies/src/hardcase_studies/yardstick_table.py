"""The yardstick as a file that others can add to: its schema, its checker, and a page of it that needs no server.

A file holds rows of one or several settings (data, subject, trainings, seeds); rows are compared within a setting alone.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from hardcase.cache import write_atomically
from hardcase.errors import HardcaseError

__all__ = ["Share", "YardstickRow", "YardstickTable", "merged", "page", "read", "write"]

SCHEMA: Literal[1] = 1
NULL = "random conditions"
Fraction = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Share(_Strict):
    """A share of seeds with its 95 % interval."""

    value: Fraction
    low: Fraction
    high: Fraction

    @model_validator(mode="after")
    def _ordered(self) -> Share:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} lies outside its interval [{self.low}, {self.high}]")
        return self


class YardstickRow(_Strict):
    """One method at one budget.

    Args:
        method: What the table calls it.
        data: Data set of seeds and subject.
        subject: The network under test.
        passes: Forward passes of the subject that a seed may cost.
        seconds: Where methods have the same time instead of the same passes: how much, per seed.
        trainings: Trainings of the subject.
        attempted: Seeds, over all trainings.
        failing: Seeds with a failing image, of attempted.
        accepted: Seeds whose nearest failing image keeps its label, says a judge, of attempted; files
            of before call it ``confirmed``.
        again: Accepted images that a retraining of the subject misreads too.
        l2: Median distance of failing images from their seeds.
        lpips: How far they look from them, median; none where its network was not fetched.
        groups: Groups of accepted images.
        cells: Cells of the map with an accepted image.
        spent: Mean passes per seed.
        milliseconds: Of the search, per seed.
        p: Against random conditions, corrected by Holm; none for the null and for seeds of its own.
        seeds: Hash of the seeds; rows of other seeds are not compared.
        commit: Of the code that measured it.
    """

    method: str = Field(min_length=1)
    data: str
    subject: str
    passes: int = Field(gt=0)
    seconds: float | None = Field(default=None, gt=0)
    trainings: int = Field(gt=0)
    attempted: int = Field(ge=0)
    failing: Share
    accepted: Share = Field(validation_alias=AliasChoices("accepted", "confirmed"))
    again: Share | None
    l2: float | None = Field(ge=0)
    lpips: float | None = Field(default=None, ge=0)
    groups: int = Field(ge=0)
    cells: int = Field(ge=0)
    spent: float = Field(ge=0)
    milliseconds: float = Field(ge=0)
    p: Fraction | None
    seeds: str
    commit: str | None

    @property
    def setting(self) -> tuple[str, str, int, str]:
        """Rows with the same one are compared."""
        return (self.data, self.subject, self.trainings, self.seeds)

    @property
    def budget(self) -> str:
        """What a seed may cost, in words."""
        return f"{self.passes:,}" if self.seconds is None else f"{self.seconds} s"

    @model_validator(mode="after")
    def _possible(self) -> YardstickRow:
        if self.accepted.value > self.failing.value + 1e-9:
            raise ValueError(f"{self.method}: more seeds are accepted than fail")
        if self.spent > 1.02 * self.passes:
            raise ValueError(
                f"{self.method}: {self.spent:.0f} passes were spent, {self.passes} allowed"
            )
        return self


class YardstickTable(_Strict):
    """All rows of a file."""

    schema_: Literal[1] = Field(default=SCHEMA, alias="schema")
    rows: tuple[YardstickRow, ...] = ()

    @model_validator(mode="after")
    def _comparable(self) -> YardstickTable:
        known = [(row.setting, row.budget, row.method) for row in self.rows]
        twice = sorted({row[2] for row in known if known.count(row) > 1})
        if twice:
            raise ValueError(f"{twice[0]} stands twice in one setting")
        alone = [row for row in self.rows if (row.setting, row.budget, NULL) not in known]
        if alone:
            raise ValueError(f"{alone[0].method} has no row of random conditions beside it")
        return self


def read(path: Path) -> YardstickTable:
    """The rows of a file, checked; every rule that it breaks is a `HardcaseError`."""
    try:
        return YardstickTable.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise HardcaseError(
            f"there is no {path}.", fix="hardcase yardstick add FILE.py:METHOD"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the table"
        raise HardcaseError(f"{path} is no yardstick: {where}: {first['msg']}.") from error


def write(path: Path, table: YardstickTable) -> Path:
    """Write the rows, sorted."""
    rows = sorted(table.rows, key=lambda row: (row.setting, row.passes, row.method))
    content = table.model_copy(update={"rows": tuple(rows)}).model_dump(by_alias=True)
    return write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def merged(old: YardstickTable, new: Sequence[YardstickRow]) -> YardstickTable:
    """The old rows, those that were measured again replaced by the new ones."""
    key = {(row.setting, row.budget, row.method) for row in new}
    rest = [row for row in old.rows if (row.setting, row.budget, row.method) not in key]
    return YardstickTable(schema=SCHEMA, rows=(*rest, *new))


# The page: a table that sorts by a click, and a plot of shares against passes.

COLUMNS = (
    "method", "budget", "searched", "failing", "accepted", "of failing", "p", "L2", "LPIPS", "groups", "cells", "retraining fails too",
    "passes spent", "ms", "passes to an accepted failure",
)  # fmt: skip
STYLE = """body{font:15px system-ui;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #ddd}
th:first-child,td:first-child{text-align:left}th button{all:unset;cursor:pointer;font-weight:600}
th button:focus-visible{outline:2px solid #06c}tr.null{background:#f3f3f3}svg{max-width:100%}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}th,td{border-color:#444}tr.null{background:#262626}}"""
SORT = """document.querySelectorAll('th button').forEach(b=>b.onclick=()=>{const t=b.closest('table'),
r=[...t.tBodies[0].rows],d=b.dataset.d=b.dataset.d==='1'?-1:1,v=x=>{const s=x.cells[b.closest('th').cellIndex].dataset.v;
return s===''?-Infinity:isNaN(s)?s:+s};r.sort((a,c)=>v(a)<v(c)?-d:v(a)>v(c)?d:0).forEach(x=>t.tBodies[0].append(x))})"""


def page(table: YardstickTable) -> str:
    """One HTML file: for every setting a plot and a table, no request leaves it."""
    settings = sorted({row.setting for row in table.rows})
    body = "".join(_setting([row for row in table.rows if row.setting == one]) for one in settings)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Yardstick</title>'
        f"<style>{STYLE}</style><h1>Yardstick</h1><p>Methods at equal network passes on the same seeds. "
        "<b>Accepted</b>: the nearest failing image of a seed keeps its label, says one judge (networks) "
        f"that no search asks. Grey rows are random draws of declared conditions.</p>{body}<script>{SORT}</script></html>"
    )


def _setting(rows: Sequence[YardstickRow]) -> str:
    first = rows[0]
    title = f"{first.data}, {first.subject}, {first.trainings} training(s)"
    ordered = sorted(rows, key=lambda row: (row.passes, -row.accepted.value))
    head = "".join(f'<th><button type="button">{name}</button></th>' for name in COLUMNS)
    lines = "".join(_line(row) for row in ordered)
    return f"<h2>{html.escape(title)}</h2>{_plot(rows)}<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _line(row: YardstickRow) -> str:
    cells: list[tuple[str | float | None, str]] = [
        (row.method, row.method),
        (row.passes, row.budget),
        (row.attempted, f"{row.attempted:,}"),
        (row.failing.value, _percent(row.failing)),
        (row.accepted.value, _percent(row.accepted)),
        _ratio(row.accepted.value, row.failing.value, ".0%"),
        (row.p, _number(row.p, ".2g")),
        (row.l2, _number(row.l2, ".2f")),
        (row.lpips, _number(row.lpips, ".3f")),
        (row.groups, str(row.groups)),
        (row.cells, str(row.cells)),
        (row.again.value if row.again else None, _percent(row.again)),
        (row.spent, f"{row.spent:.0f}"),
        (row.milliseconds, f"{row.milliseconds:.1f}"),
        _ratio(row.spent, row.accepted.value, ".0f"),
    ]
    shown = "".join(
        f'<td data-v="{html.escape(str("" if value is None else value))}">{html.escape(text)}</td>'
        for value, text in cells
    )
    return f'<tr class="{"null" if row.method == NULL else ""}">{shown}</tr>'


def _ratio(part: float, whole: float, form: str) -> tuple[float | None, str]:
    value = part / whole if whole > 0 else None
    return value, _number(value, form)


def _percent(share: Share | None) -> str:
    if share is None:
        return "–"
    return f"{100 * share.value:.0f} % [{100 * share.low:.0f}, {100 * share.high:.0f}]"


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _plot(rows: Sequence[YardstickRow]) -> str:
    """Share accepted against passes spent, a point per row with its interval, the budgets joined."""
    spent = [max(row.spent, 1.0) for row in rows]
    low, high = math.log10(min(spent)) - 0.1, math.log10(max(spent)) + 0.3

    def place(row: YardstickRow, value: float) -> tuple[float, float]:
        x = 50 + 700 * (math.log10(max(row.spent, 1.0)) - low) / (high - low)
        return x, 320 - 300 * value

    marks = []
    for name in sorted({row.method for row in rows}):
        own = sorted((row for row in rows if row.method == name), key=lambda row: row.passes)
        points = [place(row, row.accepted.value) for row in own]
        marks.append(
            f'<polyline fill="none" stroke="#888" points="{" ".join(f"{x:.0f},{y:.0f}" for x, y in points)}"/>'
        )
        for row, (x, y) in zip(own, points, strict=True):
            top, bottom = place(row, row.accepted.high)[1], place(row, row.accepted.low)[1]
            marks.append(f'<path d="M{x:.0f} {top:.0f}V{bottom:.0f}" stroke="#06c" opacity=".3"/>')
            marks.append(
                f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="#06c"><title>{html.escape(name)}</title></circle>'
            )
        x, y = points[-1]
        marks.append(
            f'<text x="{x + 6:.0f}" y="{y + 4:.0f}" font-size="11" fill="currentColor">{html.escape(name)}</text>'
        )
    ticks = "".join(
        f'<text x="4" y="{324 - 300 * share:.0f}" font-size="11" fill="currentColor">{100 * share:.0f} %</text>'
        for share in (0, 0.5, 1)
    )
    label = "Share of seeds accepted against passes spent per seed, logarithmic"
    return (
        f'<svg viewBox="0 0 900 340" role="img" aria-label="{label}">{ticks}{"".join(marks)}</svg>'
    )
