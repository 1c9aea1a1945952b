"""The Python front door: `hc.run` and `hc.search` take live objects where the command line takes
names.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hardcase.campaign.in_memory import search_campaign
from hardcase.config import chosen_method, folder_for, parse
from hardcase.context import SEEDS, Context, few, several
from hardcase.data.images import images_of, is_lazy, stream_of
from hardcase.data.sources import load
from hardcase.data.streams import Stream
from hardcase.errors import NO_SEEDS, Problem
from hardcase.judges.verdicts import finish
from hardcase.models.health import Health, answers
from hardcase.models.health import check as _check
from hardcase.models.load import model_of
from hardcase.report.paths import paint_paths
from hardcase.runs import start
from hardcase.runs.folder import Store
from hardcase.runs.identity import require, same_source
from hardcase.runs.results import Run
from hardcase.runs.start import Watcher
from hardcase.types import Budget, Findings, Images, Method, Model

_log = logging.getLogger(__name__)


def search(
    subject: Any,
    data: Any,
    *,
    method: str | Method | None = None,
    seeds: int | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    peers: Sequence[Model] = (),
    witnesses: str | Sequence[str | Model] | None = None,
    margin: float = 2.0,
    target: int | None = None,
    generator: str | None = None,
    map: str | None = None,
    options: Mapping[str, Any] | None = None,
    keep: str | None = None,
    train: Any = None,
    batch: int | None = None,
    shard: int | None = None,
    rounds: int | None = None,
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
        seeds: How many images to start from, the classes taking turns; None: all of `hc.Images`,
            100 of anything else.
        budget: Limits that replace the method's own.
        seed: Everything random follows from it.
        peers: Networks to compare with, for methods that do.
        witnesses: Networks that must keep the label where the subject leaves it, as objects or
            names; ``"default"``: three small networks trained on half of the training images;
            empty: nobody; None: the default ones if the method has witnesses (``natural``).
        margin: By how many logits each witness must keep it.
        target: Targeted search: only this predicted class counts as a failure.
        generator: The generator of a latent method, as ``--generator`` names it.
        map: Two or three features whose cells the search fills with failures, as ``--map`` names
            them.
        options: Options of a method that is given by name.
        keep: Which findings per seed are kept: first, best, best-per-label, all or a number.
        train: Training images, where the data set cannot be loaded by its name; None: what `data`
            holds besides the seeds.
        batch: Rows that a network is given in one call; changes no result.
        shard: Seeds that are searched at once; by default what suits the device and the method.
        rounds: Shards that start from the same state of the guides.

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
    given = dict(locals())
    context = _context_of(**given)
    images = context.seeds.images()
    right = answers(context.subject, images).argmax(1) == images.y
    if context.campaign.target is not None:
        right &= images.y != context.campaign.target
    rows = right.nonzero().squeeze(1)
    if not len(rows):
        away = "" if context.campaign.target is None else " of another class than the target"
        raise Problem(
            f"no seed{away} is classified correctly: nothing to search from.", code=NO_SEEDS
        )
    plan = context.plan
    found = search_campaign(
        context.campaign, images.take(rows), budget, shard=plan.shard, rounds=plan.rounds
    )
    return found.findings.reseeded(rows)


def run(
    subject: Any,
    data: Any,
    *,
    out: str | Path | None = None,
    method: str | Method | None = None,
    seeds: int | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    peers: Sequence[Model] = (),
    witnesses: str | Sequence[str | Model] | None = None,
    margin: float = 2.0,
    target: int | None = None,
    generator: str | None = None,
    map: str | None = None,
    options: Mapping[str, Any] | None = None,
    keep: str | None = None,
    train: Any = None,
    batch: int | None = None,
    workers: int = 1,
    cluster: str | None = None,
    shard: int | None = None,
    rounds: int | None = None,
    allow_low_accuracy: bool = False,
    judge: bool = True,
    watcher: Watcher | None = None,
) -> Run:
    """Search like `search`, store everything in the new folder `out`, judge what was found.

    Args:
        subject: The network under test, in any of the forms that `search` takes.
        data: Labelled images to start from, in any of the forms that `search` takes.
        out: A folder that does not exist yet or is empty; None: the next free one of
            ``runs/METHOD-DATA-SEED``.
        method: A name from ``hardcase list methods`` or a recipe such as ``hc.methods.pgd()``;
            None: as `search` chooses.
        seeds: How many images to start from; see `search`.
        budget: Limits that replace the method's own.
        seed: Everything random follows from it.
        peers: Networks to compare with, for methods that do.
        witnesses: Networks that must keep the label where the subject leaves it, as objects or
            names; ``"default"``: three small networks trained on half of the training images;
            empty: nobody; None: the default ones if the method has witnesses (``natural``).
        margin: By how many logits each witness must keep it.
        target: Targeted search: only this predicted class counts as a failure.
        generator: The generator of a latent method, as ``--generator`` names it.
        map: Two or three features whose cells the search fills with failures, as ``--map`` names
            them.
        options: Options of a method that is given by name.
        keep: Which findings per seed are kept: first, best, best-per-label, all or a number.
        train: Training images, where the data set cannot be loaded by its name; None: what `data`
            holds besides the seeds.
        batch: Rows that a network is given in one call; changes no result.
        workers: Processes that search side by side.
        cluster: A Ray cluster, as ``--cluster`` names it.
        shard: Seeds that are searched at once; by default what suits the device and the method.
        rounds: Shards that start from the same state of the guides.
        allow_low_accuracy: Go on with a subject that is hardly better than chance.
        judge: Judge the findings if the judge of the data is trained; how to train it is logged.
        watcher: Told how the run goes.

    Returns:
        The stored run, with verdicts if it was judged.

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
    given = dict(locals())
    context = _context_of(
        **{name: value for name, value in given.items() if name not in ("out", "judge", "watcher")}
    )
    where = folder_for(context.config, out)
    _log.warning("the run goes to %s", where)
    done = start.start(context.plan, where, watcher)
    paint_paths(done, context.campaign, context.seeds)
    return _judged(done, context) if judge else done


