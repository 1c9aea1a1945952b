"""``hardcase coverage``: measure any image set with any criteria in one pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.speaking import as_json, console, facts, grid, note, tell

if TYPE_CHECKING:
    from hardcase.types import Images

RUN = "run:"


def coverage(
    model: Annotated[str, typer.Option(help="zoo:NAME, file.py:factory ...")],
    data: Annotated[str, typer.Option(help="What to measure; run:RUN measures what a run has found.")] = "mnist5k",
    criteria: Annotated[
        str, typer.Option(metavar="A,B:k=3", help="See: hardcase list criteria.")
    ] = "nc,kmnc,nbc,snac,tknc",
    convention: Annotated[
        str, typer.Option(help="default, or that of a known tool: deepxplore, deepgauge ...")
    ] = "default",
    profile: Annotated[
        str | None, typer.Option(metavar="DATA", help="Whose train split the model knows; by default that of --data.")
    ] = None,
    split: Annotated[o.Split, typer.Option(help="Which part of the data to measure.")] = o.Split.test,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="Measure a balanced sample of so many.")
    ] = None,
    settings: o.Settings = None,
    device: o.Device = None,
    batch_size: o.BatchSize = None,
    offline: o.Offline = False,
    trust_pickle: o.TrustPickle = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Measure how much of a model an image set reaches; a diagnosis, never a pass mark."""
    flags = dict(locals())
    from hardcase.cli.closing import logging_to
    from hardcase.cli.settings import resolve
    from hardcase.data import load
    from hardcase.measuring import coverage as measured
    from hardcase.measuring import specs_of
    from hardcase.planning import subject

    logging_to(verbose=verbose, quiet=quiet)
    specs = specs_of(criteria)
    source = profile or (_data_of(Path(data.removeprefix(RUN))) if data.startswith(RUN) else data)
    config = resolve({**flags, "data": source, "seeds": None, "split": None}, {"method": "pgd"})
    images = load(data, split=split, offline=offline)
    images = images if count is None else images.sample(count=count, seed=config.seed)
    seeds = _seeds(data, images) if "seed-test" in criteria else None
    if not quiet:
        note(f"measuring {len(images):,} images of {data}; profile from the train split of {source}")
    batch = 0 if config.batch_size == "auto" else config.batch_size
    known = load(source, split="train", offline=offline)
    rows = measured(
        subject(config, model), images, specs, profile=known, convention=convention, seeds=seeds, batch=batch
    )
    as_json(rows) if format == "json" else _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    columns = ["criterion", "value", "covered", "total", "seconds"]
    console().print(grid("", columns, [[row[name] for name in columns] for row in rows]))
    tell(facts({row["criterion"]: _words(row["convention"]) for row in rows}))
    note("coverage says what was reached, not what is right: raising it need not find more faults")


def _words(convention: dict[str, Any]) -> str:
    said = {key: "+".join(value) if isinstance(value, list) else value for key, value in convention.items()}
    return ", ".join(f"{key}={value}" for key, value in said.items())


def _data_of(run: Path) -> str:
    from hardcase.cli.status import read_json

    return str(read_json(run / "run.json")["data"])


def _seeds(data: str, images: Images) -> Images | None:
    """The seeds from which the findings of a run were made, row by row."""
    if not data.startswith(RUN):
        return None
    from dataclasses import replace

    from hardcase.results import Run
    from hardcase.store import read_images

    run = Run(data.removeprefix(RUN))
    made = dict(zip(run.findings["id"].to_pylist(), run.findings["seed"].to_pylist()))
    place = {name: i for i, name in enumerate(run.seeds["id"].to_pylist())}
    pictures = read_images(run.seeds["image"])
    return replace(images, x=pictures[[place[made[name.rpartition("/")[2]]] for name in images.id]])
