"""``hardcase card``: what a run shows of a model, for its repository, its release, its change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, facts, opened, tell
from hardcase.errors import Problem


@o.takes(*o.SAYS)
def card(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; or a record, which is checked.")
    ],
    flags: o.Flags,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="The model's repository, or a folder of records."),
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record", help="A release record: JSON and page, signed by their hash."),
    ] = False,
    comment: Annotated[
        bool, typer.Option("--comment", help="A comment for a pull request: Markdown and picture.")
    ] = False,
    version: Annotated[
        str, typer.Option(metavar="NAME", help="Of the model; by default the hash of its weights.")
    ] = "",
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The version before: its figures stand beside, paired."),
    ] = None,
    benchmark: Annotated[
        str,
        typer.Option(metavar="DATASET:TASK", help="Of the Hub, where the data is a benchmark."),
    ] = "",
    picture: Annotated[
        str, typer.Option(metavar="URL", help="Where readers of a comment find the picture.")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE.toml", help="Its [limits]; hardcase.toml here by default."
        ),
    ] = None,
) -> None:
    """Write a model card for the Hugging Face Hub: metadata, figures with intervals, conditions,
    limits and a picture; or a release record, or a comment.
    """
    from hardcase.config import read
    from hardcase.suite import card as cards, record as records
    from hardcase.suite.gate import GateLimits

    if folder.is_file():
        _tell_record(records.read_record(folder), flags)
        return
    if to is None or (record and comment):
        raise Problem("a card is written into a folder, as one thing.", fix="--to DIR")
    path = config or o.PROJECT
    values = read(path) if config is not None or path.is_file() else {}
    content = cards.CardContent(
        opened(folder),
        GateLimits.of(values) if "limits" in values else None,
        None if baseline is None else opened(baseline),
    )
    if record:
        written = records.write_record(content, to, version=version)
    elif comment:
        written = cards.write_comment(content, to, picture=picture or cards.PICTURE)
    else:
        written = cards.write_hub_card(content, to, benchmark=benchmark)
    if flags.json:
        as_json({"written": str(written), "outcome": content.outcome()[0]})
    else:
        tell(str(written))


def _tell_record(found: dict[str, object], flags: o.Flags) -> None:
    """A record that is as it was written."""
    if flags.json:
        as_json(found)
        return
    shown = ("version", "number", "date", "outcome", "sha256")
    tell(facts({"record": "as it was written", **{name: found[name] for name in shown}}))
