"""The Python front door: `hc.run` and `hc.search` take live objects where the command line takes
names; `conduct` takes a run through its phases for both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Unpack

import torch

from hardcase.analysis.conditions import extremes, keep_shown
from hardcase.cache import free
from hardcase.campaign.claims import claim_context
from hardcase.campaign.in_memory import search_campaign
from hardcase.claims.annotations import AnnotatedImages, load_annotations
from hardcase.claims.load import claim_seeds, task_of_seeds, usual_task
from hardcase.claims.subjects import Task
from hardcase.config import Config, chosen_method, task_of
from hardcase.context import SEEDS, Context
from hardcase.data.files import ImageSet, Stream
from hardcase.data.sources import images_of, is_lazy, load, stream_of
from hardcase.errors import NO_SEEDS, HardcaseError
from hardcase.judges.verdicts import finish
from hardcase.models.health import Health, answers, check as _check
from hardcase.request import Request, SearchSettings, Settings, refuse_unused
from hardcase.runs import phases, start
from hardcase.runs.folder import Store, refuse_used
from hardcase.runs.identity import require, same_source
from hardcase.runs.plan import measure_plan, plan_of
from hardcase.runs.progress import Watcher
from hardcase.runs.results import Run
from hardcase.runs.verify import CONDITIONS, read_side_file
from hardcase.splits import sample_of
from hardcase.tasks import task_named
from hardcase.types import Budget, Findings, Images, Method

__all__ = ["Execution", "Witnesses", "check", "conduct", "resume", "run", "search"]

_log = logging.getLogger(__name__)

PARTS = (
    *("method", "options", "images", "seed", "budget", "peers", "witnesses", "train", "baseline"),
)
"""Arguments of `run` that are no settings."""


@dataclass(frozen=True, kw_only=True)
class Witnesses:
    """Networks that must keep the label where the model leaves it.

    Args:
        models: Objects or names; ``"default"``: three small networks trained on half of the
            training images; empty: nobody; None: the default ones if the method has witnesses.
        margin: By how many logits each of them must keep it.
    """

    models: str | Sequence[Any] | None = None
    margin: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a run is computed. Nothing but the sizes `shard` and `rounds` of a method with
    guides changes a finding.

    Args:
        batch: Rows of a network call; None: a size that suits the device.
        shard: Seeds that are searched at once; None: what suits the device and the method.
        rounds: Shards that start from the same state of the guides; None: the method's.
        workers: Processes that search side by side.
        cluster: A Ray cluster, as ``--cluster`` names it.
        watcher: Called with the progress of the run.
    """

    batch: int | None = None
    shard: int | None = None
    rounds: int | None = None
    workers: int = 1
    cluster: str | None = None
    watcher: Watcher = field(default_factory=Watcher)


