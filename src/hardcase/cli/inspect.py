"""``hardcase list``, ``doctor``, ``data``, ``layers`` and ``coverage``: what there is, and whether
it is in order. Nothing here imports torch before a verb needs it.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from hardcase import companions, registry
from hardcase.cli import options as o
from hardcase.cli.options import (
    answer,
    as_json,
    console,
    facts,
    grid,
    note,
    opened,
    plural,
    print_line,
    table_of,
)
from hardcase.errors import USAGE, HardcaseError, choice

if TYPE_CHECKING:
    from hardcase.claims.annotations import AnnotatedImages
    from hardcase.config import Config
    from hardcase.data.files import ImageSet
    from hardcase.models.subject import Subject
    from hardcase.training.cards import TrainingProgress
    from hardcase.types import Images, Model

KINDS = (
    *("methods", "criteria", "metrics", "data", "models", "generators", "spaces", "searches"),
    *("objectives", "oracles", "guides", "judges", "experiments", "plugins"),
)
# mypy cannot see members that are computed
What = StrEnum("What", {name: name for name in KINDS})  # type: ignore[misc]
SHOWN = ("name", "summary", "needs", "paper", "laws")
"""What every row has, with and without ``--verbose``."""


RECOMMENDED = {
    "natural": "a PyTorch network: realistic changes that other networks still read; the default",
    "natural-blackbox": "a model that is only asked: ONNX, TFLite, a server, labels alone",
    "pgd": "how far the smallest change of pixels goes that breaks a network, for comparison",
    "sinvad": "research: new images from a generator's code, near the border of two classes",
    "deephunter": "research: fuzzing that follows neuron coverage",
}
"""The methods that ``list methods`` shows, and whom or what each is for."""


def rows(kind: str) -> list[dict[str, Any]]:
    """The rows of a table: those of experiments and plug-ins are read from entry points, all others
    from the stored catalogue."""
    if kind == "plugins":
        return companions.plugin_rows()
    if kind != "experiments":
        return registry.rows(kind)
    every = companions.studies().values()
    return [{key: getattr(row, key, []) for key in SHOWN} for row in every]


def listing(
    what: Annotated[What, typer.Argument(help="Which table.")],
    name: Annotated[
        str | None, typer.Argument(help="One row in full: a name of the table.")
    ] = None,
    format: o.AsFormat = o.Format.text,
    all: Annotated[bool, typer.Option("--all", help="All methods, not the usual ones.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Everything that is known of each row.")
    ] = False,
) -> None:
    """List what exists: methods, criteria, data sets, models, plug-ins and more."""
    table = rows(str(what))
    if name is not None:
        table = [_named(name, str(what), table)]
    elif not verbose:
        table = [{key: row[key] for key in SHOWN} for row in table]
    if format == "json":
        as_json(table)
    elif not table:
        print_line(f"no {what} yet")
    elif verbose or name is not None:
        print_line("\n\n".join(facts(_in_words(row)) for row in table))
    elif str(what) == "methods" and not all:
        _recommended(table)
    else:
        screen = console()
        columns = ("name", "needs", "summary", "paper")[: 4 if screen.width >= 120 else 3]
        screen.print(table_of(table, columns))


def _recommended(table: list[dict[str, Any]]) -> None:
    """Print the methods that people need first, and how to see the others."""
    papers = {row["name"]: row["paper"] for row in table}
    chosen = [(name, words, papers[name]) for name, words in RECOMMENDED.items()]
    console().print(grid("", ("method", "for", "paper"), chosen))
    rest = len(table) - len(chosen)
    print_line(f"{rest} more: hardcase list methods --all; one in full: hardcase list methods NAME")


def _named(name: str, kind: str, table: list[dict[str, Any]]) -> dict[str, Any]:
    by_name = {row["name"]: row for row in table}
    if name not in by_name:
        return _others_row(name, kind, list(by_name))
    return by_name[name]


def _others_row(name: str, room: str, names: list[str]) -> dict[str, Any]:
    """The row of a part that is not ours: in a user's file, or in an installed plug-in."""
    from hardcase.catalogue import row_of

    kinds = {where: kind for kind, where in registry.ROOMS.items()}
    if room in kinds and (".py" in name or name in registry.names(kinds[room])):
        return row_of(registry.resolve(kinds[room], name))
    raise choice(f"row of {room}", name, names)


