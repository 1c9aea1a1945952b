"""The Python front door: `hc.run` and `hc.search` take live objects where the command line takes
names; `conduct` takes a campaign through all its steps for both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hardcase.analysis.conditions import measure_run
from hardcase.analysis.references import Reference
from hardcase.cache import free
from hardcase.campaign.claims import claim_context
from hardcase.campaign.in_memory import search_campaign
from hardcase.claims.annotations import AnnotatedImages, load_annotations
from hardcase.claims.load import claim_model, claim_seeds, task_of_seeds, usual_task
from hardcase.claims.subjects import THRESHOLD, Task
from hardcase.config import NO_SEARCH, Config, chosen_method, parse, task_of
from hardcase.context import SEEDS, Context
from hardcase.data.files import Stream
from hardcase.data.sources import images_of, is_lazy, load, stream_of
from hardcase.errors import NO_SEEDS, Problem
from hardcase.judges.verdicts import finish
from hardcase.models.health import Health, answers, check as _check
from hardcase.models.load import Loading, model_of
from hardcase.runs import start
from hardcase.runs.folder import Store, refuse_used
from hardcase.runs.identity import require, same_source
from hardcase.runs.progress import Watcher
from hardcase.runs.results import Run
from hardcase.runs.start import plan_of
from hardcase.splits import sample_of
from hardcase.types import Budget, Findings, Images, Method, Model

__all__ = ["Execution", "Witnesses", "check", "conduct", "resume", "run", "search"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Witnesses:
    """Networks that must keep the label where the subject leaves it.

    Args:
        models: Objects or names; ``"default"``: three small networks trained on half of the
            training images; empty: nobody; None: the default ones if the method has witnesses.
        margin: By how many logits each of them must keep it.
    """

    models: str | Sequence[Any] | None = None
    margin: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How a campaign is computed. Nothing but the sizes `shard` and `rounds` of a method with
    guides changes a finding.

    Args:
        batch: Rows that a network is given in one call; None: what suits the device.
        shard: Seeds that are searched at once; None: what suits the device and the method.
        rounds: Shards that start from the same state of the guides; None: the method's.
        workers: Processes that search side by side.
        cluster: A Ray cluster, as ``--cluster`` names it.
        watcher: Told how the run goes.
    """

    batch: int | None = None
    shard: int | None = None
    rounds: int | None = None
    workers: int = 1
    cluster: str | None = None
    watcher: Watcher = field(default_factory=Watcher)


def search(
    subject: Any,
    data: Any,
    *,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: Witnesses | str | Sequence[Any] | None = None,
    train: Any = None,
    execution: Execution | None = None,
    **settings: Any,
) -> Findings:
    """Search `data` for inputs on which `subject` fails, in memory: no folder, no judge.

    Args:
        subject: The network under test: a `torch.nn.Module` of any library (its normalisation is
            read from it or found by trying the usual ones; `hc.Subject` says another), a function
            of images, or a name as ``--model`` takes it.
        data: Labelled images to start from: `hc.Images`, a torch ``Dataset`` or ``DataLoader``, a
            Hugging Face ``Dataset``, a pair (images, labels) of arrays, a list of (image, label)
            pairs, or a name as ``--data`` takes it. Those that the subject misclassifies, or that
            are of the target class already, are left out.
        method: A name from ``hardcase list methods`` or a recipe such as ``hc.methods.pgd()``;
            None: ``natural``, or ``natural-blackbox`` for a subject without gradients.
        options: Options of a method that is given by name.
        seeds: How many images to start from, the classes taking turns; None: all of `hc.Images`,
            100 of anything else.
        seed: Everything random follows from it.
        budget: Limits that replace the method's own.
        peers: Networks to compare with, for methods that do.
        witnesses: `Witnesses`, or just their models.
        train: Training images, where the data set cannot be loaded by its name; None: what `data`
            holds besides the seeds.
        execution: How it is computed; by default in this process, in sizes that suit the device.
        settings: Any other key of the configuration: ``target``, ``generator``, ``map``, ``keep``,
            ``oracle``, ``precision``, ``allow_low_accuracy`` ... (docs/configuration.md).

    Returns:
        The findings; `seed` is the position of the seed in `seeds`.

    Raises:
        Problem: If the arguments do not fit together, or no seed is classified correctly.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> found = hc.search(toy_subject(), toy_images(8), method="pgd", seed=1)
        >>> len(found) > 0 and bool((found.predicted != found.expected).all())
        True
    """
    given = locals()  # every argument, as it came
    context = _context_of(**given.pop("settings"), **given)
    images = context.seeds.images()
    right = answers(context.subject, images).argmax(1) == images.y
    elsewhere = ""
    if context.campaign.target is not None:
        right &= images.y != context.campaign.target
        elsewhere = " of another class than the target"
    rows = right.nonzero().squeeze(1)
    if not len(rows):
        raise Problem(
            f"no seed{elsewhere} is classified correctly: nothing to search from.", code=NO_SEEDS
        )
    plan = plan_of(context)
    found = search_campaign(
        context.campaign, images.take(rows), plan.budget, shard=plan.shard, rounds=plan.rounds
    )
    return found.findings.reseeded(rows)


