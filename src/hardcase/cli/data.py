"""``hardcase data``: fetch a public data set, or look at one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, facts, tell


def data(
    name: Annotated[str, typer.Argument(help="mnist, fashion, cifar10 ..., or folder:PATH, npz:PATH, parquet:PATH.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="A folder or archive to import.")
    ] = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Bring a data set into the cache, checked by its content; or say what data of your own holds."""
    from hardcase.cli.closing import logging_to

    logging_to(verbose=verbose, quiet=quiet)
    said = _own(name) if ":" in name and source is None else _public(name, source, offline)
    if format == "json":
        as_json(said)
    elif not quiet:
        tell(facts({key: _words(value) for key, value in said.items() if value}))


def _public(name: str, source: Path | None, offline: bool) -> dict[str, Any]:
    from hardcase.data import fetch

    got = fetch(name, source=source, offline=offline)
    counts = {split: f"{count:,} images, hash {got.hashes[split]}" for split, count in got.counts.items()}
    return {
        "data": name, **counts, "shape": " x ".join(map(str, got.shape)), "classes": list(got.classes),
        "from": got.route, "in": str(got.where),
    }  # fmt: skip


def _own(name: str) -> dict[str, Any]:
    from hardcase.data import describe, load

    train, test = (describe(load(name, split=split)) for split in ("train", "test"))
    counts = {part["split"]: f"{part['images']:,} images, hash {part['hash']}" for part in (train, test)}
    notes = list(dict.fromkeys([*train["notes"], *test["notes"]]))
    shape = " x ".join(map(str, test["shape"]))
    return {"data": name, **counts, "shape": shape, "classes": test["classes"], "notes": notes}


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
