"""``hardcase demo``: the main job on the embedded digits, with nothing to prepare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, note, shown, tell
from hardcase.errors import INTERRUPTED

if TYPE_CHECKING:
    from hardcase.results import Run

WORLD = {"model": "zoo:lenet5", "data": "mnist5k"}
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "pgd", "epsilon": 0.2},
    {"name": "cw", "steps": 40, "rounds": 5},
    {"name": "sinvad"},
)
"""Two yardsticks and a search that stays close to real digits, with budgets that end in seconds."""


def demo(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Digits to start from.")] = 60,
    seed: o.Seed = None,
    out: o.Out = None,
    device: o.Device = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fool LeNet-5 on handwritten digits with three methods, judge what was found, write one report; trains what is missing."""
    from hardcase.cli.closing import closing, logging_to
    from hardcase.cli.settings import free
    from hardcase.report import write
    from hardcase.store import refuse_used

    logging_to(verbose=verbose, quiet=quiet)
    home = out or free(Path("runs/demo"))
    refuse_used(home)
    base = {**WORLD, "seeds": seeds, "seed": seed or 0, "device": device or "cpu"}
    runs = [_one({**base, "method": method}, home / method["name"], progress, quiet) for method in METHODS]
    runs = _judged(runs, device or "cpu", progress, quiet)
    page = write(runs, home / "report")
    if format == "json":
        as_json({"page": str(page), "runs": [{"folder": str(run.folder), **run.record} for run in runs]})
    else:
        tell(
            str(page) if quiet else "\n".join([*map(_without_advice, map(closing, runs)), "", f"report  {shown(page)}"])
        )
    if show:
        typer.launch(page.absolute().as_uri())


def _one(values: dict[str, Any], folder: Path, progress: str, quiet: bool) -> Run:
    from hardcase.cli.closing import interrupted
    from hardcase.cli.run import campaign
    from hardcase.cli.watching import front
    from hardcase.config import parse

    with front(progress, quiet=quiet) as screen:
        run = campaign(parse(values), folder, screen)
    if run is None or interrupted(run):
        note(f"interrupted; what was found is in {shown(folder)}" if run else "interrupted")
        raise typer.Exit(INTERRUPTED)
    return run


def _judged(runs: list[Run], device: str, progress: str, quiet: bool) -> list[Run]:
    """The runs with verdicts, by a judge that learned from the training digits and took no part in the search."""
    from hardcase.cli.watching import front
    from hardcase.judging.asking import finish

    with front(progress, quiet=quiet) as screen:
        return [finish(run, say=note, device=device, progress=screen.train, train=True) for run in runs]


def _without_advice(text: str) -> str:
    return text.rpartition("\n")[0]
