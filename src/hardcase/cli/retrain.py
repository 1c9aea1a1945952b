"""``hardcase retrain``: does training with the tests of a run help, beside controls of the same size?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import console, grid, note, shown, tell


def retrain(
    folder: o.OneRun,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", metavar="RUN", help="Also measure on this run's tests; repeatable."),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Passes over the training images.")] = 5,
    repeats: Annotated[int, typer.Option(metavar="N", min=2, help="How often each arm is trained.")] = 5,
    seed: o.Seed = None,
    device: o.Device = None,
    out: o.Out = None,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fine-tune the run's network on its tests; report accuracy on images nobody trained on, beside two controls."""
    from dataclasses import replace

    from hardcase.cli.closing import logging_to
    from hardcase.experiments.retrain import Retraining
    from hardcase.experiments.retrain_run import retrain as perform

    logging_to(verbose=verbose, quiet=quiet)
    how = Retraining(repeats=repeats, seed=seed or 0)
    how = replace(how, recipe=replace(how.recipe, epochs=epochs))
    outcome = perform(
        folder, how, others=against or [], place=device or "cpu", say=(lambda text: None) if quiet else note
    )
    page = outcome.write(out or folder / "retrain")
    if format == "json":
        tell((page.parent / "results.json").read_text(encoding="utf-8").rstrip())
        return
    for table in outcome.tables:
        console().print(grid(table.title, table.columns, table.rows))
        for text in table.notes:
            console().print(f"  {text}")
    tell(f"written to {shown(page)}")
