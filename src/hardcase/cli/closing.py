"""How a run ends on the terminal: the funnel, where the files are, and what to do next."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hardcase.cli.speaking import as_json, duration, note, shown, tell
from hardcase.errors import INTERRUPTED

if TYPE_CHECKING:
    from hardcase.results import Run


def logging_to(*, verbose: bool, quiet: bool) -> None:
    """Show what the library logs: everything with ``-v``, only errors with ``-q``."""
    level = logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="note: %(message)s", force=True)
    logging.captureWarnings(True)
    if not verbose:
        logging.getLogger("py.warnings").setLevel(logging.ERROR)


def conclude(run: Run | None, folder: Path, *, format: str, quiet: bool) -> None:
    """Say how the run ended and leave with 130 if it was interrupted and can be resumed."""
    if run is None:
        note("interrupted before the search began; nothing was written")
        raise typer.Exit(INTERRUPTED)
    if format == "json":
        as_json({"folder": str(run.folder), **run.record})
    elif quiet:
        tell(str(run.folder))
    else:
        tell(closing(run))
    if interrupted(run):
        raise typer.Exit(INTERRUPTED)


def interrupted(run: Run) -> bool:
    """Whether shards are missing for another reason than that enough was found."""
    return not run.record["complete"] and not enough(run)


def enough(run: Run) -> bool:
    limit = run.record["budget"].get("findings")
    return limit is not None and len(run) >= limit


def closing(run: Run) -> str:
    record = run.record
    head = f"{record['method']} on {record['model']}, {record['data']}"
    judged = [] if run.verdicts is not None else ["nothing is confirmed: no judge has seen these tests yet"]
    return "\n".join(["", head, run.summary(), *judged, cost(record), "", f"files   {shown(run.folder)}", *_next(run)])


def cost(record: dict[str, Any]) -> str:
    totals = record["totals"]
    spent = [f"{totals[name]:,} {name.replace('_', ' ')}" for name in totals if totals[name]]
    return f"spent {', '.join(spent) or 'nothing'} in {duration(record['elapsed'])}"


def _next(run: Run) -> list[str]:
    name = shown(run.folder)
    if interrupted(run):
        return [f"go on   hardcase resume {name}"]
    return [f"report  hardcase report {name} --open"]
