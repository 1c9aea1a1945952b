"""``hardcase reproduce``: a published experiment, ours beside the paper's."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, console, grid, note, shown, tell
from hardcase.errors import choice

if TYPE_CHECKING:
    from hardcase.experiments.bench import Bench, Outcome


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without one they are listed.")] = None,
    data: Annotated[str, typer.Option(help="What to run it on.")] = "mnist5k",
    full: Annotated[bool, typer.Option("--full", help="The paper's sizes; can take hours.")] = False,
    repeats: Annotated[int | None, typer.Option(metavar="N", min=1, help="How often to repeat it.")] = None,
    ratings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What people answered, for sinvad-rq1 and argus-ratings (CSV).")
    ] = None,
    seed: o.Seed = None,
    device: o.Device = None,
    settings: o.Settings = None,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Repeat a published experiment and print its tables."""
    if name is None:
        return _names(format)
    from hardcase.cli.closing import logging_to
    from hardcase.cli.settings import free
    from hardcase.config import assign
    from hardcase.experiments.bench import Bench
    from hardcase.planning import device as existing

    logging_to(verbose=verbose, quiet=quiet)
    bench = Bench(
        out=out or free(Path("runs") / f"reproduce-{name}"), data=data, full=full, repeats=repeats, seed=seed or 0,
        device=existing(device or "cpu"), options=assign({} if ratings is None else {"ratings": str(ratings)}, settings or []), say=(lambda text: None) if quiet else note,
    )  # fmt: skip
    outcome = perform(name, bench)
    page = outcome.write(bench.out, bench.command(name))
    if format == "json":
        tell((bench.out / "results.json").read_text(encoding="utf-8").rstrip())
        return
    show(outcome)
    tell(f"written to {shown(page)}, as a page in {shown(page.with_name('report.html'))}")


def perform(name: str, bench: Bench) -> Outcome:
    """Run the experiment called `name`."""
    from hardcase.experiments.catalogue import EXPERIMENTS

    if name not in EXPERIMENTS:
        raise choice("experiment", name, list(EXPERIMENTS))
    module, _, function = EXPERIMENTS[name].where.partition(":")
    outcome: Outcome = getattr(import_module(f"hardcase.experiments.{module}"), function)(bench)
    return outcome


def _names(format: str) -> None:
    from hardcase.experiments.catalogue import EXPERIMENTS

    rows = list(EXPERIMENTS.values())
    if format == "json":
        as_json([{"name": row.name, "summary": row.summary, "needs": row.needs, "paper": row.paper} for row in rows])
    elif rows:
        columns = ["name", "needs", "summary", "paper"]
        console().print(grid("", columns, [[row.name, row.needs, row.summary, row.paper] for row in rows]))
    else:
        tell("no experiments yet")


def show(outcome: Outcome) -> None:
    """Tables, their notes, and the names of the pictures."""
    screen = console()
    for table in outcome.tables:
        screen.print(grid(table.title, table.columns, table.rows))
        for text in table.notes:
            screen.print(f"  {text}")
    for figure in outcome.figures:
        tell(f"picture {figure}")
