"""``hardcase run``, ``resume``, ``status`` and ``demo``."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cli import options as o
from hardcase.cli.output import as_json, duration, facts, note, shown, tell
from hardcase.errors import INTERRUPTED, Problem

if TYPE_CHECKING:
    from hardcase.cli.progress import Front
    from hardcase.config import Config
    from hardcase.runs.results import Run
    from hardcase.runs.start import Plan


# --- How a run ends on the terminal: the funnel, where the files are, and what to do next.


def logging_to(*, verbose: bool, quiet: bool) -> None:
    """Show what the library logs: everything with ``-v``, only errors with ``-q``."""
    level = logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="note: %(message)s", force=True)
    logging.captureWarnings(True)
    if not verbose:
        logging.getLogger("py.warnings").setLevel(logging.ERROR)


def conclude(run: Run | None, folder: Path, *, format: str, quiet: bool) -> None:
    """Say how the run ended and leave with 130 if it was interrupted and can be resumed."""
    if run is None:
        note("interrupted before the search began; nothing was written")
        raise typer.Exit(INTERRUPTED)
    if format == "json":
        as_json({"folder": str(run.folder), **run.record})
    elif quiet:
        tell(str(run.folder))
    else:
        tell(closing(run))
    if interrupted(run):
        raise typer.Exit(INTERRUPTED)


def interrupted(run: Run) -> bool:
    """Whether shards are missing for another reason than that enough was found."""
    return not run.record["complete"] and not enough(run)


def enough(run: Run) -> bool:
    limit = run.record["budget"].get("findings")
    return limit is not None and len(run) >= limit


def closing(run: Run) -> str:
    record = run.record
    head = f"{record['method']} on {record['model']}, {record['data']}"
    judged = (
        []
        if run.verdicts is not None
        else ["nothing is confirmed: no judge has seen these tests yet"]
    )
    return "\n".join(
        [
            "",
            head,
            run.summary(),
            *judged,
            cost(record),
            "",
            f"files   {shown(run.folder)}",
            *_next(run),
        ]
    )


def cost(record: dict[str, Any]) -> str:
    totals = record["totals"]
    spent = [f"{totals[name]:,} {name.replace('_', ' ')}" for name in totals if totals[name]]
    return f"spent {', '.join(spent) or 'nothing'} in {duration(record['elapsed'])}"


def _next(run: Run) -> list[str]:
    name = shown(run.folder)
    if interrupted(run):
        return [f"go on   hardcase resume {name}"]
    return [f"report  hardcase report {name} --open"]


# --- ``hardcase demo``: the main job on the embedded digits, with nothing to prepare.

WORLD = {"model": "zoo:lenet5", "data": "mnist5k"}
METHODS: tuple[dict[str, Any], ...] = (
    {"name": "pgd", "epsilon": 0.2},
    {"name": "cw", "steps": 40, "rounds": 5},
    {"name": "sinvad"},
)
"""Two yardsticks and a search that stays close to real digits, with budgets that end in seconds."""


def demo(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Digits to start from.")] = 60,
    seed: o.Seed = None,
    out: o.Out = None,
    device: o.Device = None,
    show: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fool LeNet-5 on handwritten digits with three methods, judge what was found, write one report; trains what is missing."""
    from hardcase.cli.options import free
    from hardcase.report.page import write
    from hardcase.runs.folder import refuse_used

    logging_to(verbose=verbose, quiet=quiet)
    home = out or free(Path("runs/demo"))
    refuse_used(home)
    base = {**WORLD, "seeds": seeds, "seed": seed or 0, "device": device or "cpu"}
    runs = [
        _one({**base, "method": method}, home / method["name"], progress, quiet)
        for method in METHODS
    ]
    runs = _judged(runs, device or "cpu", progress, quiet)
    page = write(runs, home / "report")
    if format == "json":
        as_json(
            {"page": str(page), "runs": [{"folder": str(run.folder), **run.record} for run in runs]}
        )
    else:
        tell(
            str(page)
            if quiet
            else "\n".join(
                [*map(_without_advice, map(closing, runs)), "", f"report  {shown(page)}"]
            )
        )
    if show:
        typer.launch(page.absolute().as_uri())


