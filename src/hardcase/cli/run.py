"""``hardcase run``, ``resume`` and ``status``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardcase.cache import free
from hardcase.cli import options as o
from hardcase.cli.options import (
    answer,
    as_json,
    facts,
    guard_folder,
    note,
    plural,
    print_line,
    shown,
)
from hardcase.environment import duration
from hardcase.errors import INTERRUPTED, HardcaseError

if TYPE_CHECKING:
    from hardcase.config import Config
    from hardcase.context import Context
    from hardcase.runs.phases import MeasurePlan
    from hardcase.runs.progress import Stoppable
    from hardcase.runs.results import Run
    from hardcase.wording.summary import Decision


KEPT_NETWORKS = (
    "networks that were trained are kept, and a generator or judge goes on where it stopped"
)


TRYING = 2.0
"""Seconds of processor time that a preview asks the model for."""
NEEDED = "the model, the images and what the method needs"


def print_summary(run: Run | None, config: Config, retrained: str | None, flags: o.Flags) -> None:
    """Say how the run ended, and what a complete search for regressions shows beyond its nulls;
    leave with 130 unless it is complete or reached its limit of findings."""
    from hardcase.config import previous
    from hardcase.suite.gate import decision_of

    if run is None:
        note(f"interrupted before the run began: no folder was made; {KEPT_NETWORKS}")
        raise typer.Exit(INTERRUPTED)
    beyond: dict[str, Any] | None = None
    searched = bool(run.record.get("shards"))
    if previous(config) is not None and run.record["complete"] and searched:
        from hardcase.suite.replay import against_nulls

        excess = against_nulls(run, retrained=retrained, log=flags.log)
        beyond = {**excess.to_json(), "retraining": retrained}
    decision = decision_of(run)
    if flags.json:
        more = {} if beyond is None else {"regression": beyond}
        verdict = {"verdict": decision.word, "sentence": decision.sentence}
        as_json({"folder": str(run.folder), **run.record, **verdict, **more})
    elif flags.quiet:
        print_line(str(decision))
    else:
        print_line("\n".join(format_summary(run, decision)))
    if beyond is not None and not flags.json:
        print_line(f"\nold right, new wrong: {beyond['sentence']}")
    if interrupted(run):
        raise typer.Exit(INTERRUPTED)


def interrupted(run: Run) -> bool:
    """Whether the run was stopped before its end, and before its limit of failures."""
    limit = run.record["budget"].get("findings")
    enough = limit is not None and len(run) >= limit
    return not run.record["complete"] and not enough


def format_summary(run: Run, decision: Decision) -> list[str]:
    """The last screen of a run, in lines."""
    from hardcase.wording.summary import (
        check_sentences,
        generated_sentences,
        search_sentence,
        summary_lines,
    )

    search, checked = list[str](), list[str]()
    if run.store.searching:
        counts = run.counts()["search_results"]
        search = [*generated_sentences(run.record), search_sentence(run.record, counts)]
        judged = run.verdicts is not None
        about: dict[str, Any] = {"findings": len(run), "judged": judged}
        checked = check_sentences(run.record, counts, folder=shown(run.folder), **about)
    report = f"hardcase open {shown(run.folder)}"
    if interrupted(run):
        stored = len(run.store.done()) + len(run.store.measured.read())
        stored_shards = f"{plural(stored, 'shard')} {'is' if stored == 1 else 'are'} kept"
        report = f"stopped; {stored_shards}. To go on: hardcase resume {shown(run.folder)}"
    return summary_lines(run.record, decision, search=search, checked=checked, report=report)


def independence(record: dict[str, Any]) -> list[str]:
    """What a second judge says, and what witnesses and judge share, in lines; none in a run without
    them."""
    from hardcase.judges.controls import controls_in_words
    from hardcase.judges.held_out import held_out_in_words, independence_in_words

    judge = record.get("judge") or {}
    lines = controls_in_words(judge.get("controls"))
    if judge.get("held_out_check"):
        lines.append(held_out_in_words(judge["held_out_check"]))
    return lines + independence_in_words(judge.get("independence"))


Retrained = Annotated[
    str | None,
    typer.Option(
        hidden=True,
        metavar="MODEL",
        help="With --baseline: a retraining of it, as a null (of a zoo network: made).",
    ),
]


SHOWN = (
    *("config", "model", "data", "method", "conditions", "witness", "baseline", "images", "seed"),
    "settings",
    *("queries", "time", "device", "workers", "out", "dry_run", "quiet"),
)
"""Flags that ``hardcase run --help`` shows."""


@o.takes(*o.CAMPAIGN, "dry_run", "out", *o.WATCHED, first=SHOWN)
def run(flags: o.Flags, retrained: Retrained = None) -> None:
    """Measure how often a model fails under declared conditions, and search for inputs on which it
    does: a campaign into a folder.
    """
    from hardcase.config import check_names

    wanted = o.resolve(vars(flags), choose=flags.log)
    check_names(wanted)
    if retrained is not None and not wanted.baseline:
        raise HardcaseError(
            "--retrained belongs to a search for regressions.", fix="--baseline MODEL"
        )
    # what is wrong with names is told before torch is imported
    from hardcase.api import conduct, folder_for
    from hardcase.runs.identity import remember

    folder = folder_for(wanted, flags.out)
    remember(wanted.model_dump())
    if flags.dry_run:
        preview(wanted, folder, flags)
        return
    done = None
    with watched(wanted, folder, flags) as (context, screen):
        screen.prepare("loading the model and the images")
        done = conduct(context, folder, screen, log=flags.log)
    if done is None:
        done = load_interrupted(folder)
    print_summary(done, wanted, retrained, flags)


def preview(config: Config, folder: Path, flags: o.Flags) -> None:
    """Estimate the time of a run, phase by phase: its parts are loaded or trained, and the model
    classifies sample images; nothing is searched and no folder is created.
    """
    import resource
    from time import monotonic

    from hardcase.config import NO_SEARCH
    from hardcase.context import Context
    from hardcase.models.health import affordable, check
    from hardcase.models.mistakes import trying
    from hardcase.runs.phases import forecast
    from hardcase.runs.plan import measure_plan
    from hardcase.wording.search import forecast_in_words

    began = monotonic()
    with make_progress(flags) as screen:
        screen.prepare("loading the data and the model")
        context = Context(config, progress=screen.train)
        plan = measure_plan(context)
        screen.prepare("asking the model about the images")
        with trying(TRYING, screen.prepare), plan.measurement.arithmetic():
            model, images = context.subject, plan.images
            sampled = affordable(model, images, TRYING)
            lenient = config.allow_low_accuracy
            health = check(model, images, allow_low_accuracy=lenient, sample=sampled)
        screen.prepare("timing some images under the conditions")
        with plan.measurement.arithmetic():
            ahead = forecast(plan, _seconds_of_an_image(plan))
        searching, about = (0.0, 0.0), dict[str, str]()
        if config.method.name != NO_SEARCH:
            screen.prepare("loading what the search needs")
            searching, about = _search_preview(context, health.accuracy)
    samples = "" if context.conditions is None else f", {config.samples} samples each"
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    prepared = monotonic() - began
    told = {
        "model": f"{config.model.name}, {100 * health.accuracy:.0f} % right, on {context.device}",
        "data": f"{context.data}, {len(plan.images):,} images",
        "conditions": _declared(context),
        "measuring": f"{ahead.images:,} images{samples}: {duration(ahead.seconds)}",
        **about,
        "time": forecast_in_words(ahead.seconds, searching) or "less than ten seconds",
        "prepared in": duration(prepared),
        "memory so far": f"{memory / 2**30:.1f} GB",
        "folder": shown(folder),
    }
    usual, most = (ahead.seconds + seconds for seconds in searching)
    numbers = {"seconds": usual, "seconds_at_most": most, "bytes": memory, "prepared": prepared}
    answer(flags, {**told, **numbers}, facts(told))


TIMED = 16
"""Images that a preview measures to estimate the time per image."""


def _seconds_of_an_image(plan: MeasurePlan) -> float:
    """How long an image takes to measure, all its samples included."""
    from time import monotonic

    sampled = plan.images.first(TIMED).images()
    plan.measurement.tables(sampled.first(1))  # what is slow once is not counted
    began = monotonic()
    plan.measurement.tables(sampled)
    return (monotonic() - began) / len(sampled)


def _search_preview(
    context: Context, accuracy: float
) -> tuple[tuple[float, float], dict[str, str]]:
    """How long a search takes usually and at most, and what it would be, in words."""
    from dataclasses import asdict

    from hardcase.campaign.loop import SPENT
    from hardcase.campaign.record import overlay
    from hardcase.report.words import budget
    from hardcase.runs.plan import plan_of
    from hardcase.wording.search import settings_in_words

    plan = plan_of(context)
    method = context.method
    right = round(accuracy * len(context.seeds))
    most = context.seconds_per_seed() * right
    about = {
        "search": f"{method.name} from about {right:,} of {len(context.seeds):,} images",
        "options": settings_in_words(method.details.get("options", {})) or "none",
        "budget": budget(asdict(overlay(plan.budget, method.budget))) or "none",
        "witnesses": ", ".join(witness.name for witness in context.witnesses) or "none",
    }
    return (SPENT * most, most), about


def _declared(context: Context) -> str:
    """The conditions of the measurement, and the models for comparison."""
    if context.conditions is None:
        return "none"
    baselines = ", ".join(baseline.name for baseline in context.baselines) or "no baseline"
    return f"{context.conditions.name} ({context.conditions}); beside {baselines}"


IMAGES = ("measured images",)
"""Settings that must be equal in a new run that continues another run."""


@o.takes("device", *o.FOREIGN, *o.WATCHED)
def resume(folder: o.OneRun, flags: o.Flags, retrained: Retrained = None) -> None:
    """Continue a run that was stopped or has crashed; stored shards stay."""
    from hardcase.api import conduct
    from hardcase.request import Request
    from hardcase.runs.folder import Store
    from hardcase.runs.identity import Identity, require, require_same, same_source
    from hardcase.runs.plan import measure_plan
    from hardcase.runs.start import reopen

    guard_folder()
    record, repaired = reopen(folder)
    for text in repaired:
        note(f"note: {text}")
    values = Store(folder).settings()
    if not values:
        raise HardcaseError(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.resume(folder, model, data, ...) in Python, with what hc.run was given",
        )
    request = Request().ask(values, "hardcase.toml")
    if flags.device:
        request.ask({"device": flags.device}, "flag", "--device")
    wanted = request.config(stored=values.get("given", {}))
    if not flags.allow_changes:
        same_source(record, wanted)
    require(wanted.model_dump(), folder, trusted=flags.trust)
    if record["complete"] and not flags.quiet:
        note(f"note: {shown(folder)} is already complete; its files are checked")
    if flags.allow_changes:  # a new run from the old one's seeds: nothing is ever mixed
        folder = free(folder)
    done = None
    with watched(wanted, folder, flags) as (context, screen):
        screen.prepare("loading the model and the images")
        if flags.allow_changes:
            parts = Identity.from_json(record.get("identity"))
            now = measure_plan(context).identity
            require_same(parts and parts.only(IMAGES), now.only(IMAGES))
        done = conduct(context, folder, screen, again=not flags.allow_changes, log=flags.log)
    if done is None:
        done = load_interrupted(folder)
    print_summary(done, wanted, retrained, flags)


@contextmanager
def watched(config: Config, folder: Path, flags: o.Flags) -> Iterator[tuple[Context, Stoppable]]:
    """The context of a run, and the progress display once it is open. An interrupt
    ends what is done in here: `load_interrupted` says how far it came.
    """
    from hardcase.context import Context

    screen = make_progress(flags)
    screen.folder = folder
    try:
        yield Context(config, progress=screen.train), screen
    except KeyboardInterrupt:
        return
    except HardcaseError as problem:
        if not screen.record:
            raise
        tell_failure(folder)
        fixes = [problem.fix, f"hardcase resume {shown(folder)}"]
        if fixes[1] in fixes[0]:
            fixes.pop()
        fix = "; then: ".join(filter(None, fixes))
        raise HardcaseError(problem.what, *problem.why, fix=fix, code=problem.code) from problem


def tell_failure(folder: Path) -> None:
    """Say on the first line of the result that a phase has failed."""
    from hardcase.wording.summary import failure_of

    run = stored(folder)
    failed = None if run is None else failure_of(run.record)
    if failed is not None:
        print_line(str(failed))


def make_progress(flags: o.Flags) -> Stoppable:
    """What shows how a run or a training goes, as ``--progress`` names it."""
    from hardcase.runs.progress import Stoppable

    if flags.quiet or flags.progress == o.ProgressStyle.none:
        return Stoppable()
    from hardcase.cli.progress import front

    return front(flags.progress)


def load_interrupted(folder: Path) -> Run | None:
    """The run as far as it came before an interrupt; None: there is no folder."""
    return stored(folder)


def stored(folder: Path) -> Run | None:
    """The run in this folder; None if it was stopped before it had a folder."""
    from hardcase.runs.results import Run

    return Run(folder) if (folder / "run.json").is_file() else None


SILENT = 600
"""Seconds without a finished shard after which a searching run may have died."""


def status(folders: o.Runs, format: o.AsFormat = o.Format.text) -> None:
    """Show where runs stand; also while they are going on."""
    if format == "json":
        as_json([{"folder": str(folder), **_small(folder)} for folder in folders])
    else:
        print_line("\n\n".join(shown_run(folder) for folder in folders))


def _small(folder: Path) -> dict[str, Any]:
    """What run.json and status.json say, for how many seconds the latter has been silent, and
    whether a process writes to the folder now.
    """
    from hardcase.runs.files import has_writer

    record = read_json(folder / "run.json")
    path = folder / "status.json"
    now = read_json(path, needed=False)
    quiet = time() - path.stat().st_mtime if path.exists() else None
    names = ("method", "model", "data", "images", "created", "complete", "budget", "kinds")
    status = {
        name: record.get(name) for name in (*names, "search_results", "findings", "phases", "risk")
    }
    status |= {"conditions": record.get("conditions"), "status": now, "quiet": quiet}
    return {**status, "writing": has_writer(folder)}


def shown_run(folder: Path) -> str:
    """The screen of a run."""
    status = _small(folder)
    try:
        return _screen(folder, status)
    except Exception as error:  # anything can stand in files that others wrote
        raise HardcaseError(
            f"run.json or status.json in {folder} is damaged: {type(error).__name__}.",
            fix=f"hardcase resume {folder}",
        ) from error


def _screen(folder: Path, status: dict[str, Any]) -> str:
    """Where every phase stands, what was measured, and what to do next."""
    from hardcase.wording.summary import decide, failure_of, wrapped

    failed = failure_of(status)
    first = "\n".join(wrapped(str(failed or decide(status)), indent=0))
    head = f"{status['method']} on {status['model']}, {status['data']}"
    lines = {shown(folder): head}
    lines |= {name: _phase_line(name, status) for name in status["phases"] or {}}
    if status["complete"]:
        lines["report"] = f"hardcase open {shown(folder)}"
    elif status["status"].get("phase") != "searching":
        lines["go on"] = f"hardcase resume {shown(folder)}"
    return f"{first}\n\n{facts(lines)}"


def _phase_line(name: str, status: dict[str, Any]) -> str:
    """The progress of a phase, in a line."""
    phase = status["phases"][name]
    text = str(phase["status"])
    if text == "running" and status["writing"] is False:
        text = "stopped"
    if phase.get("elapsed", 0) >= 0.1:
        text += f", {duration(phase['elapsed'])} spent"
    if phase.get("why"):
        text += f": {phase['why']}"
    if name == "measure" and status["risk"]:
        risk = status["risk"]
        text += f"; {risk['images']:,} of {risk['of']:,} images, {risk['samples']} samples each"
    if name == "search" and text.startswith(("running", "stopped", "done")):
        text += f"; {_search_line(status)}"
    return text


def _search_line(status: dict[str, Any]) -> str:
    """How far the search is, and whether it seems to have died."""
    now = status["status"]
    funnel = status["search_results"] or {}
    failing = funnel.get("failing", now.get("failing", 0))
    done = f"{now.get('shards_done', 0):,} of {now.get('shards', 0):,} shards"
    line = f"{done}, {failing:,} images with a failure, {now.get('queries', 0):,} queries"
    searching = now.get("phase") == "searching"
    if now.get("eta") and searching:
        line += f", about {duration(now['eta'])} left"
    quiet = status["quiet"]
    if searching and quiet is not None and quiet > SILENT:
        line += f"; no shard finished for {duration(quiet)}: it may have been killed"
    return line


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    """The content of a small file of a run folder; damage is reported with its name."""
    from hardcase.plain import read_plain
    from hardcase.runs.files import read_checked_json

    try:
        content, sound = read_checked_json(read_plain(path))
    except FileNotFoundError:
        if not needed:
            return {}
        raise HardcaseError(
            f"{path.parent} is not a run folder: it has no {path.name}.",
            fix="the folder given to --out",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise HardcaseError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise HardcaseError(f"{path} cannot be read: it is not an object")
    if sound is False:
        note(f"note: {path} is damaged: it does not have the checksum of its content")
    return content
