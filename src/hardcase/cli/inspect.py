"""``hardcase doctor``, ``data``, ``layers`` and ``coverage``: what is there, and is it in order."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, console, facts, grid, note, tell
from hardcase.errors import USAGE, Problem

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.models.subject import Subject
    from hardcase.training.loop import TrainingProgress
    from hardcase.types import Images, Model


# --- ``hardcase coverage``: measure any image set with any criteria in one pass.

RUN = "run:"


def coverage(
    model: Annotated[str, typer.Option(help="zoo:NAME, file.py:factory ...")],
    data: Annotated[
        str, typer.Option(help="What to measure; run:RUN measures what a run has found.")
    ] = "mnist5k",
    criteria: Annotated[
        str, typer.Option(metavar="A,B:k=3", help="See: hardcase list criteria.")
    ] = "nc,kmnc,nbc,snac,tknc",
    convention: Annotated[
        str, typer.Option(help="default, or that of a known tool: deepxplore, deepgauge ...")
    ] = "default",
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Whose train split the model knows; by default that of --data."
        ),
    ] = None,
    split: Annotated[
        o.Split, typer.Option(help="Which part of the data to measure.")
    ] = o.Split.test,
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", min=1, help="Measure a balanced sample of so many."),
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
    from hardcase.cli.options import resolve
    from hardcase.cli.run import logging_to
    from hardcase.context import subject
    from hardcase.data.sources import load
    from hardcase.suite.coverage import coverage as measured
    from hardcase.suite.coverage import specs_of

    logging_to(verbose=verbose, quiet=quiet)
    specs = specs_of(criteria)
    source = profile or (_data_of(Path(data.removeprefix(RUN))) if data.startswith(RUN) else data)
    config = resolve({**flags, "data": source, "seeds": None, "split": None}, {"method": "pgd"})
    images = load(data, split=split, offline=offline)
    images = images if count is None else images.sample(count=count, seed=config.seed)
    seeds = _seeds(data, images) if "seed-test" in criteria else None
    if not quiet:
        note(
            f"measuring {len(images):,} images of {data}; profile from the train split of {source}"
        )
    batch = 0 if config.batch_size == "auto" else config.batch_size
    known = load(source, split="train", offline=offline)
    rows = measured(
        subject(config, model),
        images,
        specs,
        profile=known,
        convention=convention,
        seeds=seeds,
        batch=batch,
    )
    as_json(rows) if format == "json" else _show(rows)


def _show(rows: list[dict[str, Any]]) -> None:
    columns = ["criterion", "value", "covered", "total", "seconds"]
    console().print(grid("", columns, [[row[name] for name in columns] for row in rows]))
    tell(facts({row["criterion"]: _words(row["convention"]) for row in rows}))
    note("coverage says what was reached, not what is right: raising it need not find more faults")


def _words(convention: dict[str, Any]) -> str:
    said = {
        key: "+".join(value) if isinstance(value, list) else value
        for key, value in convention.items()
    }
    return ", ".join(f"{key}={value}" for key, value in said.items())


def _data_of(run: Path) -> str:
    from hardcase.cli.run import read_json

    return str(read_json(run / "run.json")["data"])


def _seeds(data: str, images: Images) -> Images | None:
    """The seeds from which the findings of a run were made, row by row."""
    if not data.startswith(RUN):
        return None
    from dataclasses import replace

    from hardcase.runs.results import Run
    from hardcase.runs.tables import read_images

    run = Run(data.removeprefix(RUN))
    made = dict(zip(run.findings["id"].to_pylist(), run.findings["seed"].to_pylist()))
    place = {name: i for i, name in enumerate(run.seeds["id"].to_pylist())}
    pictures = read_images(run.seeds["image"])
    return replace(images, x=pictures[[place[made[name.rpartition("/")[2]]] for name in images.id]])


# --- ``hardcase data``: fetch a public data set, or look at one's own.


def data(
    name: Annotated[
        str,
        typer.Argument(help="mnist, fashion, cifar10 ..., or folder:PATH, npz:PATH, parquet:PATH."),
    ],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="PATH", help="A folder or archive to import.")
    ] = None,
    offline: o.Offline = False,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Bring a data set into the cache, checked by its content; or say what data of your own holds."""
    from hardcase.cli.run import logging_to

    logging_to(verbose=verbose, quiet=quiet)
    said = _own(name) if ":" in name and source is None else _public(name, source, offline)
    if format == "json":
        as_json(said)
    elif not quiet:
        tell(facts({key: _words_of_data(value) for key, value in said.items() if value}))