def _one(values: dict[str, Any], folder: Path, progress: str, quiet: bool) -> Run:
    from hardcase.cli.progress import front
    from hardcase.config import parse

    with front(progress, quiet=quiet) as screen:
        run = campaign(parse(values), folder, screen)
    if run is None or interrupted(run):
        note(f"interrupted; what was found is in {shown(folder)}" if run else "interrupted")
        raise typer.Exit(INTERRUPTED)
    return run


def _judged(runs: list[Run], device: str, progress: str, quiet: bool) -> list[Run]:
    """The runs with verdicts, by a judge that learned from the training digits and took no part in the search."""
    from hardcase.cli.progress import front
    from hardcase.judges.verdicts import finish

    with front(progress, quiet=quiet) as screen:
        return [
            finish(run, say=note, device=device, progress=screen.train, train=True) for run in runs
        ]


def _without_advice(text: str) -> str:
    return text.rpartition("\n")[0]


# --- ``hardcase run`` and ``hardcase resume``.


def run(
    config: o.ConfigFile = None,
    model: o.Model = None,
    data: o.Data = None,
    method: o.Method = None,
    seeds: o.Seeds = None,
    split: o.FromSplit = None,
    seed: o.Seed = None,
    peer: o.Peer = None,
    generator: o.Generator = None,
    target: o.Target = None,
    criterion: o.Criterion = None,
    criteria: o.Criteria = None,
    oracle: o.Oracle = None,
    keep: o.Keep = None,
    settings: o.Settings = None,
    allow_low_accuracy: o.AllowLow = False,
    trust_pickle: o.TrustPickle = False,
    queries: o.Queries = None,
    gradients: o.Gradients = None,
    total_queries: o.TotalQueries = None,
    total_gradients: o.TotalGradients = None,
    findings: o.FindingsLimit = None,
    time: o.Time = None,
    device: o.Device = None,
    batch_size: o.BatchSize = None,
    workers: o.Workers = None,
    cluster: o.Cluster = None,
    offline: o.Offline = False,
    out: o.Out = None,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Search for inputs on which a model fails: one campaign into one folder."""
    flags = dict(locals())
    from hardcase.cli.options import folder_for, resolve
    from hardcase.cli.progress import front

    logging_to(verbose=verbose, quiet=quiet)
    wanted = resolve(flags)
    folder = folder_for(wanted, out)
    with front(progress, quiet=quiet) as screen:
        done = campaign(wanted, folder, screen)
    conclude(judged(covered(done, wanted), quiet=quiet), folder, format=format, quiet=quiet)


def resume(
    folder: o.OneRun,
    progress: o.ShowProgress = o.Progress.auto,
    format: o.AsFormat = o.Format.text,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Go on with a run that was stopped or has crashed; what is stored is kept."""
    from hardcase.cli.progress import front
    from hardcase.config import parse, read
    from hardcase.runs.start import reopen

    logging_to(verbose=verbose, quiet=quiet)
    record, mended = reopen(folder)
    for text in mended:
        note(f"note: {text}")
    values = read(folder / "config.toml")
    if not values:
        raise Problem(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.running.resume(plan, folder) in Python, or hc.run with a new out=",
        )
    if record["complete"] and not quiet:
        note(f"note: {shown(folder)} is already complete; its files are checked")
    wanted = parse(values)
    with front(progress, quiet=quiet) as screen:
        done = again(wanted, folder, screen)
    conclude(judged(covered(done, wanted), quiet=quiet), folder, format=format, quiet=quiet)


def covered(run: Run | None, config: Config) -> Run | None:
    """A complete run with the coverage of its seeds and tests, by the criteria that ``--criteria`` names."""
    if run is None or config.criteria is None or not run.record["complete"]:
        return run
    from hardcase import context
    from hardcase.data.sources import load
    from hardcase.suite.coverage import reach

    training = load(config.data, split="train", offline=config.offline)
    try:
        return reach(run, context.subject(config, config.model), config.criteria, training=training)
    except Problem as problem:
        note(f"coverage was not measured: {problem.what}")
        return run


def judged(run: Run | None, *, quiet: bool) -> Run | None:
    """A complete run with verdicts, if the judge of its data is there; else how to get one is said."""
    if run is None or not run.record["complete"]:
        return run
    from hardcase.judges.verdicts import finish

    return finish(run, say=(lambda text: None) if quiet else note, device=run.record["device"])


def campaign(config: Config, folder: Path, screen: Front) -> Run | None:
    """A new run, shown on `screen`; None if it was stopped before its folder was made."""
    from hardcase.runs.start import start

    return _guarded(config, folder, screen, lambda plan: start(plan, folder, screen))


def again(config: Config, folder: Path, screen: Front) -> Run | None:
    """The rest of a run, shown on `screen`."""
    from hardcase.runs.start import resume as go_on

    return _guarded(config, folder, screen, lambda plan: go_on(plan, folder, screen))


def _guarded(config: Config, folder: Path, screen: Front, go: Callable[[Plan], Run]) -> Run | None:
    """Plan and go; an interrupt leaves what is stored, and a problem says how to go on."""
    from hardcase.context import plan
    from hardcase.runs.results import Run

    try:
        ready = plan(config, screen.train)
        screen.expect(shard=ready.shard, workers=ready.workers)
        return go(ready)
    except KeyboardInterrupt:
        return Run(folder) if (folder / "run.json").is_file() else None
    except Problem as problem:
        if not screen.record:
            raise
        raise Problem(
            problem.what,
            *problem.why,
            fix=_both(problem.fix, f"hardcase resume {shown(folder)}"),
            code=problem.code,
        ) from problem


def _both(first: str, then: str) -> str:
    return f"{first}; then: {then}" if first and then not in first else first or then


# --- ``hardcase status``: where runs stand, from their small files alone.

SILENT = 600
"""Seconds without a finished shard after which a searching run may have died."""


def status(folders: o.Runs, format: o.AsFormat = o.Format.text) -> None:
    """Show where runs stand; also while they are going on."""
    if format == "json":
        as_json([{"folder": str(folder), **_small(folder)} for folder in folders])
    else:
        tell("\n\n".join(shown_run(folder) for folder in folders))


def _small(folder: Path) -> dict[str, Any]:
    """What run.json and status.json say."""
    record, now = read_json(folder / "run.json"), read_json(folder / "status.json", needed=False)
    kept = (
        "method",
        "model",
        "data",
        "seeds",
        "created",
        "complete",
        "budget",
        "funnel",
        "findings",
    )
    return {
        **{name: record.get(name) for name in kept},
        "status": now,
        "quiet": _age(folder / "status.json"),
    }


def shown_run(folder: Path) -> str:
    """The screen of one run."""
    said = _small(folder)
    try:
        return _screen(folder, said)
    except Exception as error:  # anything can stand in files that others wrote
        raise Problem(
            f"run.json or status.json in {folder} is damaged: {type(error).__name__}.",
            fix=f"hardcase resume {folder}",
        ) from error


def _screen(folder: Path, said: dict[str, Any]) -> str:
    now, funnel = said["status"], said["funnel"] or {}
    failing = funnel.get("failing", now.get("failing", 0))
    lines = {
        shown(folder): f"{said['method']} on {said['model']}, {said['data']}",
        "phase": _phase(said),
        "shards": f"{now.get('shards_done', 0):,} of {now.get('shards', 0):,} done",
        "failing": f"{failing:,} seeds"
        + (f" of {funnel['attempted']:,} attempted" if funnel else " so far"),
        "confirmed": "not judged"
        if funnel.get("confirmed") is None
        else f"{funnel['confirmed']:,} seeds",
        "queries": f"{now.get('queries', 0):,}, {now.get('speed', 0):,.0f} a second",
    }
    if now.get("eta") and now.get("phase") == "searching":
        lines["left"] = f"about {duration(now['eta'])}"
    return facts(lines | _go_on(folder, said))


def _phase(said: dict[str, Any]) -> str:
    now = said["status"]
    phase = f"{now.get('phase', 'not begun')}, {duration(now.get('elapsed', 0))} spent"
    quiet = said["quiet"]
    if now.get("phase") == "searching" and quiet is not None and quiet > SILENT:
        return f"{phase}; no shard finished for {duration(quiet)}: it may have been killed"
    return phase


def _go_on(folder: Path, said: dict[str, Any]) -> dict[str, str]:
    if said["complete"]:
        return {"report": f"hardcase report {shown(folder)}"}
    return (
        {}
        if said["status"].get("phase") == "searching"
        else {"go on": f"hardcase resume {shown(folder)}"}
    )


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return {}
        raise Problem(
            f"{path.parent} is not a run folder: it has no {path.name}.",
            fix="the folder given to --out",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise Problem(f"{path} cannot be read: it is not an object")
    return said


def _age(path: Path) -> float | None:
    return time() - path.stat().st_mtime if path.exists() else None