def resume(
    folder: str | Path,
    subject: Any = None,
    data: Any = None,
    *,
    watcher: Watcher | None = None,
    judge: bool = True,
    trust: bool = False,
    **arguments: Any,
) -> Run:
    """Go on with a run that was stopped.

    Args:
        folder: The folder of the run.
        subject: The network under test, if the run was started from Python.
        data: The images to start from, if the run was started from Python.
        watcher: Told how the run goes.
        judge: Judge the findings if the judge of the data is trained.
        trust: Execute what the folder names, though it was not started from this account.
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
    record, _ = start.reopen(Path(folder))
    values = Store(Path(folder)).settings()
    if values:
        config = parse(values)
        same_source(record, config)
        require(config.model_dump(), Path(folder), trusted=trust)
        context = Context(config)
    elif subject is None or data is None:
        raise Problem(
            f"{folder} was started from Python, so its model cannot be found by name.",
            fix="hc.resume(folder, subject, data, ...) with what hc.run was given",
        )
    else:
        context = _context_of(subject, data, **arguments)
    done = start.resume(context.plan, Path(folder), watcher)
    paint_paths(done, context.campaign, context.seeds)
    return _judged(done, context) if judge else done


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
    seeds: int | None = None,
    budget: Budget | None = None,
    peers: Sequence[Any] = (),
    witnesses: str | Sequence[Any] | None = None,
    margin: float = 2.0,
    target: int | None = None,
    generator: str | None = None,
    options: Mapping[str, Any] | None = None,
    train: Any = None,
    batch: int | None = None,
    shard: int | None = None,
    rounds: int | None = None,
    **values: Any,
) -> Context:
    """The context of a campaign whose parts are names or whatever the user has."""
    built = method is not None and not isinstance(method, str)
    if built and (options or generator or target is not None):
        raise Problem(
            "options, generator and target belong to a method given by name; this one is built."
        )
    values |= {
        "budget": asdict(budget or Budget()),
        "campaign": {"shard": shard, "round": rounds, "margin": margin},
        "generator": generator,
        "target": target,
        "batch_size": batch or "auto",
    }
    if isinstance(subject, str) and isinstance(data, str) and not built:
        values |= {"model": subject, "data": data, "seeds": seeds}
        name = method or _chosen(values)
        values["method"] = {**(options or {}), "name": name}
        return Context(parse(values), peers=tuple(peers) or None, witnesses=several(witnesses))
    images, rest = _data_of(data, seeds, values.get("seed", 0))
    some = few(images)
    network = subject if isinstance(subject, str) else model_of(subject, some)
    return Context.of(
        network,
        images,
        method or _chosen({"model": subject}, network),
        options=options,
        peers=[model_of(each, some) for each in peers],
        witnesses=witnesses,
        train=rest if train is None else images_of(train),
        **values,
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


def _judged(run: Run, context: Context) -> Run:
    """The run with verdicts, if its judge is trained; as the command line does."""
    if not run.record["complete"]:
        return run
    return finish(run, say=_log.warning, device=context.device, images=context.labelled)
