"""``hardcase list``: what exists, what it needs, which paper it is from. Imports no torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, console, facts, grid, tell
from hardcase.cli.tables import WHERE, rows

What = StrEnum("What", {name: name for name in WHERE})  # type: ignore[misc]  # the members are the tables there are
_ALWAYS = ("name", "summary", "needs", "paper", "laws")


def listing(
    what: Annotated[What, typer.Argument(help="Which table.")],
    format: o.AsFormat = o.Format.text,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Everything that is known of each row.")] = False,
) -> None:
    """List what exists: methods, criteria, data sets, models and more."""
    table = [_row(row, verbose=verbose) for row in rows(str(what))]
    if format == "json":
        as_json(table)
    elif not table:
        tell(f"no {what} yet")
    elif verbose:
        tell("\n\n".join(facts({key: _words(value) for key, value in row.items() if value}) for row in table))
    else:
        screen = console()
        columns = ("name", "needs", "summary", "paper")[: 4 if screen.width >= 120 else 3]
        screen.print(grid("", columns, [[row[key] for key in columns] for row in table]))


def _row(row: Any, *, verbose: bool) -> dict[str, Any]:
    plain = {key: getattr(row, key, [] if key == "laws" else "") for key in _ALWAYS}
    plain["laws"] = list(plain["laws"])
    if not verbose:
        return plain
    more = [
        key for key in ("definition", "budget", "generator", "peers", "differences", "classes") if hasattr(row, key)
    ]
    return plain | {key: getattr(row, key) for key in more}


def _words(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