def run(
    subject: Any,
    data: Any,
    *,
    out: str | Path | None = None,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: Witnesses | str | Sequence[Any] | None = None,
    train: Any = None,
    execution: Execution | None = None,
    **settings: Any,
) -> Run:
    """Search like `search`, store everything in the new folder `out`, judge what was found.

    Args:
        subject, data, method, options, seeds, seed: As for `search`.
        budget, peers, witnesses, train, execution: As for `search`.
        out: A folder that does not exist yet or is empty; None: the next free one of
            ``runs/METHOD-DATA-SEED``.
        settings: Any other key of the configuration, as for `search`; ``judge=False``: findings
            are not judged; ``conditions``: under which the risk is measured; ``references``: models
            beside whose risk it stands, or folders of runs in which theirs was measured.

    Returns:
        The stored run, with verdicts if the judge of its data is trained; how to train it is
        logged.

    Raises:
        Problem: If the arguments do not fit together or the model does not answer sensibly.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> run.record["complete"]
        True
    """
    given = locals()  # every argument, as it came
    del given["out"]
    context = _context_of(**given.pop("settings"), **given)
    folder = folder_for(context.config, out)
    watcher = (execution or Execution()).watcher
    done = conduct(context, folder, nullcontext(watcher), say=_log.warning)
    _log.warning("the run is in %s", folder)
    return done


def folder_for(config: Config, given: str | Path | None) -> Path:
    """The folder that was named, if nothing is in it; else the first free one of
    ``runs/METHOD-DATA-SEED``, ``...-2``, ...
    """
    if given is not None:
        refuse_used(Path(given))
        return Path(given)
    data = Path(config.data.split("?")[0]).stem
    name = "risk" if config.method.name == NO_SEARCH else config.method.name
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
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    """Take a campaign through all its steps: search, draw the paths to what was found, measure the
    coverage that was asked for, judge.

    Args:
        context: What the campaign is made of.
        folder: Where the run goes; with `again`, where it was begun.
        watching: Opens what is told how the search goes, and closes it when the search is over.
        again: Go on with what the folder holds.
        say: Told why a run was not measured or judged.
    """
    judged = bool(context.config.judge) and context.task == "classes"  # judges know classes alone
    with watching as watcher:
        done = start.start(plan_of(context), folder, watcher, again=again)
    if not done.record["complete"]:
        return done
    criteria = context.config.criteria
    if criteria is not None:
        from hardcase.suite.coverage import reach

        try:
            done = reach(done, context.subject, criteria, training=context.train)
        except Problem as problem:
            say(f"coverage was not measured: {problem.what}")
    done = measured(context, done, say)
    if not judged:
        return done
    return finish(done, say=say, device=context.device, images=context.labelled)


