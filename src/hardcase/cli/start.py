"""``hardcase demo``, ``init``, ``open`` and ``cache``: the main job on real digits, the way in with
data of one's own, the way to a report, and what is kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.options import answer, as_json, grid, note, opened, shown, tell
from hardcase.cli.run import (
    KEPT_NETWORKS,
    NEEDED,
    broken,
    closing,
    front_of,
    interrupted,
    left_behind,
    stored,
    watched,
)
from hardcase.cli.train import demonstrate, tell_repair
from hardcase.errors import INTERRUPTED, Problem, likely_factory

if TYPE_CHECKING:
    from hardcase.context import Context
    from hardcase.repair import RepairResult
    from hardcase.runs.results import Run

WORLD = {"model": "zoo:lenet5", "data": "mnist5k", "witnesses": "default:24"}
"""Half of the usual lessons of a witness, which read 97 to 98 % of the digits."""
REFERENCE = "zoo:lenet1"
"""A plainer network of the same digits, to say better than what."""
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "natural"},
    {"name": "pgd", "epsilon": 0.2},
    {"name": "cw", "steps": 40, "rounds": 5},
)
"""Bent digits that other networks still read, and two yardsticks."""


DemoTask = StrEnum("DemoTask", "classes detection tags")
CANVASES = {
    DemoTask.detection: {"task": "boxes", "model": "zoo:digit-detector"},
    DemoTask.tags: {"task": "tags", "model": "zoo:digit-tagger"},
}
"""Networks of digits on canvases; wider ones of the same kind are their witnesses."""


@o.takes(
    *("seed", "out", "device", "show", *o.WATCHED),
    seeds=o.Row("Number of seed images to start from.", "N", least=1),
    task=o.Row("detection and tags: of digits on canvases, by networks trained here."),
)
def demo(flags: o.Flags, seeds: int = 60, task: DemoTask = DemoTask.classes) -> None:
    """Measure how often LeNet-5 fails on handwritten digits, search it with three methods, judge
    the findings, write one report, repair the network; trains what is missing.
    """
    from hardcase.report.page import write
    from hardcase.runs.folder import refuse_used

    home = flags.out or free(Path("runs/demo"))
    refuse_used(home)
    if task != DemoTask.classes:
        _claims_demo(CANVASES[task], home, seeds, flags)
        return
    base = {
        **WORLD,
        "seeds": seeds,
        "seed": flags.seed or 0,
        "device": flags.device or "auto",
    }
    runs: list[tuple[Run, Context]] = []
    with _assistant(flags) as assistant:
        for method in METHODS:
            name = method["name"]
            first = name == METHODS[0]["name"]
            # the risk is the model's, whatever method searches it
            own = {"references": REFERENCE} if first else {"conditions": "none"}
            runs.append(_one({**base, **own, "method": method}, home / name, flags))
            if first:  # something to look at while the rest goes on
                page = write([runs[0][0]], home / "report")
                flags.say(f"first images, not yet judged: {shown(page)}")
        judged = _judged(runs, flags, assistant)
    page = write(judged, home / "report")
    repaired = demonstrate(runs[0][1], judged[0], home / "repair", flags)
    _conclude(judged, page, flags, repaired)


def _conclude(
    runs: list[Run], page: Path, flags: o.Flags, repaired: RepairResult | None = None
) -> None:
    """Print what was found and where the page is; open it where that was asked for."""
    if flags.json:
        records = [{"folder": str(run.folder), **run.record} for run in runs]
        repair = {"repair": repaired.record} if repaired else {}
        as_json({"page": str(page), "runs": records, **repair})
    elif flags.quiet:
        tell(str(page))
    else:
        tell("\n".join([closing(runs[0]).rpartition("\n")[0], *map(broken, runs[1:]), ""]))
        if repaired is not None:
            tell_repair(repaired, quiet=True)
        tell(f"report   {shown(page)}")
    if flags.show:
        typer.launch(page.absolute().as_uri())


def _claims_demo(world: dict[str, Any], home: Path, seeds: int, flags: o.Flags) -> None:
    """One search of a detector or tagger under declared conditions, and its report."""
    from hardcase.api import conduct
    from hardcase.config import parse
    from hardcase.report.page import write

    base = {"method": "natural", "conditions": "scanner", "data": "canvas5k", "seeds": seeds}
    place = {"seed": flags.seed or 0, "device": flags.device or "auto"}
    run = None
    folder = home / "natural"
    with watched(parse({**base, **place, **world}), folder, flags) as (context, screen):
        screen.prepare(NEEDED)
        run = conduct(context, folder, screen, say=flags.say)
    if run is None:
        run = left_behind(folder)
    if run is None or interrupted(run):
        note(KEPT_NETWORKS)
        raise typer.Exit(INTERRUPTED)
    _conclude([run], write([run], home / "report"), flags)


@contextmanager
def _assistant(flags: o.Flags) -> Iterator[subprocess.Popen[bytes] | None]:
    """A second process that trains the judge meanwhile, on a CPU with a core for it; else none."""
    import torch

    from hardcase.data.sources import load
    from hardcase.judges import panel
    from hardcase.tensors import usable_device
    from hardcase.training.cards import CARD

    train, test = (load(WORLD["data"], split=split) for split in ("train", "test"))
    there = (panel.folder(train, test, seed=0) / CARD).exists()
    alone = there or usable_device(flags.device or "auto") != "cpu" or (os.cpu_count() or 1) < 2
    if alone:
        yield None
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    words = ["train", "judge", "--data", WORLD["data"], "--progress", "none", "-q"]
    child = subprocess.Popen(
        [sys.executable, "-m", "hardcase", *words, "--device", "cpu"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield child
    finally:
        torch.set_num_threads(threads)
        if child.poll() is None:
            child.terminate()  # what it has trained is kept
            child.wait()


def _one(values: dict[str, Any], folder: Path, flags: o.Flags) -> tuple[Run, Context]:
    """One search, after the networks it needs."""
    from hardcase.api import measured
    from hardcase.config import parse
    from hardcase.runs.start import plan_of, start

    with watched(parse(values), folder, flags) as (context, screen), screen:
        plan = plan_of(context)
        if context.conditions is not None:
            _ = context.references  # trained with the other networks
        start(plan, folder, screen)
    run = stored(folder)
    if run is None or interrupted(run):
        note(f"interrupted; what was found is in {shown(folder)}" if run else "interrupted")
        note(KEPT_NETWORKS)
        raise typer.Exit(INTERRUPTED)
    return measured(context, run, flags.say), context


def _judged(
    runs: list[tuple[Run, Context]],
    flags: o.Flags,
    assistant: subprocess.Popen[bytes] | None,
) -> list[Run]:
    """The runs with verdicts, by a judge trained on the training digits that took no part in the
    search; the assistant, who has begun with it, is helped."""
    from hardcase.judges import panel
    from hardcase.judges.verdicts import finish

    with front_of(flags) as screen:
        if assistant is not None:
            context = runs[0][1]
            panel.help_with(context.train, context.test, progress=screen.train)
            if assistant.wait() != 0:
                raise Problem("the judge could not be trained.", fix="hardcase train judge")
        asked: dict[str, Any] = {"say": note, "progress": screen.train, "train": True}
        return [
            finish(run, device=context.device, images=context.images, **asked)
            for run, context in runs
        ]


SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm")
HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
WEIGHTS = (".onnx", ".pt2", ".pt", ".pth", ".safetensors")
DEEP = 3
"""Folders inside folders that are looked through."""
MANY = 5_000
"""Files that are looked at."""


def look(folder: Path) -> dict[str, tuple[str, str]]:
    """The model and the data that a folder seems to hold, as their flags name them (empty where
    there is nothing) and how that was told; nothing is loaded or run."""
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
    found = [path for path in files if path.suffix in WEIGHTS]
    code = [path for path in files if path.suffix == ".py" and "nn.Module" in _text(path)]
    whole = [path for path in found if path.suffix in (".onnx", ".pt2")]
    if whole:
        form = f"onnx:{whole[0]}" if whole[0].suffix == ".onnx" else str(whole[0])
        return form, f"{whole[0]} holds a network"
    if code:
        factory = f"{code[0]}:{likely_factory(code[0])}"
        if found:
            return f"{found[0]}@{factory}", f"weights in {found[0]}, code in {code[0]}"
        return factory, f"{code[0]} defines a network"
    if found:
        return f"{found[0]}@file.py:factory", f"{found[0]} holds weights; its code was not found"
    return "", "no model was found here"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:100_000]
    except (OSError, UnicodeDecodeError):
        return ""


def _data(folder: Path, files: list[Path]) -> tuple[str, str]:
    for suffix in (".csv", ".npz", ".parquet"):
        found = [path for path in files if path.suffix == suffix]
        if found:
            return f"{suffix[1:]}:{found[0]}", f"{found[0]} is a table of images"
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
# docs/configuration.md, or hardcase run --help-all.
model = "{model}"      # zoo:NAME, file.py:factory, weights@file.py:factory, hf:, timm:, onnx: ...
data = "{data}"        # folder:PATH (?resize=224&crop=center), csv:, npz:, parquet:, mnist5k ...
# method = "natural"   # chosen by what the model offers; others: hardcase list methods
seeds = {seeds}            # images to start from
seed = 0               # everything random follows from it
# conditions = "handheld"  # how often it fails there is measured; chosen by the images: scanner,
#                            handheld, fixed-camera, outdoors, microscope, FILE.toml or none
# references = ["zoo:lenet1"]  # models of the same data to compare with

[subject]              # how the model wants its images, where it does not say so itself
# mean = [0.485, 0.456, 0.406]
# std = [0.229, 0.224, 0.225]

[budget]               # per seed; without them the method's own
# queries = 400
# gradients = 100

[limits]               # read by `hardcase gate` and shown by the report
# risk = 0.05          # share of random conditions under which it fails, at most
risk_margin = 0.01     # by how much that may exceed the share of the version before
# accuracy = 0.95
usable = 20            # fewer usable seeds than this never pass
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
        raise Problem(f"{folder} is not a folder.", fix="hardcase init FOLDER")
    target = folder / o.PROJECT
    if target.exists():
        raise Problem(f"{target} exists and stays as it is.", fix=f"remove {target} first")
    named = {"model": flags.model, "data": flags.data}
    for name, (found, text) in look(folder).items():
        if named[name] is None:
            named[name] = found
            flags.say(text)
    model, data = named["model"] or "", named["data"] or ""
    filled = CONFIG.format(model=model or "zoo:lenet5", data=data or "mnist5k", seeds=100)
    write_atomically(target, filled.encode())
    tell(f"wrote {shown(target)}")
    doubtful = not (model and data) or model.endswith("file.py:factory")
    step = "edit model and data in it, then: " if doubtful else ""
    place = "" if folder == Path() else f" {shown(target)}"
    tell(f"next: {step}hardcase doctor{place}, then hardcase run{place}")


def open_run(
    folder: o.OneRun,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print the page's path, open nothing.")
    ] = False,
) -> None:
    """Write the report of a run and open it in the browser."""
    o.require_folders(folder)
    from hardcase.report.page import write

    # always anew: a page that came with somebody else's folder may hold any script
    page = write([opened(folder)], folder / "report")
    tell(str(page))
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
    """List what is kept (data, trained networks) and how large it is, or remove some of it."""
    from hardcase.cache import cache_folder

    home = cache_folder()
    entries = kept(home)
    if clear is not None:
        _clear(home, [one for one in entries if clear == "all" or clear in one.name], yes)
        return
    rows = [(one.kind, one.name, _megabytes(one.size)) for one in entries]
    total = f"{len(entries)} entries, {_megabytes(sum(one.size for one in entries))} MB in {home}"
    whole = {"folder": str(home), "entries": [one._asdict() for one in entries]}
    answer(flags, whole, grid("", ("kind", "name", "MB"), rows), total)


def _clear(home: Path, chosen: list[CacheEntry], yes: bool) -> None:
    if not chosen:
        raise Problem(
            "nothing in the cache has that name.", fix="hardcase cache lists what is kept"
        )
    size = _megabytes(sum(one.size for one in chosen))
    if not (yes or typer.confirm(f"remove {len(chosen)} entries, {size} MB, of {home}?")):
        tell("nothing was removed")
        return
    for one in chosen:
        path = home / one.kind / one.name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    tell(f"removed {len(chosen)} entries, {size} MB; they are fetched or trained again when needed")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}"
