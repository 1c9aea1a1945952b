"""Numbers and tables for people; results go to standard output,
everything else to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from hardcase.environment import redact, sanitize

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from hardcase.cli.options import Flags
    from hardcase.runs.results import Run

WIDE = 160
"""Columns of a table that is not shown on a terminal."""


def tell(text: str) -> None:
    """A result."""
    typer.echo(sanitize(redact(text)))


def note(text: str) -> None:
    """Something about the result."""
    typer.echo(sanitize(redact(text)), err=True)


_words: list[str] = []
"""What the user has typed after ``hardcase``."""


def begin(words: Sequence[str]) -> None:
    """A command begins: it may do what its words say."""
    from hardcase.errors import guard_code

    _words[:] = words
    guard_code(None)


def guard_folder() -> None:
    """A run folder is opened: from now on this command runs no code and talks to no server but
    those that the user has named or allowed before."""
    from hardcase.errors import guard_code
    from hardcase.runs.identity import consent_of

    guard_code(consent_of(_words))


def opened(folder: Path) -> Run:
    """A stored run; what in it cannot be believed is said first."""
    from hardcase.runs.results import Run

    guard_folder()
    run = Run(folder)
    for text in run.verification.notes:
        note(f"note: {shown(folder)}: {text}")
    return run


def answer(flags: Flags, value: Any, *parts: str | Table, quiet: str | None = None) -> None:
    """The result of a verb: `value` with ``--format json``, else lines and tables; with ``-q`` the
    line `quiet` instead, if that is given."""
    if flags.json:
        as_json(value)
    elif flags.quiet and quiet is not None:
        show(quiet)
    else:
        show(*parts)


def show(*parts: str | Table) -> None:
    """Lines and tables of a result."""
    for part in parts:
        if not isinstance(part, str):
            console().print(part)
        elif part:
            tell(part)


def as_json(value: Any) -> None:
    typer.echo(redact(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, markup=False, highlight=False)


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A light table; numbers lean right, the first column never breaks."""

    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title or None,
        box=SIMPLE_HEAD,
        title_justify="left",
        header_style="bold",
        pad_edge=False,
    )
    for i, name in enumerate(columns):
        numeric = bool(rows) and all(
            isinstance(row[i], int | float) or row[i] is None for row in rows
        )
        table.add_column(
            name, justify="right" if numeric else "left", no_wrap=i == 0, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], title: str = "") -> Table:
    """A light table of some columns of `rows`."""
    return grid(title, columns, [[row[name] for name in columns] for row in rows])


def facts(pairs: Mapping[str, Any]) -> str:
    """Aligned lines of ``name value``."""
    width = max(map(len, pairs), default=0)
    return "\n".join(f"{name:<{width}}  {cell(value)}" for name, value in pairs.items())


def cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return sanitize(str(value))


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def clock(seconds: float) -> str:
    """1:02:03"""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def shown(path: object) -> str:
    """A path as it can be pasted into a shell."""
    from shlex import quote

    return quote(str(path))


def rate(value: Mapping[str, Any]) -> str:
    """A rate of a JSON file with its counts and its 95 % interval: 29 of 57 = 50.9 % (38.3 to
    63.4)."""
    from hardcase.statistics import Rate

    return str(Rate.from_json(value))
