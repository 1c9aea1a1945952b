"""``hardcase run`` and ``hardcase resume``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hardcase.cli import options as o
from hardcase.cli.speaking import note, shown
from hardcase.errors import Problem

if TYPE_CHECKING:
    from hardcase.cli.watching import Front
    from hardcase.config import Config
    from hardcase.results import Run
    from hardcase.running import Plan


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
    from hardcase.cli.closing import conclude, logging_to
    from hardcase.cli.settings import folder_for, resolve
    from hardcase.cli.watching import front

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
    from hardcase.cli.closing import conclude, logging_to
    from hardcase.cli.watching import front
    from hardcase.config import parse, read
    from hardcase.running import reopen

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
    from hardcase import planning
    from hardcase.data import load
    from hardcase.suite.reach import reach

    training = load(config.data, split="train", offline=config.offline)
    try:
        return reach(run, planning.subject(config, config.model), config.criteria, training=training)
    except Problem as problem:
        note(f"coverage was not measured: {problem.what}")
        return run


def judged(run: Run | None, *, quiet: bool) -> Run | None:
    """A complete run with verdicts, if the judge of its data is there; else how to get one is said."""
    if run is None or not run.record["complete"]:
        return run
    from hardcase.judging.asking import finish

    return finish(run, say=(lambda text: None) if quiet else note, device=run.record["device"])


def campaign(config: Config, folder: Path, screen: Front) -> Run | None:
    """A new run, shown on `screen`; None if it was stopped before its folder was made."""
    from hardcase.running import start

    return _guarded(config, folder, screen, lambda plan: start(plan, folder, screen))


def again(config: Config, folder: Path, screen: Front) -> Run | None:
    """The rest of a run, shown on `screen`."""
    from hardcase.running import resume as go_on

    return _guarded(config, folder, screen, lambda plan: go_on(plan, folder, screen))


def _guarded(config: Config, folder: Path, screen: Front, go: Callable[[Plan], Run]) -> Run | None:
    """Plan and go; an interrupt leaves what is stored, and a problem says how to go on."""
    from hardcase.planning import plan
    from hardcase.results import Run

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
            problem.what, *problem.why, fix=_both(problem.fix, f"hardcase resume {shown(folder)}"), code=problem.code
        ) from problem


def _both(first: str, then: str) -> str:
    return f"{first}; then: {then}" if first and then not in first else first or then