def search(
    model: Any,
    data: Any,
    *,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    images: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: Witnesses | str | Sequence[Any] | None = None,
    train: Any = None,
    execution: Execution | None = None,
    **settings: Unpack[SearchSettings],
) -> Findings:
    """Search `data` for inputs on which `model` fails, in memory: no folder, no judge.

    Args:
        model: The network under test: a `torch.nn.Module` of any library (its normalisation is
            read from it, or chosen by trying the usual ones; `hc.Subject` says another), a function
            of images, a name as ``--model`` takes it, or a table with either as its ``name`` and
            keys of ``[model]``.
        data: Labelled images to start from: `hc.Images`, a torch ``Dataset`` or ``DataLoader``, a
            Hugging Face ``Dataset``, a pair (images, labels) of arrays, a list of (image, label)
            pairs, or a name as ``--data`` takes it. Those that the subject misclassifies, or that
            are of the target class already, are left out.
        method: A name from ``hardcase list methods`` or a recipe such as ``hc.methods.pgd()``;
            None: ``natural``, or ``natural-blackbox`` for a subject without gradients.
        options: Options of the method, if `method` is a name.
        images: How many images to start from, the classes taking turns; None: all of `hc.Images`,
            100 of anything else.
        seed: Everything random follows from it.
        budget: Limits that replace the method's own.
        peers: Networks to compare with, for methods that do.
        witnesses: `Witnesses`, or just their models.
        train: Training images, where the data set cannot be loaded by its name; None: what `data`
            holds besides the seeds.
        execution: In which sizes it is computed; by default in those that suit the device.
        settings: ``target``, ``generator``, ``conditions``, ``map``, ``keep``, ``oracle``,
            ``precision``, ``allow_low_accuracy`` ... (docs/reference/configuration.md). Settings
            that a search in memory does not use are refused.

    Returns:
        The findings; `seed` is the position of the image that it began from.

    Raises:
        HardcaseError: If the arguments do not fit together, or no seed is classified correctly.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> failures = hc.search(toy_subject(), toy_images(8), method="pgd", seed=1)
        >>> len(failures) > 0 and bool((failures.predicted != failures.expected).all())
        True
    """
    refuse_unused(settings, SearchSettings.__annotations__, "hc.search")
    if execution is not None and (execution.workers > 1 or execution.cluster is not None):
        raise HardcaseError(
            "hc.search computes in this process; workers and a cluster belong to hc.run.",
            fix="hc.run(...), or an Execution without them",
        )
    context = context_of(
        model,
        data,
        settings,
        method=method,
        options=options,
        images=images,
        seed=seed,
        budget=budget,
        peers=peers,
        witnesses=witnesses,
        train=train,
        execution=execution,
    )
    chosen = context.seeds.images()
    right = answers(context.subject, chosen).argmax(1) == chosen.y
    elsewhere = ""
    if context.campaign.target is not None:
        right &= chosen.y != context.campaign.target
        elsewhere = " of another class than the target"
    rows = right.nonzero().squeeze(1)
    if not len(rows):
        raise HardcaseError(
            f"no seed{elsewhere} is classified correctly: nothing to search from.", code=NO_SEEDS
        )
    plan = plan_of(context)
    result = search_campaign(
        context.campaign, chosen.take(rows), plan.budget, shard=plan.shard, rounds=plan.rounds
    )
    return result.findings.reseeded(rows)


def run(
    model: Any,
    data: Any,
    *,
    out: str | Path | None = None,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    images: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: Witnesses | str | Sequence[Any] | None = None,
    train: Any = None,
    baseline: Any = (),
    execution: Execution | None = None,
    **settings: Unpack[Settings],
) -> Run:
    """Measure how often `model` fails on all of `data`, search a sample of it for failures, check
    each failure.

    Args:
        model, data, method, options, seed: As for `search`; the method ``"none"`` measures alone.
        budget, peers, witnesses, train: As for `search`.
        out: A folder that does not exist yet or is empty; None: the next free name
            ``runs/METHOD-DATA-SEED``.
        images: How many images to search from; None: 60.
        baseline: Models, names of models, or folders of runs with which the failure rate is
            compared; with a model, the search is for what it gets right and `model` wrong.
        execution: How it is computed; by default in this process.
        settings: As for `search`, and ``judge=False``: findings are not checked; ``samples``: of
            the conditions per image; ``measure``: how many images are measured, or ``"all"``.

    Returns:
        The stored run, with verdicts if the judge of its data is trained; how to train it is
        logged.

    Raises:
        HardcaseError: If the arguments do not fit together or the model does not answer sensibly.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> run.record["complete"]
        True
    """
    refuse_unused(settings, Settings.__annotations__, "hc.run")
    context = context_of(
        model,
        data,
        settings,
        method=method,
        options=options,
        images=images,
        seed=seed,
        budget=budget,
        peers=peers,
        witnesses=witnesses,
        train=train,
        baseline=baseline,
        execution=execution,
        measured=True,
    )
    folder = folder_for(context.config, out)
    watcher = (execution or Execution()).watcher
    done = conduct(context, folder, nullcontext(watcher), log=_log.warning)
    _log.warning("the run is in %s", folder)
    return done


def folder_for(config: Config, given: str | Path | None) -> Path:
    """The named folder, if it is empty; without a name the first free of ``runs/METHOD-DATA-SEED``,
    ``...-2``, ...
    """
    if given is not None:
        refuse_used(Path(given))
        return Path(given)
    data = Path(config.data.split("?")[0]).stem
    name = config.method.name if config.method.searches else "measured"
    method, source = (
        re.sub(r"[^\w@.-]+", "-", text.rpartition(":")[2]).strip("-.") or "run"
        for text in (name, data)
    )
    return free(Path("runs") / f"{method}-{source}-{config.seed}")


