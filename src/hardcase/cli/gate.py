"""``hardcase gate``: pass or fail for continuous integration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, note, tell

if TYPE_CHECKING:
    from hardcase.results import Run

FAILED = 1


def gate(
    folder: o.OneRun,
    max_confirmed_rate: Annotated[float | None, typer.Option(metavar="SHARE", help="Of the attempted seeds.")] = None,
    max_class_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="The same for every class alone.")
    ] = None,
    max_silent_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Confirmed ones on which the model is sure.")
    ] = None,
    max_distinct: Annotated[int | None, typer.Option(metavar="N", help="Groups of confirmed tests.")] = None,
    min_usable: Annotated[int, typer.Option(metavar="N", help="Fewer usable seeds than this never pass.")] = 20,
    upper: Annotated[
        bool, typer.Option("--upper", help="Hold the upper end of the 95 % interval to the limits.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE.xml", help="Also write a JUnit file.")] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Print annotations; the default inside GitHub's CI.")
    ] = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
) -> None:
    """Pass or fail a judged run by limits on what was confirmed; exit code 1 if it fails."""
    from dataclasses import asdict

    from hardcase.results import Run
    from hardcase.suite import gate as gates

    limits = gates.Limits(
        confirmed_rate=max_confirmed_rate, class_rate=max_class_rate, silent_rate=max_silent_rate, distinct=max_distinct,
        usable=min_usable, upper=upper,
    )  # fmt: skip
    run = Run(folder)
    checks = gates.gate(run, limits)
    good = gates.passed(checks)
    if junit is not None:
        gates.junit(checks, junit, name=folder.resolve().name)
    if format == "json":
        as_json({"passed": good, "checks": [asdict(check) for check in checks], "judge": _standing(run)})
    elif not quiet:
        tell("\n".join(f"{'pass' if check.passed else 'FAIL'}  {check.text}" for check in checks))
        note(f"judge: {_standing(run)}")
    if github or os.environ.get("GITHUB_ACTIONS") == "true":
        tell("\n".join(gates.github(checks)))
    if not good:
        raise typer.Exit(FAILED)


def _standing(run: Run) -> str:
    return str((run.record.get("judge") or {}).get("standing", "unknown"))
