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
from hardcase.cli.options import answer, as_json, facts, guard_folder, note, plural, shown, tell
from hardcase.environment import duration
from hardcase.errors import INTERRUPTED, Problem

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


def conclude(run: Run | None, config: Config, retrained: str | None, flags: o.Flags) -> None:
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

        found = against_nulls(run, retrained=retrained, say=flags.say)
        beyond = {**found.to_json(), "retraining": retrained}
    said = decision_of(run)
    if flags.json:
        more = {} if beyond is None else {"regression": beyond}
        verdict = {"verdict": said.word, "sentence": said.sentence}
        as_json({"folder": str(run.folder), **run.record, **verdict, **more})
    elif flags.quiet:
        tell(str(said))
    else:
        tell("\n".join(closing(run, said)))
    if beyond is not None and not flags.json:
        tell(f"\nold right, new wrong: {beyond['sentence']}")
    if interrupted(run):
        raise typer.Exit(INTERRUPTED)


def interrupted(run: Run) -> bool:
    """Whether the run was stopped before its end: not because enough was found."""
    limit = run.record["budget"].get("findings")
    enough = limit is not None and len(run) >= limit
    return not run.record["complete"] and not enough


def closing(run: Run, said: Decision) -> list[str]:
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
        kept = f"{plural(stored, 'shard')} {'is' if stored == 1 else 'are'} kept"
        report = f"stopped; {kept}. To go on: hardcase resume {shown(run.folder)}"
    return summary_lines(run.record, said, search=search, checked=checked, report=report)


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
    does: one campaign into one folder.
    """
    from hardcase.config import check_names

    wanted = o.resolve(vars(flags), choose=flags.say)
    check_names(wanted)
    if retrained is not None and not wanted.baseline:
        raise Problem("--retrained belongs to a search for regressions.", fix="--baseline MODEL")
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
        done = conduct(context, folder, screen, say=flags.say)
    if done is None:
        done = left_behind(folder)
    conclude(done, wanted, retrained, flags)


def preview(config: Config, folder: Path, flags: o.Flags) -> None:
    """What a run would take, phase by phase: what has to be loaded or trained for it is, and the
    model is asked about a few images; nothing is searched and no folder is made.
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
    with front_of(flags) as screen:
        screen.prepare("loading the data and the model")
        context = Context(config, progress=screen.train)
        plan = measure_plan(context)
        screen.prepare("asking the model about the images")
        with trying(TRYING, screen.prepare), plan.measurement.arithmetic():
            model, images = context.subject, plan.images
            some = affordable(model, images, TRYING)
            lenient = config.allow_low_accuracy
            health = check(model, images, allow_low_accuracy=lenient, sample=some)
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
    usual, most = (ahead.seconds + one for one in searching)
    numbers = {"seconds": usual, "seconds_at_most": most, "bytes": memory, "prepared": prepared}
    answer(flags, {**told, **numbers}, facts(told))


TIMED = 16
"""Images that a preview measures to see how long one takes."""


def _seconds_of_an_image(plan: MeasurePlan) -> float:
    """How long an image takes to measure, all its samples included."""
    from time import monotonic

    some = plan.images.first(TIMED).images()
    plan.measurement.tables(some.first(1))  # what is slow once is not counted
    began = monotonic()
    plan.measurement.tables(some)
    return (monotonic() - began) / len(some)


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
        "witnesses": ", ".join(one.name for one in context.witnesses) or "none",
    }
    return (SPENT * most, most), about


def _declared(context: Context) -> str:
    """The conditions under which it will be measured, and beside which models."""
    if context.conditions is None:
        return "none"
    beside = ", ".join(one.name for one in context.baselines) or "no baseline"
    return f"{context.conditions.name} ({context.conditions}); beside {beside}"


IMAGES = ("measured images",)
"""What must be the same in a new run that begins where another one was."""


