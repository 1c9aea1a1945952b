"""``hardcase shrink``: the smallest change that still fails."""

from __future__ import annotations

from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.afterwards import config_of
from hardcase.cli.speaking import as_json, facts, note, shown, tell


def shrink(
    folder: o.OneRun,
    out: o.Out = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, max=30, help="Halvings of each way back.")] = 12,
    device: o.Device = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Move each failing test back toward its seed as far as it still fails; the result is a run of its own."""
    from hardcase.cli.closing import logging_to
    from hardcase.cli.settings import free
    from hardcase.planning import campaign, plan
    from hardcase.results import Run
    from hardcase.suite.shrink import shrink as move_back

    logging_to(verbose=verbose, quiet=quiet)
    run = Run(folder)
    config = config_of(run, device=device, offline=offline)
    ready = campaign(config)
    if ready.subject.hash != run.record["hashes"]["subject"]:
        note("the model is not the one that the run was made with; only tests that it fails too are moved")
    where = out or free(folder.with_name(f"{folder.name}-shrunk"))
    small = move_back(run, ready.subject, where, space=ready.method.space, seeds=plan(config).images, steps=steps)
    said = small.record["shrink"]
    if format == "json":
        as_json({"folder": str(small.folder), **said})
    elif quiet:
        tell(str(small.folder))
    else:
        tell(facts({
            "tests": f"{said['tests']:,}, of which {said['failing']:,} fail this model",
            "median L2 to the seed": f"{said['l2_before']:.3g} before, {said['l2_after']:.3g} now",
            "queries": said["queries"],
            "files": shown(small.folder),
            "next": f"hardcase judge {shown(small.folder)}",
        }))  # fmt: skip
