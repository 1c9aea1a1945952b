"""``hardcase list``: what exists, what it needs, which paper it is from. Imports no torch."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from hardcase import companions, registry
from hardcase.cli import options as o
from hardcase.cli.options import as_json, console, facts, table_of, tell
from hardcase.errors import choice

KINDS = (
    *("methods", "criteria", "metrics", "data", "models", "generators", "spaces", "searches"),
    *("objectives", "oracles", "guides", "judges", "experiments", "plugins"),
)
# mypy cannot see members that are computed
What = StrEnum("What", {name: name for name in KINDS})  # type: ignore[misc]
SHOWN = ("name", "summary", "needs", "paper", "laws")
"""What every row has, with and without ``--verbose``."""


def rows(kind: str) -> list[dict[str, Any]]:
    """The rows of a table: experiments and plug-ins have their own, all others are in the stored
    catalogue."""
    if kind == "plugins":
        return companions.plugin_rows()
    if kind != "experiments":
        return registry.rows(kind)
    every = companions.studies().values()
    return [{key: getattr(row, key, []) for key in SHOWN} for row in every]


def listing(
    what: Annotated[What, typer.Argument(help="Which table.")],
    name: Annotated[
        str | None, typer.Argument(help="One row in full: a name of the table.")
    ] = None,
    format: o.AsFormat = o.Format.text,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Everything that is known of each row.")
    ] = False,
) -> None:
    """List what exists: methods, criteria, data sets, models, plug-ins and more."""
    table = rows(str(what))
    if name is not None:
        table = [_named(name, str(what), table)]
    elif not verbose:
        table = [{key: row[key] for key in SHOWN} for row in table]
    if format == "json":
        as_json(table)
    elif not table:
        tell(f"no {what} yet")
    elif verbose or name is not None:
        tell("\n\n".join(facts(_in_words(row)) for row in table))
    else:
        screen = console()
        columns = ("name", "needs", "summary", "paper")[: 4 if screen.width >= 120 else 3]
        screen.print(table_of(table, columns))


def _named(name: str, kind: str, table: list[dict[str, Any]]) -> dict[str, Any]:
    known = {row["name"]: row for row in table}
    if name not in known:
        raise choice(f"row of {kind}", name, list(known))
    return known[name]


def _in_words(row: dict[str, Any]) -> dict[str, str]:
    """What a row says, one line for each fact and each option."""
    said = {key: _words(value) for key, value in row.items() if value and key != "options"}
    for name, option in row.get("options", {}).items():
        one_of = f" (one of {', '.join(option['choices'])})" if option["choices"] else ""
        said[f"option {name}"] = f"{_words(option['default'])}: {option['help']}{one_of}".rstrip(
            ": "
        )
    return said


def _words(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)