@o.takes("device", *o.FOREIGN, *o.WATCHED)
def resume(folder: o.OneRun, flags: o.Flags, retrained: Retrained = None) -> None:
    """Continue a run that was stopped or has crashed; what is stored is kept."""
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
        raise Problem(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.resume(folder, subject, data, ...) in Python, with what hc.run was given",
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
        done = conduct(context, folder, screen, again=not flags.allow_changes, say=flags.say)
    if done is None:
        done = left_behind(folder)
    conclude(done, wanted, retrained, flags)


@contextmanager
def watched(config: Config, folder: Path, flags: o.Flags) -> Iterator[tuple[Context, Stoppable]]:
    """What a run is made of, and the screen on which it is shown once it is opened. An interrupt
    ends what is done in here: `left_behind` says how far it came.
    """
    from hardcase.context import Context

    screen = front_of(flags)
    screen.folder = folder
    try:
        yield Context(config, progress=screen.train), screen
    except KeyboardInterrupt:
        return
    except Problem as problem:
        if not screen.record:
            raise
        tell_failure(folder)
        fixes = [problem.fix, f"hardcase resume {shown(folder)}"]
        if fixes[1] in fixes[0]:
            fixes.pop()
        fix = "; then: ".join(filter(None, fixes))
        raise Problem(problem.what, *problem.why, fix=fix, code=problem.code) from problem


def tell_failure(folder: Path) -> None:
    """Say on the first line of the result that a phase has failed."""
    from hardcase.wording.summary import failure_of

    run = stored(folder)
    failed = None if run is None else failure_of(run.record)
    if failed is not None:
        tell(str(failed))


def front_of(flags: o.Flags) -> Stoppable:
    """What shows how a run or a training goes, as ``--progress`` names it."""
    from hardcase.runs.progress import Stoppable

    if flags.quiet or flags.progress == o.ProgressStyle.none:
        return Stoppable()
    from hardcase.cli.progress import front

    return front(flags.progress)


def left_behind(folder: Path) -> Run | None:
    """The run as far as it came before an interrupt; None: no folder was made."""
    return stored(folder)


def stored(folder: Path) -> Run | None:
    """The run in this folder; None if it was stopped before its folder was made."""
    from hardcase.runs.results import Run

    return Run(folder) if (folder / "run.json").is_file() else None


SILENT = 600
"""Seconds without a finished shard after which a searching run may have died."""


def status(folders: o.Runs, format: o.AsFormat = o.Format.text) -> None:
    """Show where runs stand; also while they are going on."""
    if format == "json":
        as_json([{"folder": str(folder), **_small(folder)} for folder in folders])
    else:
        tell("\n\n".join(shown_run(folder) for folder in folders))


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
    said = {
        name: record.get(name) for name in (*names, "search_results", "findings", "phases", "risk")
    }
    said |= {"conditions": record.get("conditions"), "status": now, "quiet": quiet}
    return {**said, "writing": has_writer(folder)}


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
    """Where every phase stands, what was measured, and what to do next."""
    from hardcase.wording.summary import decide, failure_of, wrapped

    failed = failure_of(said)
    first = "\n".join(wrapped(str(failed or decide(said)), indent=0))
    head = f"{said['method']} on {said['model']}, {said['data']}"
    lines = {shown(folder): head}
    lines |= {name: _phase_line(name, said) for name in said["phases"] or {}}
    if said["complete"]:
        lines["report"] = f"hardcase open {shown(folder)}"
    elif said["status"].get("phase") != "searching":
        lines["go on"] = f"hardcase resume {shown(folder)}"
    return f"{first}\n\n{facts(lines)}"


def _phase_line(name: str, said: dict[str, Any]) -> str:
    """Where one phase stands, in a line."""
    phase = said["phases"][name]
    text = str(phase["status"])
    if text == "running" and said["writing"] is False:
        text = "stopped"
    if phase.get("elapsed", 0) >= 0.1:
        text += f", {duration(phase['elapsed'])} spent"
    if phase.get("why"):
        text += f": {phase['why']}"
    if name == "measure" and said["risk"]:
        risk = said["risk"]
        text += f"; {risk['images']:,} of {risk['of']:,} images, {risk['samples']} samples each"
    if name == "search" and text.startswith(("running", "stopped", "done")):
        text += f"; {_search_line(said)}"
    return text


def _search_line(said: dict[str, Any]) -> str:
    """How far the search is, and whether it seems to have died."""
    now = said["status"]
    funnel = said["search_results"] or {}
    failing = funnel.get("failing", now.get("failing", 0))
    done = f"{now.get('shards_done', 0):,} of {now.get('shards', 0):,} shards"
    told = f"{done}, {failing:,} images with a failure, {now.get('queries', 0):,} queries"
    searching = now.get("phase") == "searching"
    if now.get("eta") and searching:
        told += f", about {duration(now['eta'])} left"
    quiet = said["quiet"]
    if searching and quiet is not None and quiet > SILENT:
        told += f"; no shard finished for {duration(quiet)}: it may have been killed"
    return told


def read_json(path: Path, *, needed: bool = True) -> dict[str, Any]:
    """What a small file of a run folder says; one that is damaged is named."""
    from hardcase.plain import read_plain
    from hardcase.runs.files import read_checked_json

    try:
        said, sound = read_checked_json(read_plain(path))
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
    if sound is False:
        note(f"note: {path} is damaged: it does not have the checksum of its content")
    return said
