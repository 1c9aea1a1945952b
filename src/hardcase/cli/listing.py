"""``hardcase list``: what exists, what it needs, which paper it is from. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, facts, grid, tell

# --- What ``hardcase list`` can show: where each table is, and the two that live here.


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One line of ``hardcase list metrics``."""

    name: str
    summary: str
    needs: str
    paper: str = ""
    laws: tuple[str, ...] = ()


_WILSON = "Wilson's interval, JASA 1927"

METRICS = (
    Measure(name="usable", summary="seeds that the subject classifies rightly, of all seeds", needs="labels"),
    Measure(name="attempted", summary="usable seeds that were searched from", needs="a run"),
    Measure(name="failing", summary="seeds with a finding that leaves their label, of those attempted", needs="a run", paper=_WILSON),
    Measure(name="valid", summary="seeds with a failing finding that looks like the data", needs="a judge", paper=_WILSON),
    Measure(name="label_kept", summary="seeds with a failing finding that still is what the seed was", needs="a judge", paper=_WILSON),
    Measure(name="confirmed", summary="seeds with one finding that is failing, valid and label kept", needs="a judge", paper=_WILSON),
    Measure(name="distinct", summary="groups of confirmed findings that look like one fault", needs="a judge"),
    Measure(name="distance", summary="how far a finding is from its seed in the method's own space", needs="a run"),
    Measure(name="l2", summary="Euclidean distance of a finding from its seed in pixels", needs="a run"),
    Measure(name="linf", summary="largest change of a pixel of a finding", needs="a run"),
    Measure(name="queries", summary="images given to the subject, per seed and per finding", needs="a run"),
    Measure(name="gradients", summary="images whose gradient was asked for, per seed", needs="a run"),
)  # fmt: skip

JUDGES = (
    Measure(
        name="panel",
        summary="valid and label kept, by classifiers that took no part in any search, neighbours and a likelihood",
        needs="the train split of the data; hardcase train judge",
        laws=("refuses a search that used its members", "learns nothing from the seeds' split"),
    ),
    Measure(
        name="distinct",
        summary="groups of confirmed findings that look like one fault, in the panel's features",
        needs="a panel",
        paper="Campello, Moulavi and Sander: HDBSCAN, PAKDD 2013",
    ),
)

WHERE = {
    "methods": "hardcase.methods.catalogue:METHODS",
    "criteria": "hardcase.criteria.catalogue:CRITERIA",
    "metrics": "hardcase.cli.listing:METRICS",
    "data": "hardcase.data.catalogue:TABLE",
    "models": "hardcase.models.catalogue:MODELS",
    "generators": "hardcase.generators.catalogue:GENERATORS",
    "spaces": "hardcase.spaces.catalogue:SPACES",
    "searches": "hardcase.searches.catalogue:SEARCHES",
    "judges": "hardcase.judges.catalogue:JUDGES",
    "experiments": "hardcase.experiments.catalogue:EXPERIMENTS",
}


def rows(kind: str) -> list[Any]:
    """The rows of a table, whether it is kept by name or in order."""
    module, _, name = WHERE[kind].partition(":")
    table: Mapping[str, Any] | Iterable[Any] = getattr(import_module(module), name)
    return list(table.values() if isinstance(table, Mapping) else table)


# --- ``hardcase list``: what exists, what it needs, which paper it is from. Imports no torch.

What = StrEnum("What", {name: name for name in WHERE})  # type: ignore[misc]  # the members are the tables there are
_ALWAYS = ("name", "summary", "needs", "paper", "laws")


def listing(
    what: Annotated[What, typer.Argument(help="Which table.")],
    format: o.AsFormat = o.Format.text,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Everything that is known of each row.")
    ] = False,
) -> None:
    """List what exists: methods, criteria, data sets, models and more."""
    table = [_row(row, verbose=verbose) for row in rows(str(what))]
    if format == "json":
        as_json(table)
    elif not table:
        tell(f"no {what} yet")
    elif verbose:
        tell(
            "\n\n".join(
                facts({key: _words(value) for key, value in row.items() if value}) for row in table
            )
        )
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
        key
        for key in ("definition", "budget", "generator", "peers", "differences", "classes")
        if hasattr(row, key)
    ]
    return plain | {key: getattr(row, key) for key in more}


def _words(value: Any) -> str:
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