def conduct(
    context: Context,
    folder: Path,
    watching: AbstractContextManager[Watcher],
    *,
    again: bool = False,
    log: Callable[[str], None] = lambda text: None,
) -> Run:
    """Take a run through its phases: measure, search, check. Parts of a later phase are built when
    it begins; wrong names are reported before the first phase.

    Args:
        context: Model, data, method and settings of the run.
        folder: Where the run goes; with `again`, where it was begun.
        watching: A context manager that yields the run's watcher.
        again: Go on with what the folder holds.
        log: Called with the reason why a run was not checked.

    Returns:
        The run, with the phases that ended before it was stopped.
    """
    with watching as watcher:
        plan = measure_plan(context)
        store = (phases.reopen if again else phases.begin)(plan, folder, watcher)
        with store.writing(), phases.failing_is_stored(store, "measure"):
            before = phases.status_of(store.record(), "measure")
            if not phases.measure(plan, store, watcher):
                return Run(store)
            if before != "done" or read_side_file(store, CONDITIONS) is None:
                watcher.prepare("keeping failing images to show")
                keep_measured(context, Run(store), plan.images)
        with store.writing():
            searched = _search(context, store, watcher)
        if searched:
            with store.writing():
                watcher.enter("check", store.record())
                _check_findings(context, store, log)
        return Run(store)


def _search(context: Context, store: Store, watcher: Watcher) -> bool:
    """Search, unless the run has no search; returns whether it came to its end. Of a search that is
    over the files are checked, and what is damaged is searched again.
    """
    before = phases.status_of(store.record(), "search")
    if before == "skipped":
        return True
    if before == "done":
        return start.search(plan_of(context), store, watcher)
    if not context.config.method.searches:
        why = "the run measures alone"
        phases.set_phase(store, "search", phases.phase("skipped", why))
        return True
    watcher.prepare("making ready what the search needs")
    try:
        with phases.failing_is_stored(store, "search"):
            return start.search(plan_of(context), store, watcher)
    except HardcaseError as problem:
        if problem.code != NO_SEEDS:
            raise
        watcher.log(problem.what)  # what was measured stands
        phases.set_phase(store, "search", phases.phase("skipped", problem.what))
        return True


def keep_measured(context: Context, run: Run, images: ImageSet) -> None:
    """Keep what is chosen when all is measured: failing samples as images, and how the failure
    rate compares with those of stored runs.
    """
    measured = phases.measured_rows(run.store)
    risk = run.record["risk"]
    models = risk["baselines"][: len(context.baselines)]
    stored: list[dict[str, Any]] = []
    if context.stored_baselines:
        from hardcase.analysis.references import beside_runs

        stored = beside_runs(run, measured, context.stored_baselines)
    more: dict[str, Any] = {}
    if context.conditions is not None:
        names = {name: getattr(context.conditions, name) for name in ("rare", "worst")}
        more = extremes(measured, context.measurement, images, **names)
    risk = {**risk, "baselines": [*models, *stored]}
    run.store.write_record({**run.record, "risk": risk, **more})
    keep_shown(run, measured, context.measurement, images)


def _check_findings(context: Context, store: Store, log: Callable[[str], None]) -> None:
    """Measure the requested coverage, and judge the failures."""
    done = Run(store)
    if phases.status_of(done.record, "check") in ("done", "skipped"):
        return
    began = monotonic()
    with phases.failing_is_stored(store, "check"):
        if context.config.criteria is not None and store.searching:
            from hardcase.suite.coverage import reach

            done = reach(done, context.subject, context.config.criteria, training=context.train)
        judged = bool(context.config.judge) and context.task.classifies  # judges know no others
        why = "" if judged else "no label check was asked for"
        if judged:
            heard = list[str]()
            done = finish(
                done,
                log=heard.append,
                device=context.device,
                progress=context.progress,
                images=context.labelled,
            )
            for text in heard:
                log(text)
            why = heard[-1] if heard and done.verdicts is None else ""
        status = phases.phase("skipped", why) if why else phases.phase("done")
        elapsed = round(monotonic() - began, 3)
        phases.set_phase(store, "check", {**status, "elapsed": elapsed})


