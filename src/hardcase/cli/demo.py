"""``hardcase demo``: the main job on real digits; what is missing is trained on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.options import as_json, note, shown, tell
from hardcase.cli.run import (
    KEPT_NETWORKS,
    NEEDED,
    broken,
    closing,
    interrupted,
    left_behind,
    stored,
    watched,
)
from hardcase.cli.train import demonstrate, tell_repair
from hardcase.errors import INTERRUPTED, Problem

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
    from hardcase.cli.progress import front
    from hardcase.judges import panel
    from hardcase.judges.verdicts import finish

    with front(flags.progress, quiet=flags.quiet) as screen:
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
