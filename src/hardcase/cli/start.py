"""``hardcase demo``, ``init``, ``open`` and ``cache``: the main job on real digits, the way in with
your data, the way to a report, and the cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.options import answer, as_json, grid, note, opened, print_line, shown
from hardcase.cli.run import (
    KEPT_NETWORKS,
    NEEDED,
    format_summary,
    interrupted,
    load_interrupted,
    watched,
)
from hardcase.errors import INTERRUPTED, HardcaseError, likely_factory
from hardcase.wording.repair import figure_lines, headline
from hardcase.wording.summary import wrapped

if TYPE_CHECKING:
    from hardcase.repair import RepairResult
    from hardcase.runs.results import Run

WORLD = {"model": "zoo:lenet5", "data": "mnist5k", "conditions": "phone"}
"""A network that reads figures as they are scanned, and somebody who sends photographs of them."""
LIMIT = 0.1
"""The limit that is declared before the measurement: at most 10 % of photographs may be misread."""
RECIPE: Mapping[str, Any] = {"epochs": 8, "rate": 3e-3}
"""A training of seconds."""


DemoTask = StrEnum("DemoTask", "classes detection tags")
CANVASES = {
    DemoTask.detection: {"task": "boxes", "model": "zoo:digit-detector"},
    DemoTask.tags: {"task": "tags", "model": "zoo:digit-tagger"},
}
"""Networks of digits on canvases; wider ones of the same kind are their witnesses."""


@o.takes(
    *("seed", "out", "device", "show", *o.WATCHED),
    images=o.Row("Of detection and tags: images to search from.", "N", least=1),
    task=o.Row("detection and tags: of digits on canvases, by networks trained here."),
)
def demo(flags: o.Flags, images: int = 60, task: DemoTask = DemoTask.classes) -> None:
    """Measure a network that reads digits under a telephone's conditions, repair it, and measure
    the repaired network: FAIL, REPAIRED, PASS. Trains what is missing.
    """
    from hardcase.runs.folder import refuse_used

    home = flags.out or free(Path("runs/demo"))
    refuse_used(home)
    if task != DemoTask.classes:
        _claims_demo(CANVASES[task], home, images, flags)
        return
    from hardcase.suite.gate import decision_of

    before = _measured(WORLD["model"], home / "before", flags)
    _say_step(1, "measure", str(decision_of(before)), flags)
    repaired = _repaired(before, home / "repair", flags)
    _say_step(2, "repair", headline(repaired.record), flags)
    after = _measured(repaired.model, home / "after", flags)
    _say_step(3, "measure", str(decision_of(after)), flags)
    page = repaired.folder / "report.html"
    if flags.json:
        runs = {"before": before, "after": after}
        records = {name: {"folder": str(run.folder), **run.record} for name, run in runs.items()}
        decisions = {name: decision_of(run).word for name, run in runs.items()}
        as_json({"decisions": decisions, **records, "repair": repaired.record, "page": str(page)})
    elif not flags.quiet:
        print_line("\n".join(["", *figure_lines(repaired.record), "", *_next(home, page)]))
    if flags.show:
        typer.launch(page.absolute().as_uri())


def _next(home: Path, page: Path) -> list[str]:
    """The folders of the demo, and its commands as they are typed."""
    return [
        f"six pictures  {shown(page)}: misread before, read now",
        f"by hand       hardcase run --model {WORLD['model']} --data {WORLD['data']} --conditions"
        f" {WORLD['conditions']} --method none",
        f"              hardcase repair {shown(home / 'before')}",
    ]


def _say_step(number: int, name: str, decision: str, flags: o.Flags) -> None:
    """Print what a step has come to, as soon as it has."""
    if flags.json:
        return
    if flags.quiet:
        print_line(decision)
        return
    first, *more = wrapped(decision, indent=12)
    print_line("\n".join([f"{number} {name:<10}{first}", *(f"{'':<12}{line}" for line in more)]))


def _measured(model: str, folder: Path, flags: o.Flags) -> Run:
    """The failure rate of a network under the conditions of the demo, held against its limit."""
    from hardcase.api import conduct
    from hardcase.config import parse

    values = {
        **WORLD,
        "model": model,
        "method": "none",
        "judge": False,
        "limits": {"risk": LIMIT},
        "seed": flags.seed or 0,
        "device": flags.device or "auto",
    }
    run = None
    with watched(parse(values), folder, flags) as (context, screen):
        screen.prepare(NEEDED)
        run = conduct(context, folder, screen, log=flags.log)
    if run is None or interrupted(run):
        note(f"interrupted; {KEPT_NETWORKS}")
        raise typer.Exit(INTERRUPTED)
    return run


def _repaired(run: Run, folder: Path, flags: o.Flags) -> RepairResult:
    """The network of a run, trained on under its conditions and proved."""
    from hardcase.cli.repair import unseen_images
    from hardcase.config import parse
    from hardcase.context import Context
    from hardcase.repair.front import repair_network
    from hardcase.repair.loop import RepairRecipe

    context = Context(parse(run.store.settings()))
    return repair_network(
        context.subject,
        context.train,
        unseen_images(context, run),
        folder,
        conditions=run.record["conditions"],
        recipe=RepairRecipe(**RECIPE, seed=context.config.seed),
        proof="quick",
        margin=None,
        outside={},
        about={"findings": False, "run": str(run.folder)},
        log=flags.log,
    )


def _conclude(run: Run, page: Path, flags: o.Flags) -> None:
    """Print the result and the path of the page; open it if requested."""
    if flags.json:
        as_json({"page": str(page), "runs": [{"folder": str(run.folder), **run.record}]})
    elif flags.quiet:
        print_line(str(page))
    else:
        from hardcase.suite.gate import decision_of

        print_line("\n".join([*format_summary(run, decision_of(run)), f"report   {shown(page)}"]))
    if flags.show:
        typer.launch(page.absolute().as_uri())


def _claims_demo(world: dict[str, Any], home: Path, images: int, flags: o.Flags) -> None:
    """A search of a detector or tagger under declared conditions, and its report."""
    from hardcase.api import conduct
    from hardcase.config import parse
    from hardcase.report import report as write_report

    base = {"method": "natural", "conditions": "scanner", "data": "canvas5k", "images": images}
    place = {"seed": flags.seed or 0, "device": flags.device or "auto"}
    run = None
    folder = home / "natural"
    with watched(parse({**base, **place, **world}), folder, flags) as (context, screen):
        screen.prepare(NEEDED)
        run = conduct(context, folder, screen, log=flags.log)
    if run is None:
        run = load_interrupted(folder)
    if run is None or interrupted(run):
        note(KEPT_NETWORKS)
        raise typer.Exit(INTERRUPTED)
    _conclude(run, write_report(run, out=home / "report"), flags)


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
WEIGHTS = (".onnx", ".pt2", ".pt", ".pth", ".safetensors")
DEEP = 3
"""Folders inside folders that are looked through."""
MANY = 5_000
"""Files that are looked at."""


def look(folder: Path) -> dict[str, tuple[str, str]]:
    """The model and the data that a folder seems to hold, as their flags name them (empty where
    there is nothing) and the evidence; nothing is loaded or run."""
    files = list(_files(folder, DEEP))[:MANY]
    return {"model": _model(files), "data": _data(folder, files)}


def _files(folder: Path, depth: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__")) or path.name in ("runs", "node_modules", "venv"):
            continue
        if path.is_file():
            yield path
        elif path.is_dir() and depth:
            yield from _files(path, depth - 1)


def _model(files: list[Path]) -> tuple[str, str]:
    weights = {path.parent for path in files if path.name in HUB_WEIGHTS}
    hubs = [path.parent for path in files if path.name == "config.json" and path.parent in weights]
    if hubs:
        return f"hf:{hubs[0]}", f"{hubs[0]} is a Hugging Face model"
    weight_files = [path for path in files if path.suffix in WEIGHTS]
    code = [path for path in files if path.suffix == ".py" and "nn.Module" in _text(path)]
    programs = [path for path in weight_files if path.suffix in (".onnx", ".pt2")]
    if programs:
        form = f"onnx:{programs[0]}" if programs[0].suffix == ".onnx" else str(programs[0])
        return form, f"{programs[0]} holds a network"
    if code:
        factory = f"{code[0]}:{likely_factory(code[0])}"
        if weight_files:
            return (
                f"{weight_files[0]}@{factory}",
                f"weights in {weight_files[0]}, code in {code[0]}",
            )
        return factory, f"{code[0]} defines a network"
    if weight_files:
        return (
            f"{weight_files[0]}@file.py:factory",
            f"{weight_files[0]} holds weights; its code was not found",
        )
    return "", "no model was found here"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:100_000]
    except (OSError, UnicodeDecodeError):
        return ""


def _data(folder: Path, files: list[Path]) -> tuple[str, str]:
    for suffix in (".csv", ".npz", ".parquet"):
        data_files = [path for path in files if path.suffix == suffix]
        if data_files:
            return f"{suffix[1:]}:{data_files[0]}", f"{data_files[0]} is a table of images"
    images = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not images:
        return "", "no images were found here"
    roots = {path.parent.parent for path in images if path.parent != folder}
    if not roots:
        return f"folder:{folder}?labels=prefix", "images without class folders"
    root = min(roots, key=lambda path: len(path.parts))
    root = root.parent if root.name in ("train", "test") else root
    classes = len({path.parent.name for path in images})
    return f"folder:{root}", f"{len(images):,} images in {classes} class folders of {root}"


CONFIG = """\
# What `hardcase run` does in this folder; flags override it. Keys and values:
# docs/reference/configuration.md, or hardcase run --help-all.
data = "{data}"        # folder:PATH (?resize=224&crop=center), csv:, npz:, parquet:, mnist5k ...
# method = "natural"   # chosen by what the model offers; others: hardcase list methods
images = {images}            # images to search from
seed = 0               # everything random follows from it
# conditions = "handheld"  # how often it fails there is measured; chosen by the images: scanner,
#                            handheld, phone, fixed-camera, outdoors, microscope, FILE.toml or none
# baseline = ["zoo:lenet1"]  # models, or folders of runs, to compare with on the same samples