def resume(
    folder: str | Path,
    subject: Any = None,
    data: Any = None,
    *,
    trust: bool = False,
    execution: Execution | None = None,
    **arguments: Any,
) -> Run:
    """Go on with a run that was stopped.

    Args:
        folder: The folder of the run.
        subject: The network under test, if the run was started from Python.
        data: The images to start from, if the run was started from Python.
        trust: Execute what the folder names, though it was not started from this account.
        execution: How it is computed; only its watcher counts in a run started by name.
        arguments: The other arguments of `run`, if the run was started from Python.

    Raises:
        HardcaseError: If the model or the data are not those the run began with.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> how = {"method": "pgd", "judge": False}
        >>> hc.resume(folder, toy_subject(), toy_images(8), **how).record["complete"]
        True
    """
    folder = Path(folder)
    watcher = (execution or Execution()).watcher
    record, notes = start.reopen(folder)
    for text in notes:
        watcher.log(text)
    values = Store(folder).settings()
    if values:
        request = Request().ask(values, "hardcase.toml").ask(arguments, "python")
        config = request.config(stored=values.get("given", {}))
        same_source(record, config)
        require(config.model_dump(), folder, trusted=trust)
        context = Context(config)
    elif subject is None or data is None:
        raise HardcaseError(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.resume(folder, model, data, ...) with what hc.run was given",
        )
    else:
        settings = {name: value for name, value in arguments.items() if name not in PARTS}
        refuse_unused(settings, Settings.__annotations__, "hc.resume")
        parts = {name: value for name, value in arguments.items() if name in PARTS}
        context = context_of(subject, data, settings, execution=execution, measured=True, **parts)
    return conduct(context, folder, nullcontext(watcher), again=True, log=_log.warning)


def check(subject: Any, data: Any, *, allow_low_accuracy: bool = False) -> Health:
    """Check that a model answers sensibly on these images.

    Args:
        subject: The network under test, in any of the forms that `search` takes.
        data: Images of its data, correctly labelled, in any of the forms that `search` takes.
        allow_low_accuracy: Accept a subject that is hardly better than chance.

    Raises:
        HardcaseError: With what is wrong and what to do about it.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> hc.check(toy_subject(), toy_images(16)).accuracy
        1.0
    """
    context = context_of(subject, data, method="pgd")
    return _check(context.subject, context.seeds, allow_low_accuracy=allow_low_accuracy)


def _request(
    settings: Mapping[str, Any],
    *,
    seed: int,
    budget: Budget | None,
    execution: Execution | None,
    witnesses: Any,
) -> Request:
    """What Python asks for by name, each setting once."""
    request = Request().ask(settings, "python")
    how = execution or Execution()
    computing = {
        "campaign": {"shard": how.shard, "round": how.rounds},
        "batch_size": how.batch,
        "workers": how.workers,
        "cluster": how.cluster,
    }
    request.ask(computing, "python", "Execution")
    if isinstance(witnesses, Witnesses):
        request.ask({"campaign": {"margin": witnesses.margin}}, "python", "Witnesses")
    return request.ask({"seed": seed, "budget": asdict(budget or Budget())}, "python")


