"""``hardcase compare``: runs side by side, with statistics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.afterwards import rate
from hardcase.cli.speaking import as_json, console, grid, shown, tell


def compare(
    folders: o.Runs,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.html", help="Where the page goes.")] = None,
    seed: o.Seed = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
) -> None:
    """Compare runs with statistics: equal budgets, paired seeds, corrected tests; one HTML page and its JSON twin."""
    from hardcase.suite.compare import compare as side_by_side

    found = side_by_side(*folders, seed=seed or 0)
    table = found.table
    page = found.report(out or Path(os.path.commonpath([f.absolute().parent for f in folders])) / "compare.html")
    if format == "json":
        as_json({"page": str(page), **table})
    elif quiet:
        tell(str(page))
    else:
        _tell(table)
        tell(f"page  {shown(page)}")


def _tell(table: dict[str, Any]) -> None:
    columns = ("run", "method", "failing, of attempted", "confirmed", "distinct", "queries")
    rows = [
        (run["name"], run["method"], rate(run["failing"]), "not judged" if run["confirmed"] is None else rate(run["confirmed"]), run["distinct"], int(run["queries"]))
        for run in table["runs"]
    ]  # fmt: skip
    console().print(grid("", columns, rows))
    tell(table["sentence"])
    for pair in table["pairs"]:
        tests = [(test["what"], test["test"], test["p"], test["p_holm"]) for test in pair["tests"]]
        console().print(
            grid(f"{pair['first']} against {pair['second']}", ("question", "test", "p", "p, corrected"), tests)
        )