def measured(context: Context, run: Run, say: Callable[[str], None]) -> Run:
    """Measure how often the subject of a complete run fails under the declared conditions.

    Args:
        context: What the run is made of.
        run: A complete run.
        say: Told under which conditions, what it takes, or why it was not measured.
    """
    conditions = context.conditions
    if conditions is None:
        return run
    if context.config.conditions is None:
        say(f"conditions {conditions.name}: {conditions.about} Others: --conditions")
    references: Sequence[Reference] = ()
    try:
        references = context.references
    except Problem as problem:
        say(f"no reference: {problem.what}")
    try:
        with replace(context.campaign, precision="strict").arithmetic():  # a figure, not a search
            return measure_run(
                run, context.subject, context.seeds, conditions, references=references, say=say
            )
    except Problem as problem:
        say(f"risk was not measured: {problem.what}")
        return run


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
        arguments: What else `run` was given, if the run was started from Python.

    Raises:
        Problem: If the model or the data are not those the run began with.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> given = {"method": "pgd", "judge": False}
        >>> hc.resume(folder, toy_subject(), toy_images(8), **given).record["complete"]
        True
    """
    folder = Path(folder)
    record, _ = start.reopen(folder)
    values = Store(folder).settings()
    if values:
        config = parse({**values, **arguments})
        same_source(record, config)
        require(config.model_dump(), folder, trusted=trust)
        context = Context(config)
    elif subject is None or data is None:
        raise Problem(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.resume(folder, subject, data, ...) with what hc.run was given",
        )
    else:
        context = _context_of(subject, data, execution=execution, **arguments)
    watcher = (execution or Execution()).watcher
    return conduct(context, folder, nullcontext(watcher), again=True, say=_log.warning)


def check(subject: Any, data: Any, *, allow_low_accuracy: bool = False) -> Health:
    """Does this subject answer sensibly on these images?

    Args:
        subject: The network under test, in any of the forms that `search` takes.
        data: Images of its data, correctly labelled, in any of the forms that `search` takes.
        allow_low_accuracy: Accept a subject that is hardly better than chance.

    Raises:
        Problem: With what is wrong and what to do about it.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> hc.check(toy_subject(), toy_images(16)).accuracy
        1.0
    """
    context = _context_of(subject, data, method="pgd", seeds=None)
    return _check(context.subject, context.seeds, allow_low_accuracy=allow_low_accuracy)


def _context_of(
    subject: Any,
    data: Any,
    *,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    seeds: int | None = None,
    seed: int = 0,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: Witnesses | str | Sequence[Any] | None = None,
    train: Any = None,
    execution: Execution | None = None,
    **settings: Any,
) -> Context:
    """The context of a campaign whose parts are names or whatever the user has."""
    if not isinstance(witnesses, Witnesses):
        witnesses = Witnesses(models=witnesses)
    built = method is not None and not isinstance(method, str)
    named_only = (options, settings.get("generator"), settings.get("target"))
    if built and any(value not in (None, {}) for value in named_only):
        raise Problem(
            "options, generator and target belong to a method given by name; this one is built."
        )
    how = execution or Execution()
    values = {
        "seed": seed,
        "budget": asdict(budget or Budget()),
        "campaign": {"shard": how.shard, "round": how.rounds, "margin": witnesses.margin},
        "batch_size": how.batch or "auto",
        "workers": how.workers,
        "cluster": how.cluster,
        **settings,
    }
    if isinstance(subject, str) and isinstance(data, str) and not built:
        values |= {"model": subject, "data": data, "seeds": seeds}
        values["method"] = {**(options or {}), "name": method or _chosen(values)}
        return Context(parse(values), peers=peers, witnesses=witnesses.models)
    data = _with_claims(data, str(settings.get("task", "auto")))
    images, rest = _data_of(data, seeds, seed)
    some = sample_of(images)
    loaded = partial(_network, some=some, settings=settings)
    beside = settings.get("references")
    references: list[Model] = []
    if isinstance(beside, list | tuple) and not all(isinstance(one, str) for one in beside):
        references = [loaded(one) for one in beside]
        del values["references"]
    network = subject if isinstance(subject, str) else loaded(subject)
    others = witnesses.models
    if not isinstance(others, str | None):
        others = [one if isinstance(one, str) else loaded(one) for one in others]
    return Context.of(
        network,
        images,
        method or _chosen({"model": subject}, network),
        options=options,
        peers=[loaded(each) for each in peers],
        reference_models=references,
        witnesses=others,
        train=rest if train is None else images_of(train),
        **values,
    )


def _with_claims(data: Any, wanted: str) -> Any:
    """Seeds with claims, where the data says what is in its images; else the data as it is."""
    if isinstance(data, Images | Stream):
        return data
    if not isinstance(data, AnnotatedImages) and _task(wanted, data) == "classes":
        return data
    annotated = load_annotations(data, "test", _task(wanted, data))
    return claim_seeds(annotated.images, annotated.annotations, _task(wanted, data))


def _task(wanted: str, data: Any) -> Task:
    """What networks of such data answer."""
    if wanted == "auto" and isinstance(data, Images):
        return task_of_seeds(data)
    if wanted == "auto" and isinstance(data, AnnotatedImages):
        return usual_task(data.annotations)
    return task_of(wanted, data if isinstance(data, str) else "")


def _network(thing: Any, some: Images, settings: Mapping[str, Any]) -> Model:
    """The model in whatever a user has; about claims where the images come with some."""
    if not claim_context(some.context):
        return model_of(thing, some)
    subject = settings.get("subject") or {}
    how = Loading(mean=subject.get("mean", (0.0,)), std=subject.get("std", (1.0,)))
    return claim_model(
        thing,
        _task(str(settings.get("task", "auto")), some),
        some.classes,
        outputs=subject.get("classes", ()),
        threshold=subject.get("threshold", THRESHOLD),
        how=how,
    )


def _data_of(
    data: Any, count: int | None, seed: int
) -> tuple[Images | Stream, Images | Stream | None]:
    """The seeds, and what the data holds besides; only the seeds are decoded."""
    if isinstance(data, Images):
        return data if count is None else data.sample(count=count, seed=seed), None
    if isinstance(data, str):
        images = load(data)
        return images.sample(count=min(count or SEEDS, len(images)), seed=seed), None
    if isinstance(data, Stream):
        source: Images | Stream = data
    else:
        source = stream_of(data) if is_lazy(data) else images_of(data)
    chosen = source.sample(count=min(count or SEEDS, len(source)), seed=seed)
    taken = set(chosen.id)
    others = torch.tensor([i for i, name in enumerate(source.id) if name not in taken]).long()
    return chosen.held(), source.take(others) if len(others) else None


def _chosen(values: Mapping[str, Any], model: Any = None) -> str:
    """The method of a campaign that names none; which, and why, is logged."""
    name, why = chosen_method(values, getattr(model, "offers", None))
    _log.warning("%s", why)
    return name