def context_of(
    subject: Any,
    data: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    images: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: Witnesses | str | Sequence[Any] | None = None,
    train: Any = None,
    baseline: Any = (),
    execution: Execution | None = None,
    measured: bool = False,
) -> Context:
    """Return the context of a run whose parts are names or whatever the user has.

    Args:
        subject, data, method, options, images, seed, budget, peers: As for `run`.
        witnesses, train, baseline, execution: As for `run`.
        settings: Settings of `run` that have no argument.
        measured: All images are measured, and a sample of them is searched.
    """
    request = _request(
        settings or {}, seed=seed, budget=budget, execution=execution, witnesses=witnesses
    )
    if images is not None and images < 1:
        raise HardcaseError(f"images is {images}; it must be at least 1.")
    models = witnesses.models if isinstance(witnesses, Witnesses) else witnesses
    built = method if method is not None and not isinstance(method, str) else None
    wanted = request.values
    named_only = (options, wanted.get("generator"), wanted.get("target"))
    if built is not None and any(value not in (None, {}) for value in named_only):
        raise HardcaseError(
            "options, generator and target belong to a method given by name; this one is built."
        )
    stated = dict(subject) if isinstance(subject, Mapping) else {"name": subject}
    subject = stated.pop("name", None)
    request.ask({"model": stated}, "python")
    others = {"peers": tuple(peers), "baseline": tuple(_several(baseline))}
    for name in [name for name in others if all(isinstance(entry, str) for entry in others[name])]:
        request.ask({name: others.pop(name) or None}, "python")
    objects: dict[str, Any] = {
        "peers": others.get("peers", ()),
        "baselines": others.get("baseline", ()),
        "witnesses": models if isinstance(models, str | None) else tuple(_several(models)),
    }
    if all(entry is None or isinstance(entry, str) for entry in (subject, data)):
        request.ask({"model": subject, "data": data, "images": images}, "python")
        chosen = method or _chosen(request.values)
        request.ask(
            {"method": {**(options or {}), "name": getattr(chosen, "name", chosen)}}, "python"
        )
        train = _training_images(None, train)
        return Context(request.config(), method=built, train=train, **objects)
    data = _with_claims(data, str(wanted.get("task", "auto")))
    source, rest = _data_of(data, images, wanted, whole=measured)
    network = subject
    if not isinstance(subject, str):
        sampled = sample_of(source)
        kind = (
            "classes" if not claim_context(sampled.context) else _task(wanted.get("task"), sampled)
        )
        network = task_named(kind).wrap(subject, sampled, stated)
    if measured and images is not None:
        request.ask({"images": images}, "python")
    return Context.of(
        network,
        source,
        method or _chosen({"model": subject}, network),
        options=options,
        train=_training_images(rest, train),
        some=measured,
        rest_trains=measured and train is None and not isinstance(data, str | Images),
        request=request,
        **objects,
    )


def _several(values: Any) -> Sequence[Any]:
    """A list of arguments that may also be a single value."""
    if values is None:
        return ()
    return values if isinstance(values, list | tuple) else (values,)


def _training_images(rest: Any, given: Any) -> Any:
    """The training images that the caller passed, else those of the data."""
    if isinstance(given, str):
        return load(given, split="train")
    return rest if given is None else images_of(given)


def _with_claims(data: Any, wanted: str) -> Any:
    """Seeds with claims, where the data says what is in its images; else the data as it is."""
    if isinstance(data, Images | Stream):
        return data
    if not isinstance(data, AnnotatedImages) and _task(wanted, data) == "classes":
        return data
    annotated = load_annotations(data, "test", _task(wanted, data))
    return claim_seeds(annotated.images, annotated.annotations, _task(wanted, data))


def _task(wanted: str | None, data: Any) -> Task:
    """What networks of such data answer."""
    wanted = wanted or "auto"
    if wanted == "auto" and isinstance(data, Images):
        return task_of_seeds(data)
    if wanted == "auto" and isinstance(data, AnnotatedImages):
        return usual_task(data.annotations)
    return task_of(wanted, data if isinstance(data, str) else "")


def _data_of(
    data: Any, count: int | None, settings: Mapping[str, Any], *, whole: bool
) -> tuple[ImageSet, ImageSet | None]:
    """The images to search (with `whole` all images to measure), and the training images of the
    data. Only what is searched from is decoded.
    """
    seed = settings.get("seed", 0)
    if isinstance(data, str):
        split, offline = settings.get("split", "test"), settings.get("offline", False)
        images = load(data, split=split, offline=offline)
        if whole:
            return images, None
        return images.sample(count=min(count or SEEDS, len(images)), seed=seed), None
    if isinstance(data, Images):
        sampled = count is not None and not whole
        return data.sample(count=count, seed=seed) if sampled and count else data, None
    if isinstance(data, Stream):
        source: ImageSet = data
    else:
        source = stream_of(data) if is_lazy(data) else images_of(data)
    if whole:
        return source, None
    chosen = source.sample(count=min(count or SEEDS, len(source)), seed=seed)
    chosen_ids = set(chosen.id)
    others = torch.tensor([i for i, name in enumerate(source.id) if name not in chosen_ids]).long()
    return chosen.held(), source.take(others) if len(others) else None


def _chosen(values: Mapping[str, Any], model: Any = None) -> str:
    """The method of a campaign that names none; which, and why, is logged."""
    name, why = chosen_method(values, getattr(model, "offers", None))
    _log.warning("%s", why)
    return name
