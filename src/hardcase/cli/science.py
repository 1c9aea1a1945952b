"""``hardcase retrain``, and how tables of an experiment are printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.output import console, grid, opened, shown, tell

if TYPE_CHECKING:
    from hardcase.suite.tables import Outcome

__all__ = ["retrain", "show"]


def show(outcome: Outcome) -> None:
    """Tables, their notes, and the names of the figures."""
    screen = console()
    for table in outcome.tables:
        screen.print(grid(table.title, table.columns, table.rows))
        for text in table.notes:
            screen.print(f"  {text}")
    for figure in outcome.figures:
        tell(f"figure {figure}")


@o.takes("seed", "device", "out", *o.FOREIGN, *o.SAYS)
def retrain(
    folder: o.OneRun,
    flags: o.Flags,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            "--against", metavar="RUN", help="Also measure on this run's findings; repeatable."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", min=1, help="Training epochs.")] = 5,
    repeats: Annotated[int, typer.Option(metavar="N", min=2, help="Repetitions of each arm.")] = 5,
) -> None:
    """Fine-tune the run's network on its findings; report held-out accuracy beside two controls."""
    from dataclasses import replace

    from hardcase.cli.results import config_of, same_ingredients
    from hardcase.context import Context
    from hardcase.runs.files import refuse_links
    from hardcase.suite.retrain import Retraining
    from hardcase.suite.retrain import retrain as perform

    run = opened(folder)
    refuse_links(folder, ("retrain",))
    config = config_of(
        run,
        uses=None,
        trusted=flags.trust,
        changed=flags.allow_changes,
        device=flags.device,
    )
    same_ingredients(run, Context(config), flags)
    how = Retraining(repeats=repeats, seed=flags.seed or 0)
    how = replace(how, recipe=replace(how.recipe, epochs=epochs))
    outcome = perform(
        folder,
        how,
        others=against or [],
        place=flags.place,
        say=flags.say,
    )
    page = outcome.write(flags.out or folder / "retrain")
    if flags.json:
        tell((page.parent / "results.json").read_text(encoding="utf-8").rstrip())
        return
    show(outcome)
    tell(f"written to {shown(page)}")