def _public(name: str, source: Path | None, offline: bool) -> dict[str, Any]:
    from hardcase.data.public import fetch

    got = fetch(name, source=source, offline=offline)
    counts = {
        split: f"{count:,} images, hash {got.hashes[split]}" for split, count in got.counts.items()
    }
    return {
        "data": name, **counts, "shape": " x ".join(map(str, got.shape)), "classes": list(got.classes),
        "from": got.route, "in": str(got.where),
    }  # fmt: skip


def _own(name: str) -> dict[str, Any]:
    from hardcase.data.sources import describe, load

    train, test = (describe(load(name, split=split)) for split in ("train", "test"))
    counts = {
        part["split"]: f"{part['images']:,} images, hash {part['hash']}" for part in (train, test)
    }
    notes = list(dict.fromkeys([*train["notes"], *test["notes"]]))
    shape = " x ".join(map(str, test["shape"]))
    return {"data": name, **counts, "shape": shape, "classes": test["classes"], "notes": notes}


def _words_of_data(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


# --- The examinations of ``hardcase doctor``, one after the other, each with its remedy.

OPTIONAL = {
    "onnxruntime": ("onnx", "ONNX models"),
    "torchvision": ("torchvision", "torchvision models"),
    "ray": ("ray", "clusters"),
    "pandas": ("frame", "run.to_frame()"),
    "datasets": ("datasets", "reading findings as a data set"),
}


class Finding(NamedTuple):
    """One line of the doctor."""

    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""


def environment() -> Iterator[Finding]:
    """Versions, arithmetic, threads, devices, cache, optional libraries."""
    import torch

    from hardcase import __version__
    from hardcase.runs.start import strict_arithmetic

    yield Finding(
        "versions",
        "ok",
        f"hardcase {__version__}, Python {platform.python_version()}, torch {torch.__version__}",
    )
    if strict_arithmetic():
        yield Finding(
            "arithmetic", "ok", f"MKL_CBWR={os.environ['MKL_CBWR']}: the same bits in every batch"
        )
    else:
        remedy = "unset MKL_CBWR, or set it to AUTO,STRICT before Python starts"
        yield Finding(
            "arithmetic",
            "warning",
            "MKL_CBWR is not strict: findings may differ in their last bits",
            remedy,
        )
    yield Finding("threads", "ok", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    yield Finding(
        "devices", "ok", ", ".join(["cpu", *(f"cuda:{i} {name}" for i, name in enumerate(gpus))])
    )
    yield _cache()
    for name, (extra, purpose) in OPTIONAL.items():
        yield _optional(name, extra, purpose)


def job(config: Config, progress: Callable[[TrainingProgress], None]) -> Iterator[Finding]:
    """The data, the model, their fit, and a short run; the first problem ends it, for the rest depends on it."""
    try:
        yield from _job(config, progress)
    except Problem as problem:
        detail = " ".join([problem.what, *problem.why])
        yield Finding("here it stops", "problem", detail, problem.fix)


def _job(config: Config, progress: Callable[[TrainingProgress], None]) -> Iterator[Finding]:
    from hardcase.context import seeds, subject
    from hardcase.data.sources import describe, load
    from hardcase.models.health import check

    images = load(config.data, split=config.split, offline=config.offline)
    about = describe(images)
    shape = " x ".join(map(str, about["shape"]))
    yield Finding(
        "data",
        "ok",
        f"{config.data}: {about['images']:,} {images.split} images of {shape}, {len(images.classes)} classes",
    )
    for text in about["notes"]:
        yield Finding("data", "warning", text)
    model = subject(config, config.model, progress)
    yield Finding("model", "ok", f"{config.model}: {_kind(model)}, on {model.device}")
    health = check(model, seeds(config), allow_low_accuracy=config.allow_low_accuracy)
    yield Finding(
        "accuracy",
        "ok",
        f"{100 * health.accuracy:.1f} % of {health.images} images, mean confidence {health.confidence:.2f}",
    )
    yield _normalisation(config, model)
    batch = (
        "answers do not depend on the batch"
        if health.bitwise
        else "answers depend on the batch in their last bits"
    )
    yield Finding("repeatable", "ok" if health.bitwise else "warning", batch)
    for text in health.notes:
        yield Finding("model", "warning", text)
    yield _smoke(config, progress)


def _kind(model: Model) -> str:
    from hardcase.models.subject import Subject

    if not isinstance(model, Subject):
        return f"a black box that offers {model.offers}"
    weights = sum(parameter.numel() for parameter in model.net.parameters())
    return f"{weights:,} weights, returns {model.outputs}"


def _normalisation(config: Config, model: Model) -> Finding:
    """Images come in 0..1; whether the model was trained so shows in its accuracy, whether it was said shows here."""
    from hardcase.models.subject import Subject

    mean, std = list(config.subject.mean), list(config.subject.std)
    if isinstance(model, Subject):
        mean, std = model.mean.flatten().tolist(), model.std.flatten().tolist()
    if mean == [0.0] * len(mean) and std == [1.0] * len(std):
        inside = (
            "" if config.model.startswith("zoo:") else "; right if the model was trained on 0..1"
        )
        return Finding("normalisation", "ok", f"none: the model sees 0..1{inside}")
    shown = ", ".join(f"({m:.3g}, {s:.3g})" for m, s in zip(mean, std))
    return Finding("normalisation", "ok", f"(mean, std) by channel: {shown}")


def _smoke(config: Config, progress: Callable[[TrainingProgress], None]) -> Finding:
    """A few seeds for at most ten seconds, into a folder that is thrown away."""
    from hardcase.config import parse
    from hardcase.context import plan
    from hardcase.runs.start import start

    short = {
        "seeds": min(config.seeds, 16),
        "workers": 1,
        "budget": {**config.budget.model_dump(), "time": "10s"},
    }
    smoke = parse({**config.model_dump(), **short})
    with tempfile.TemporaryDirectory(prefix="hardcase-") as folder:
        record = start(plan(smoke, progress), Path(folder) / "run").record
    counts = record["funnel"]
    detail = f"{config.method.name}: {counts['failing']} of {counts['attempted']} seeds failing, {record['elapsed']:.1f} s"
    if not counts["attempted"]:
        return Finding("smoke run", "warning", detail, "a longer look: hardcase run --seeds 16")
    return Finding("smoke run", "ok", detail)


def _cache() -> Finding:
    from hardcase.cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return Finding(
            "cache",
            "problem",
            f"{folder} cannot be written: {error.strerror}",
            "HARDCASE_CACHE=/another/folder",
        )
    return Finding("cache", "ok", str(folder))


def _optional(name: str, extra: str, purpose: str) -> Finding:
    if find_spec(name) is None:
        return Finding(
            "optional",
            "ok",
            f"{name} is not installed; it is only needed for {purpose} (pip install 'hardcase[{extra}]')",
        )
    return Finding("optional", "ok", f"{name} {metadata.version(name)} for {purpose}")


# --- ``hardcase doctor``: is everything in order, and if not, what is to be done.


def doctor(
    config: o.ConfigFile = None,
    model: o.Model = None,
    data: o.Data = None,
    method: o.Method = None,
    settings: o.Settings = None,
    device: o.Device = None,
    offline: o.Offline = False,
    allow_low_accuracy: o.AllowLow = False,
    trust_pickle: o.TrustPickle = False,
    format: o.AsFormat = o.Format.text,
    verbose: o.Verbose = False,
) -> None:
    """Check the environment, the model, the data and their normalisation, and make a ten-second smoke run."""
    flags = dict(locals())
    from hardcase.cli.options import resolve
    from hardcase.cli.progress import front
    from hardcase.cli.run import logging_to

    logging_to(verbose=verbose, quiet=not verbose)
    wanted = resolve(flags, {"model": "zoo:lenet5", "data": "mnist5k", "method": "pgd"})
    seen = list(_told(environment(), show=format == "text"))
    with front("plain") as screen:
        seen += _told(job(wanted, screen.train), show=format == "text")
    if format == "json":
        as_json(
            [
                {"what": one.what, "state": one.state, "detail": one.detail, "remedy": one.remedy}
                for one in seen
            ]
        )
    bad = sum(one.state == "problem" for one in seen)
    if format == "text":
        tell(f"\n{bad} problem{'s' if bad != 1 else ''}" if bad else "\neverything is in order")
    if bad:
        raise typer.Exit(USAGE)


def _told(findings: Iterator[Finding], *, show: bool) -> Iterator[Finding]:
    for one in findings:
        if show:
            tell(
                f"{one.state:<8} {one.what:<14} {one.detail}"
                + (f"\n{'':24}try: {one.remedy}" if one.remedy else "")
            )
        yield one


# --- ``hardcase layers``: what a model is made of.


def layers(
    model: Annotated[str, typer.Option(help="zoo:NAME, file.py:factory ...")],
    data: Annotated[str, typer.Option(help="Whose images the model takes.")] = "mnist5k",
    device: o.Device = None,
    offline: o.Offline = False,
    trust_pickle: o.TrustPickle = False,
    format: o.AsFormat = o.Format.text,
) -> None:
    """Show a model's layers in the order in which they run: names, shapes, unit counts."""
    from hardcase.criteria.network import survey
    from hardcase.data.sources import load
    from hardcase.tensors import from_bytes

    images = load(data, split="test", offline=offline).first(1)
    subject = _subject(
        model, images, data, device=device, offline=offline, trust_pickle=trust_pickle
    )
    rows: list[dict[str, Any]] = [
        {"name": layer.name, "kind": layer.kind, "shape": list(layer.shape), "channels": layer.channels, "units": layer.units}
        for layer in survey(subject, from_bytes(images.x.to(subject.device))).layers
    ]  # fmt: skip
    if format == "json":
        as_json(rows)
        return
    cells = [
        [
            row["name"],
            row["kind"],
            " x ".join(map(str, row["shape"])),
            row["channels"],
            row["units"],
        ]
        for row in rows
    ]
    total = sum(row["units"] for row in rows)
    title = f"{model}: {len(rows)} layers, {total:,} units"
    console().print(grid(title, ["name", "kind", "shape", "channels", "units"], cells))


def _subject(
    model: str, images: Images, data: str, *, device: str | None, offline: bool, trust_pickle: bool
) -> Subject:
    """The model as it would be tested; one of the zoo is not trained for that, its layers are known without."""
    from hardcase.config import parse
    from hardcase.context import subject
    from hardcase.models.load import network
    from hardcase.models.subject import Subject
    from hardcase.models.zoo import build_classifier

    if model.startswith("zoo:"):
        channels, size, _ = images.x.shape[1:]
        return Subject(
            build_classifier(model[4:], channels=channels, size=size, classes=len(images.classes)),
            name=model,
        )
    values = {
        "model": model,
        "data": data,
        "method": "pgd",
        "offline": offline,
        "trust_pickle": trust_pickle,
    }
    return network(subject(parse({**values, **({"device": device} if device else {})}), model))