[model]
name = "{model}"       # zoo:NAME, file.py:factory, weights@file.py:factory, hf:, timm:, onnx: ...
# how it wants its images, where it does not say so itself:
# mean = [0.485, 0.456, 0.406]
# std = [0.229, 0.224, 0.225]

[budget]               # per image; without them the method's own
# queries = 400
# gradients = 100

[limits]               # read by `hardcase gate` and shown by the report
# risk = 0.05          # failure rate under the declared conditions, at most
margin = 0.01          # by how much it may exceed the baseline's
# accuracy = 0.95      # on unmodified images, at least
"""


@o.takes("model", "data", "quiet")
def init(
    flags: o.Flags,
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where to look; here by default.")
    ] = Path(),
) -> None:
    """Look at a folder and write a commented hardcase.toml for what is in it."""
    from hardcase.cache import write_atomically

    if not folder.is_dir():
        raise HardcaseError(f"{folder} is not a folder.", fix="hardcase init FOLDER")
    target = folder / o.PROJECT
    if target.exists():
        raise HardcaseError(f"{target} exists and stays as it is.", fix=f"remove {target} first")
    named = {"model": flags.model, "data": flags.data}
    for name, (value, text) in look(folder).items():
        if named[name] is None:
            named[name] = value
            flags.log(text)
    model, data = named["model"] or "", named["data"] or ""
    filled = CONFIG.format(model=model or "zoo:lenet5", data=data or "mnist5k", images=60)
    write_atomically(target, filled.encode())
    print_line(f"wrote {shown(target)}")
    doubtful = not (model and data) or model.endswith("file.py:factory")
    step = "edit model and data in it, then: " if doubtful else ""
    place = "" if folder == Path() else f" {shown(target)}"
    print_line(f"next: {step}hardcase doctor{place}, then hardcase run{place}")


def open_run(
    folder: o.OneRun,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print the page's path, open nothing.")
    ] = False,
) -> None:
    """Write the report of a run and open it in the browser."""
    o.require_folders(folder)
    from hardcase.report import report

    # always anew: a page that came with somebody else's folder may hold any script
    page = report(opened(folder))
    print_line(str(page))
    if not quiet and typer.launch(page.absolute().as_uri()):
        note("no browser could be opened; open the page above by hand")


class CacheEntry(NamedTuple):
    """Something in the cache: what it is, its name, and the bytes it takes."""

    kind: str
    name: str
    size: int


def kept(home: Path) -> list[CacheEntry]:
    """All that the cache holds, the largest first."""
    entries = [
        CacheEntry(kind.name, path.name, _size(path))
        for kind in sorted(home.iterdir() if home.is_dir() else ())
        if kind.is_dir()
        for path in kind.iterdir()
    ]
    return sorted(entries, key=lambda entry: -entry.size)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(inner.stat().st_size for inner in path.rglob("*") if inner.is_file())


@o.takes(
    "format",
    clear=o.Row("Remove what has NAME in its name; all: everything, asked first.", "NAME"),
    yes=o.Row("Do not ask before removing."),
)
def cache(flags: o.Flags, clear: str | None = None, yes: bool = False) -> None:
    """List the cache (data, trained networks) with sizes, or remove entries."""
    from hardcase.cache import cache_folder

    home = cache_folder()
    entries = kept(home)
    if clear is not None:
        _clear(home, [entry for entry in entries if clear == "all" or clear in entry.name], yes)
        return
    rows = [(entry.kind, entry.name, _megabytes(entry.size)) for entry in entries]
    total = (
        f"{len(entries)} entries, {_megabytes(sum(entry.size for entry in entries))} MB in {home}"
    )
    record = {"folder": str(home), "entries": [entry._asdict() for entry in entries]}
    answer(flags, record, grid("", ("kind", "name", "MB"), rows), total)


def _clear(home: Path, chosen: list[CacheEntry], yes: bool) -> None:
    if not chosen:
        raise HardcaseError(
            "nothing in the cache has that name.", fix="hardcase cache lists what is kept"
        )
    size = _megabytes(sum(entry.size for entry in chosen))
    if not (yes or typer.confirm(f"remove {len(chosen)} entries, {size} MB, of {home}?")):
        print_line("nothing was removed")
        return
    for entry in chosen:
        path = home / entry.kind / entry.name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    print_line(
        f"removed {len(chosen)} entries, {size} MB; they are fetched or trained again when needed"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"
