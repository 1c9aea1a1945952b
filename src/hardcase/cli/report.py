"""``hardcase report``, ``export`` and ``cite``: what a run becomes afterwards."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, note, shown, tell


class To(StrEnum):
    imagefolder = "imagefolder"
    hf = "hf"
    npz = "npz"
    mlflow = "mlflow"


def report(
    folders: o.Runs,
    out: o.Out = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write the report of one run or several: one HTML page and the same numbers as JSON."""
    from hardcase.cli.closing import logging_to
    from hardcase.report import write
    from hardcase.results import Run

    logging_to(verbose=verbose, quiet=quiet)
    page = write([Run(folder) for folder in folders], out or _home(folders))
    if format == "json":
        as_json({"page": str(page), "json": str(page.with_name("report.json"))})
    else:
        tell(str(page))
    if show:
        typer.launch(page.absolute().as_uri())


def export(
    folder: o.OneRun,
    to: Annotated[To, typer.Option("--to", help="What to write.")] = To.imagefolder,
    out: o.Out = None,
    uri: Annotated[str | None, typer.Option(metavar="URI", help="Of mlflow: the tracking store.")] = None,
    experiment: Annotated[str, typer.Option(metavar="NAME", help="Of mlflow: the experiment.")] = "hardcase",
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write the found tests as a data set of their own, or the run's numbers and report into MLflow."""
    from hardcase.results import Run

    run = Run(folder)
    if to == To.mlflow:
        from hardcase.suite.tracking import track

        tell(track(run, uri=uri, experiment=experiment))
        return
    where = run.export(to, out or folder.with_name(f"{folder.name}-{to}"))
    tell(str(where))
    if not quiet:
        note(f"{len(run):,} tests under the labels they should have had, from {shown(folder)}")


def cite(folders: o.Runs) -> None:
    """Print the BibTeX of what runs used."""
    from hardcase.citations import bibtex
    from hardcase.cli.status import read_json

    listed = [read_json(folder / "run.json").get("citations", []) for folder in folders]
    tell(bibtex(str(key) for keys in listed if isinstance(keys, list) for key in keys))


def _home(folders: list[Path]) -> Path:
    """The run's own folder; for several, a folder beside them."""
    if len(folders) == 1:
        return folders[0] / "report"
    return Path(os.path.commonpath([folder.absolute().parent for folder in folders])) / "report"