def _in_words(row: dict[str, Any]) -> dict[str, str]:
    """The content of a row, a line for each fact and each option."""
    texts = {key: _words(value) for key, value in row.items() if value and key != "options"}
    for name, option in row.get("options", {}).items():
        choices = f" (one of {', '.join(option['choices'])})" if option["choices"] else ""
        texts[f"option {name}"] = f"{_words(option['default'])}: {option['help']}{choices}".rstrip(
            ": "
        )
    return texts


def _words(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return str(value)


RUN = "run:"


@o.takes(
    *("settings", "device", "batch_size", "offline", "trust_pickle", *o.SAYS),
    model=o.Row("zoo:NAME, file.py:factory ..."),
    data=o.Row("Images to measure; run:RUN measures the failures of a run."),
    criteria=o.Row("See: hardcase list criteria.", "A,B:k=3"),
    convention=o.Row("default, or that of a known tool: deepxplore, deepgauge ..."),
    profile=o.Row("Data whose train split gives the profile; that of --data.", "DATA"),
    split=o.Row("Split of the data to measure."),
    count=o.Row("Measure a balanced sample of this size.", "N", least=1),
)
def coverage(
    flags: o.Flags,
    model: str,
    data: str = "mnist5k",
    criteria: str = "nc,kmnc,nbc,snac,tknc",
    convention: str = "default",
    profile: str | None = None,
    split: o.Split = o.Split.test,
    count: int | None = None,
) -> None:
    """Measure the share of a model that an image set covers; a diagnosis, never a pass mark."""
    from dataclasses import replace

    from hardcase.cli.run import read_json
    from hardcase.context import Context
    from hardcase.criteria.criterion import specs_of
    from hardcase.suite.coverage import coverage as measured

    specs = specs_of(criteria)
    source = profile or data
    if source.startswith(RUN):
        source = str(read_json(Path(source.removeprefix(RUN)) / "run.json")["data"])
    config = o.resolve(vars(replace(flags, model=model, data=source)), {"method": "pgd"})
    context = Context(config)
    images = context.named_images(data, split)
    if count is not None:
        images = images.sample(count=count, seed=config.seed)
    seeds = _seeds(data, images) if "seed-test" in criteria else None
    profiled = f"profile from the train split of {source}"
    flags.log(f"measuring {len(images):,} images of {data}; {profiled}")
    rows = measured(
        context.subject,
        images,
        specs,
        profile=context.train,
        convention=convention,
        seeds=seeds,
        batch=0 if config.batch_size == "auto" else config.batch_size,
    )
    columns = ("criterion", "value", "covered", "total", "seconds")
    summaries = {row["name"]: row["summary"] for row in registry.rows("criteria")}
    meanings = {
        row["criterion"]: summaries.get(row["criterion"].partition(":")[0], "") for row in rows
    }
    answer(flags, rows, table_of(rows, columns), facts({k: v for k, v in meanings.items() if v}))
    if flags.verbose and not flags.json:
        note(facts({row["criterion"]: _convention(row["convention"]) for row in rows}))
    if not flags.json:
        note("value is covered of total: what these images reach of what the criterion counts")
        for row in rows:
            if "note" in row:
                note(row["note"])
        note("coverage says what was reached; raising it need not reveal more faults")


def _convention(settled: dict[str, Any]) -> str:
    values = {k: "+".join(v) if isinstance(v, list) else v for k, v in settled.items()}
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _seeds(data: str, images: Images) -> Images | None:
    """The originals of a run's failures, row by row."""
    if not data.startswith(RUN):
        return None
    from dataclasses import replace

    run = opened(Path(data.removeprefix(RUN)))
    originals = dict(zip(run.findings["id"].to_pylist(), run.findings["original"].to_pylist()))
    place = [run.seed_rows[originals[name.rpartition("/")[2]]] for name in images.id]
    return replace(images, x=run.seed_images(place))


@o.takes(*("offline", *o.SAYS), source=o.Row("A folder or archive to import.", "PATH", ("--from",)))
def data(
    flags: o.Flags,
    name: Annotated[
        str,
        typer.Argument(help="mnist, fashion, cifar10 ..., or folder:PATH, npz:PATH, parquet:PATH."),
    ],
    source: Path | None = None,
) -> None:
    """Fetch a data set into the cache, verified by checksum; or describe your own data."""
    from hardcase.data.public import fetch
    from hardcase.data.sources import describe, load

    brought = {}
    if ":" not in name or source is not None:
        path, route = fetch(name, source=source, offline=flags.offline)
        brought = {"from": route, "in": str(path)}
    parts = [
        describe(load(name, split=split, offline=flags.offline)) for split in ("train", "test")
    ]
    facts_of_data: dict[str, Any] = {
        "data": name,
        **{part["split"]: f"{part['images']:,} images, hash {part['hash']}" for part in parts},
        "shape": " x ".join(map(str, parts[1]["shape"])),
        "classes": parts[1]["classes"],
        "notes": list(dict.fromkeys(note for part in parts for note in part["notes"])),
        **brought,
    }
    words = {
        k: ", ".join(v) if isinstance(v, list | tuple) else v for k, v in facts_of_data.items() if v
    }
    answer(flags, facts_of_data, facts(words), quiet="")


TRYING = 3.0
"""Seconds of processor time for which the doctor tries what may be wrong with a model."""
OPTIONAL = {
    "onnxruntime": ("onnx", "ONNX models"),
    "ai_edge_litert": ("tflite", "TFLite files"),
    "torchvision": ("torchvision", "torchvision models"),
    "ray": ("ray", "clusters"),
    "pandas": ("frame", "data frames of a run"),
    "datasets": ("datasets", "data sets of Hugging Face"),
}


MAPPED = 12
"""Classes of the data whose output is shown."""
UNNAMED = "none"
"""The default model or method."""
SMOKE_QUERIES = 60
"""Queries per image that a smoke run asks of a black box."""
FEW = 16
"""Answers that show whether a black box says labels alone."""
SURE = 0.9999
"""Probability of a class from which on an answer says nothing else."""


class DoctorLine(NamedTuple):
    """A line of the doctor."""

    what: str
    state: Literal["ok", "warning", "problem"]
    detail: str
    remedy: str = ""


def environment() -> Iterator[DoctorLine]:
    """Versions, arithmetic, threads, devices, cache, optional libraries."""
    import torch

    from hardcase import __version__
    from hardcase.runs.verify import strict_arithmetic

    python = platform.python_version()
    versions = f"hardcase {__version__}, Python {python}, torch {torch.__version__}"
    yield DoctorLine("versions", "ok", versions)
    if strict_arithmetic():
        bits = f"MKL_CBWR={os.environ['MKL_CBWR']}: the same bits in every batch"
        yield DoctorLine("arithmetic", "ok", bits)
    else:
        bits = "MKL_CBWR is not strict: failures may differ in their last bits"
        remedy = "unset MKL_CBWR, or set it to AUTO,STRICT before Python starts"
        yield DoctorLine("arithmetic", "warning", bits, remedy)
    yield DoctorLine("threads", "ok", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    count = torch.cuda.device_count()
    gpus = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(count)]
    yield DoctorLine("devices", "ok", ", ".join(["cpu", *gpus]))
    yield _cache()
    there = [name for name in OPTIONAL if find_spec(name) is not None]
    installed = (f"{name} {metadata.version(name.replace('_', '-'))}" for name in there)
    yield DoctorLine("optional", "ok", ", ".join(installed) or "none of the optional libraries")
    lacking = [OPTIONAL[name] for name in OPTIONAL if name not in there]
    if lacking:
        extras = ",".join(extra for extra, _ in lacking)
        purposes = ", ".join(purpose for _, purpose in lacking)
        text = f"not here: what {purposes} need (pip install 'hardcase[{extras}]')"
        yield DoctorLine("optional", "ok", text)


def job(
    config: Config,
    progress: Callable[[TrainingProgress], None],
    print_line: Callable[[str], None] = lambda text: None,
) -> Iterator[DoctorLine]:
    """The data, the model, their fit, and a short run; the first problem ends it, for the rest
    depends on it."""
    try:
        yield from _job(config, progress, print_line)
    except HardcaseError as problem:
        detail = " ".join([problem.what, *problem.why])
        yield DoctorLine("stopped here", "problem", detail, _exact(problem.fix, config.data))


def _exact(fix: str, data: str) -> str:
    """A remedy that begins with options of the data, as the flag with them."""
    if not fix.startswith("?"):
        return fix
    from hardcase.models.mistakes import with_options

    options, _, rest = fix.partition(" ")
    words = dict(word.split("=") for word in options.removeprefix("?").split("&"))
    return f"{with_options(data, **words)} ({rest})"


def _job(
    config: Config, progress: Callable[[TrainingProgress], None], print_line: Callable[[str], None]
) -> Iterator[DoctorLine]:
    from hardcase.config import check_names
    from hardcase.context import Context
    from hardcase.data.sources import describe
    from hardcase.models.health import affordable, check, first_answers
    from hardcase.models.mistakes import trying
    from hardcase.tensors import steady
    from hardcase.types import is_photographic

    check_names(config)
    print_line("loading the data and the model")
    context = Context(_short(config), progress=progress)
    images = context.images(config.split)
    about = describe(images)
    shape = " x ".join(map(str, about["shape"]))
    counted = "images" if context.task.classifies else "claims about images"
    counts = f"{about['images']:,} {images.split} {counted} of {shape}"
    yield DoctorLine("data", "ok", f"{config.data}: {counts}, {len(images.classes)} classes")
    for text in about["notes"]:
        yield DoctorLine("data", "warning", text)
    if not context.task.classifies:
        yield from _annotations(context.annotated(config.split))
    model = context.subject
    yield DoctorLine("model", "ok", f"{config.model.name}: {_kind(model)}, on {model.device}")
    if context.task.classifies:
        first_answers(model, images.first(FEW).images())
    if is_photographic(images.shape):
        print_line("trying which sizes the model takes")
        with trying(TRYING / 2, print_line):
            yield from _sizes(model, images.shape[1])
    class_map = context.class_map
    if class_map is not None:
        rows = str(class_map).splitlines()
        more = f" … and {len(rows) - MAPPED} more" if len(rows) > MAPPED else ""
        yield DoctorLine("classes", "ok", "; ".join(rows[:MAPPED]) + more)
    seeds = context.seeds
    with trying(TRYING, print_line):
        yield from _mistakes(model, seeds.images())
        yield from _labels_alone(config, model, seeds)
    print_line("asking the model about the images")
    with trying(TRYING / 2, lambda text: None):
        sampled = affordable(model, seeds, TRYING / 2)
        lenient = config.allow_low_accuracy
        health = check(model, seeds, allow_low_accuracy=lenient, sample=sampled)
    right = f"{100 * health.accuracy:.1f} % (n = {health.images:,})"
    yield DoctorLine("accuracy", "ok", f"{right}, mean confidence {health.confidence:.2f}")
    yield _normalisation(config, model)
    if not steady(model.device):
        tested = "a run tests which tile of rows repeats every bit, and records it"
        yield DoctorLine("repeatable", "ok", tested)
    elif health.bitwise:
        yield DoctorLine("repeatable", "ok", "answers do not depend on the batch")
    else:
        bits = "answers depend on the batch in their last bits"
        yield DoctorLine("repeatable", "warning", bits)
    for text in health.notes:
        guessed = "probabilities" in text and config.model.outputs == "auto"
        remedy = "--set model.outputs=probabilities" if guessed else ""
        if "model.outputs=sigmoid" not in text:  # said with the other mistakes
            yield DoctorLine("model", "warning" if remedy else "ok", text, remedy)
    short = _short(config, model.offers)
    print_line(f"a short run of {short.method.name}")
    many = not context.task.classifies  # of few claims, a network may make none
    small = many or not is_photographic(context.shape)
    yield _smoke(short, None if many else model, progress, small=small)


def _annotations(annotated: AnnotatedImages) -> Iterator[DoctorLine]:
    """Oddities of annotated images, and a picture of a sample, which shows whether boxes and names
    are where they should be."""
    from hardcase.cache import cache_folder, write_atomically
    from hardcase.claims.load import draw_annotations

    for text in annotated.notes:
        yield DoctorLine("annotations", "warning", text)
    path = cache_folder() / "doctor" / "annotations.png"
    write_atomically(path, draw_annotations(annotated).save)
    yield DoctorLine("annotations", "ok", f"{min(12, len(annotated))} images drawn: {path}")


def _mistakes(model: Model, images: Images) -> Iterator[DoctorLine]:
    """The usual mistakes that sample images give away, each with the flag that mends it."""
    from hardcase.models.mistakes import diagnosis_of

    diagnosis = diagnosis_of(model, images)
    for mistake in diagnosis.mistakes if diagnosis else ():
        better = "" if mistake.accuracy is None else f" ({100 * mistake.accuracy:.0f} % right then)"
        yield DoctorLine(mistake.name, "warning", f"{mistake.what}{better}", mistake.fix)
    if diagnosis and diagnosis.tried:
        sizes = [pair for pair in diagnosis.tried if pair[0].endswith("pixels")]
        best = [max(sizes, key=lambda pair: pair[1])] if sizes else []
        others = [pair for pair in diagnosis.tried if pair not in sizes]
        shares = [("as it is", diagnosis.accuracy or 0.0), *others, *best]
        rates = ", ".join(f"{label} {100 * share:.0f} %" for label, share in shares)
        yield DoctorLine("tried", "ok", f"accuracy (n = {diagnosis.images}) {rates}")


def _labels_alone(config: Config, model: Model, seeds: ImageSet) -> Iterator[DoctorLine]:
    """That the scores of a black box say no more than its labels."""
    import torch

    from hardcase.models.health import answers
    from hardcase.models.subject import Subject

    has_task = bool(getattr(model, "task", ""))
    if isinstance(model, Subject) or has_task or model.offers != "scores":
        return
    sampled = seeds.take(torch.arange(min(len(seeds), FEW))).images()
    surest = answers(model, sampled).softmax(1).amax(1)
    if bool((surest > SURE).all()):
        what = f"one class has all the probability, in each of {len(sampled)} answers: labels alone"
        yield DoctorLine("answers", "warning", what, "--set model.label_only=true")


def _kind(model: Model) -> str:
    from hardcase.models.subject import Subject

    task = getattr(model, "task", "")
    if task:
        return f"answers {task}, offers {model.offers}"
    if not isinstance(model, Subject):
        return f"a black box that offers {'labels' if model.offers == 'label' else model.offers}"
    weights = sum(parameter.numel() for parameter in model.net.parameters())
    return f"{weights:,} weights, returns {model.outputs}"


def _sizes(model: Model, side: int) -> Iterator[DoctorLine]:
    """The sizes of images that a network takes, if it takes more than a single size."""
    from hardcase.models.mistakes import sizes_taken
    from hardcase.models.subject import Subject

    sizes = sizes_taken(model.net) if isinstance(model, Subject) else []
    if not sizes:
        return
    words = f"takes images of {min(sizes)} pixels"
    if len(sizes) > 1:
        words = f"takes images of {min(sizes)} to {max(sizes)} pixels"
    yield DoctorLine("sizes", "ok", f"the model {words}; these have {side}")


def _normalisation(config: Config, model: Model) -> DoctorLine:
    """Images are in 0..1; whether the model expects that shows in its accuracy, what was set shows
    here."""
    from hardcase.models.load import is_stated
    from hardcase.models.mistakes import flags_of, name_of
    from hardcase.models.subject import Subject

    mean = list(config.model.mean)
    std = list(config.model.std)
    if isinstance(model, Subject):
        mean = model.mean.flatten().tolist()
        std = model.std.flatten().tolist()
    if mean == [0.0] * len(mean) and std == [1.0] * len(std):
        inside = (
            ""
            if config.model.name.startswith("zoo:")
            else "; right if the model was trained on 0..1"
        )
        return DoctorLine("normalisation", "ok", f"none: the model sees 0..1{inside}")
    shown = ", ".join(f"({m:.3g}, {s:.3g})" for m, s in zip(mean, std))
    channels = f"(mean, std) by channel: {shown}"
    configured = (config.model.mean, config.model.std) != ((0.0,), (1.0,))
    if configured or is_stated(config.model.name):
        return DoctorLine("normalisation", "ok", channels)
    trial = f"normalisation {name_of(mean, std)}, found by trying the usual ones; {channels}"
    return DoctorLine("normalisation", "warning", trial, flags_of(tuple(mean), tuple(std)))


def _short(config: Config, offers: str | None = None) -> Config:
    """The configuration of the smoke run: of the named method, else of a method for a model that
    `offers` this (None: by its name) and that needs no training."""
    from hardcase.config import chosen_method, parse

    values = config.model_dump()
    if config.method.name != UNNAMED:
        return config
    name, _ = chosen_method(values, offers)
    method: dict[str, Any] = {"name": "pgd"}
    if name == "natural-blackbox":
        method = {"name": name, "search": "evolution"}
        if config.budget.queries is None:  # a server may count
            values["budget"]["queries"] = SMOKE_QUERIES
    return parse({**values, "method": method, "witnesses": ["none"], "conditions": "none"})


def _smoke(
    config: Config,
    model: Model | None,
    progress: Callable[[TrainingProgress], None],
    *,
    small: bool,
) -> DoctorLine:
    """A short run on sample images, into a temporary folder."""
    from hardcase.config import parse
    from hardcase.context import Context
    from hardcase.runs.plan import plan_of
    from hardcase.runs.start import start

    short = {
        "images": min(config.images or 16, 16 if small else 4),
        "workers": 1,
        "allow_low_accuracy": True,  # of more images, that was said before
        "budget": {**config.budget.model_dump(), "time": "10s" if small else "1s"},
    }
    smoke = parse({**config.model_dump(), **short})
    with tempfile.TemporaryDirectory(prefix="hardcase-") as folder:
        context = Context(smoke, subject=model, progress=progress)
        record = start(plan_of(context), Path(folder) / "run").record
    counts = record["search_results"]
    detail = (
        f"{config.method.name}: {counts['failing']} of {counts['searched']} images failing,"
        f" {record['elapsed']:.1f} s"
    )
    if not counts["searched"]:
        return DoctorLine("smoke run", "warning", detail, "a longer run: hardcase run --images 16")
    return DoctorLine("smoke run", "ok", detail)


def _cache() -> DoctorLine:
    from hardcase.cache import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        text = f"{folder} cannot be written: {error.strerror}"
        return DoctorLine("cache", "problem", text, "HARDCASE_CACHE=/another/folder")
    return DoctorLine("cache", "ok", str(folder))


@o.takes(
    *("config", "model", "data", "method", "task", "settings", "device", "offline"),
    *("allow_low_accuracy", "trust_pickle", "format", "verbose"),
)
def doctor(flags: o.Flags) -> None:
    """Check the environment; with a model, also the model, the data and their normalisation, and
    make a ten-second smoke run.
    """
    from hardcase.config import check_names

    o.logging_to(verbose=flags.verbose, quiet=not flags.verbose)
    wanted = o.resolve(vars(flags), {"model": UNNAMED, "data": "mnist5k", "method": UNNAMED})
    alone = wanted.model.name == UNNAMED
    if not alone and not flags.json:  # what is wrong with names is told before torch is imported
        check_names(wanted)
    from hardcase.cli.progress import front

    findings = list(_told(environment(), show=not flags.json))
    if not alone:
        with front("plain") as screen:
            findings += _told(job(wanted, screen.train, screen.prepare), show=not flags.json)
    counts = Counter(finding.state for finding in findings)
    words = [plural(counts[word], word) for word in ("problem", "warning") if counts[word]]
    verdict = f"\n{' and '.join(words) or 'everything is in order'}"
    if alone:
        verdict += (
            "; to check a model too: hardcase doctor --model net.py:make --data folder:photos"
        )
    answer(flags, [finding._asdict() for finding in findings], verdict)
    if counts["problem"]:
        raise typer.Exit(USAGE)


def _told(findings: Iterator[DoctorLine], *, show: bool) -> Iterator[DoctorLine]:
    for finding in findings:
        if show:
            remedy = f"\n{'':24}try: {finding.remedy}" if finding.remedy else ""
            print_line(f"{finding.state:<8} {finding.what:<14} {finding.detail}{remedy}")
        yield finding


@o.takes(
    *("device", "offline", "trust_pickle", "format"),
    model=o.Row("zoo:NAME, file.py:factory ..."),
    data=o.Row("Data whose images the model takes."),
)
def layers(flags: o.Flags, model: str, data: str = "mnist5k") -> None:
    """List a model's layers in forward order: names, shapes, unit counts."""
    from hardcase.criteria.network import trace_layers
    from hardcase.data.sources import load
    from hardcase.tensors import from_bytes

    images = load(data, split="test", offline=flags.offline).first(1)
    subject = _subject(model, images, data, flags)
    columns = ("name", "kind", "shape", "channels", "units")
    rows: list[dict[str, Any]] = [
        {name: getattr(layer, name) for name in columns}
        for layer in trace_layers(subject, from_bytes(images.x.to(subject.device))).layers
    ]
    drawn = [{**row, "shape": " x ".join(map(str, row["shape"]))} for row in rows]
    total = sum(row["units"] for row in rows)
    answer(flags, rows, table_of(drawn, columns, f"{model}: {len(rows)} layers, {total:,} units"))


def _subject(model: str, images: Images, data: str, flags: o.Flags) -> Subject:
    """The model as it would be tested; zoo models are not trained, since their layers are fixed."""
    from hardcase.config import parse
    from hardcase.context import Context
    from hardcase.models.load import network
    from hardcase.models.subject import Subject
    from hardcase.models.zoo import build_classifier

    if model.startswith("zoo:"):
        channels, size, _ = images.x.shape[1:]
        name = model.removeprefix("zoo:")
        classes = len(images.classes)
        net = build_classifier(name, channels=channels, size=size, classes=classes)
        return Subject(net, name=model)
    settings = {"offline": flags.offline, "trust_pickle": flags.trust_pickle}
    values = {"model": model, "data": data, "method": "pgd", "device": flags.device or "auto"}
    return network(Context(parse({**values, **settings})).subject)
