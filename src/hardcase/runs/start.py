"""A campaign from its first check to its last file, and how it goes on after a stop."""

from __future__ import annotations

import copy
import logging
import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.claims import CLAIMED
from hardcase.campaign.loop import in_rounds, shard_size
from hardcase.campaign.record import Campaign, limits, overlay, seconds
from hardcase.companions import teams_module
from hardcase.config import Config, MethodConfig
from hardcase.context import Context
from hardcase.data.files import ImageSet
from hardcase.environment import VERSION
from hardcase.errors import NO_SEEDS, Problem
from hardcase.models.health import Health, check
from hardcase.models.load import is_stated, lineage_of
from hardcase.models.subject import Subject
from hardcase.models.witnesses import catalogued, witness_record
from hardcase.registry import citation_key
from hardcase.runs.files import locked
from hardcase.runs.folder import SCHEMA, Store, refuse_used
from hardcase.runs.identity import ANOTHER, Identity, code_digests, identity_of, require_same
from hardcase.runs.progress import ProgressLog, Watcher, logged
from hardcase.runs.results import Run, keep_claims
from hardcase.runs.tables import SPENDING, asked_seeds, usable_rows, with_images
from hardcase.runs.verify import (
    Canaries,
    Repaired,
    behaviour_of,
    networks_of,
    repair_record,
    repair_shards,
    require_behaviour,
    set_aside,
    strict_arithmetic,
)
from hardcase.runs.workers import (
    Processes,
    Round,
    Source,
    Tasks,
    gpus,
    run_shards,
    search_here,
    search_on_device,
)
from hardcase.tensors import steady
from hardcase.types import Budget, is_photographic

if TYPE_CHECKING:
    from hardcase.conditions.declared import Conditions


_log = logging.getLogger(__name__)

# --- run.json before the search


def _first_record(
    campaign: Campaign, images: ImageSet, budget: Budget, health: Health, about: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json says of a campaign before it starts."""
    method = campaign.method
    subject = campaign.subject
    card = method.details.get("generator")
    # of parameters alone: a network is the same under another name
    weights = {
        role: getattr(one, "weights", "") for role, one in networks_of(campaign, "subject").items()
    }
    repeatable = campaign.tile is not None  # tested on a device, told to on a CPU
    if steady(subject.device):
        repeatable = strict_arithmetic()
    hashes = {
        "subject": subject.hash,
        "peers": [peer.hash for peer in campaign.peers],
        "witnesses": [witness.hash for witness in campaign.witnesses],
        "generator": (card or {}).get("weights"),
        "parameters": {role: one for role, one in weights.items() if one},
        "guides": {},
        "data": images.hash,
    }
    if method.details.get("surrogates"):
        hashes["surrogates"] = list(method.details["surrogates"])
    witnesses = None
    if campaign.witnesses:
        witnesses = witness_record(subject, campaign.witnesses, campaign.margin, None)
    versions = {name: metadata.version(name) for name in ("torch", "numpy", "pyarrow")}
    return {
        "schema": SCHEMA,
        "hardcase": VERSION,
        "versions": {"python": platform.python_version(), **versions},
        "argv": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "complete": False,
        "elapsed": 0.0,
        "method": method.name,
        "options": dict(method.details.get("options", {})),
        "model": subject.name,
        "data": images.name,
        "split": images.split,
        "classes": list(images.classes),
        "image": list(images.shape),
        "seed": campaign.seed,
        "seeds": len(images),
        "budget": {name: value for name, value in asdict(budget).items() if value is not None},
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
        "bitwise": health.bitwise and repeatable,
        "tile": campaign.tile,
        "precision": campaign.precision,
        "deterministic": budget.time is None,
        "hashes": hashes,
        "witnesses": witnesses,
        **_lineages(campaign, images),
        "space": method.details.get("space"),
        "generator": card,
        "places": method.details.get("places"),
        "accuracy": {"value": health.accuracy, "images": health.images},
        "totals": dict.fromkeys(SPENDING, 0),
        "notes": list(health.notes),
        "citations": list(map(citation_key, method.details.get("cite", ()))),
        **about,
    }


def _lineages(campaign: Campaign, images: ImageSet) -> dict[str, Any]:
    """Where the networks of the search come from, if others have trained any of them."""
    called: Callable[[Any], str] = attrgetter("name")
    if is_photographic(images.shape):
        called = catalogued
    known = {
        "subject": lineage_of(called(campaign.subject)),
        "peers": [lineage_of(called(peer)) for peer in campaign.peers],
        "witnesses": [lineage_of(called(witness)) for witness in campaign.witnesses],
    }
    named = known["subject"] or any([*known["peers"], *known["witnesses"]])
    return {"lineages": known} if named else {}


# --- what a run needs

PLAIN = (bool, int, float, str)
"""Types of options that a configuration file can hold."""
FROM_PYTHON = (
    "# Started from Python with live objects: hc.resume(folder, subject, seeds, ...) goes on.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a run needs.

    Args:
        source: Builds the campaign, also in another process.
        campaign: What `source` builds, where this process has built it already.
        rounds: Shards that start from the same state of the guides.
        config: The text that re-creates the plan.
        about: More entries of the record.
        ingredients: Digests of what the campaign was made from and does not show.
    """

    source: Source
    images: ImageSet
    campaign: Campaign | None = None
    budget: Budget = field(default_factory=Budget)
    shard: int = 32
    rounds: int = 8
    workers: int = 1
    devices: tuple[str, ...] = ()
    cluster: str | None = None
    metrics: Path | None = None
    allow_low_accuracy: bool = False
    config: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    ingredients: Mapping[str, str] = field(default_factory=dict)

    def identity(self, campaign: Campaign) -> Identity:
        """Of the campaign that `source` builds, with everything it starts from."""
        budget = overlay(self.budget, campaign.method.budget)
        return identity_of(
            campaign,
            self.images,
            self.config,
            budget,
            ingredients=self.ingredients,
            shard=self.shard,
            rounds=self.rounds,
        )


def plan_of(context: Context) -> Plan:
    """Everything that a run of this campaign on disk needs."""
    config = context.config
    if context.given_seeds is None:  # what is wrong with the data or the model is told first
        context.read(config.split)
    device = context.subject.device
    _log.debug("the data and the model are loaded, on %s", device)
    if config.criteria is not None:
        from hardcase.criteria.criterion import parse_list

        parse_list(config.criteria)
    if context.conditions is not None:
        _check_conditions(context, context.conditions)
    needed = ["method", "map_cells", "witnesses"]
    if "space" in context.part.given:
        needed = ["options", "generator", *needed]
    for ingredient in needed:  # what may be wrong is told before what takes its time
        getattr(context, ingredient)
    campaign = context.campaign
    shard = config.campaign.shard
    if shard is None:
        shard = shard_size(campaign.method, math.prod(context.shape), device)
    source: Callable[[], Campaign] = partial(_itself, campaign)
    text = FROM_PYTHON
    if context.by_name:
        source = partial(_campaign_of, _settled(context))
        text = _resolved(context, shard).to_toml()
    devices: tuple[str, ...] = ()  # worker processes use all GPUs, unless one was named
    if device.type == "cuda" and device.index in (None, 0) and ":" not in config.device:
        devices = gpus(torch.cuda.device_count())
    ingredients = {**code_digests(config.model_dump()), "training data": "none"}
    if "train" in context.loaded:  # where it was used
        ingredients["training data"] = context.loaded["train"].hash
    if campaign.method.details.get("surrogates"):
        ingredients["surrogates"] = " ".join(campaign.method.details["surrogates"])
    return Plan(
        source=source,
        campaign=campaign,
        images=context.seeds,
        budget=Budget(**config.budget.model_dump()),
        shard=shard,
        rounds=config.campaign.round or (1 if campaign.method.guides else 8),
        workers=config.workers,
        devices=devices,
        cluster=config.cluster,
        metrics=None if config.metrics is None else Path(config.metrics),
        allow_low_accuracy=config.allow_low_accuracy,
        config=text,
        about=_about(context),
        ingredients=ingredients,
    )


def _settled(context: Context) -> Config:
    """The configuration with what a clock has chosen: whether networks that nobody asked for are
    worth their training. Workers, and whoever resumes the run, do not choose again."""
    config = context.config
    changed: dict[str, Any] = {}
    if config.witnesses is None and not context.witnesses:
        changed["witnesses"] = ("none",)
    search = context.method.details.get("options", {}).get("search")
    if "surrogates" in context.part.given and search:
        options = {**config.method.options(), "search": search}
        changed["method"] = MethodConfig(name=config.method.name, **options)
    return config.model_copy(update=changed)


def _resolved(context: Context, shard: int) -> Config:
    """The configuration with what was chosen for it, so that it re-runs the same way."""
    config = _settled(context)
    changed: dict[str, Any] = {
        "campaign": config.campaign.model_copy(update={"shard": shard, "tile": context.tile}),
        "device": context.device,
        "data": context.data,
        "seeds": config.seeds or len(context.seeds),
        "conditions": config.conditions or getattr(context.conditions, "name", "none"),
    }
    if isinstance(context.subject, Subject) and not is_stated(config.model):
        mean = tuple(context.subject.mean.flatten().tolist())
        std = tuple(context.subject.std.flatten().tolist())
        changed["subject"] = config.subject.model_copy(update={"mean": mean, "std": std})
    options = context.method.details.get("options", {})
    plain = {name: value for name, value in options.items() if isinstance(value, PLAIN)}
    changed["method"] = MethodConfig(name=config.method.name, **plain)
    return config.model_copy(update=changed)


def _about(context: Context) -> dict[str, Any]:
    """What run.json says beyond the campaign itself."""
    config = context.config
    about: dict[str, Any] = {"model": config.model, "data": context.data, "keep": config.keep}
    if any(witness.name.startswith("witness:") for witness in context.witnesses):
        from hardcase.models.witnesses import witness_record

        margin = config.campaign.margin
        about["witnesses"] = witness_record(
            context.subject, context.witnesses, margin, context.train
        )
    if CLAIMED in context.sample.context:
        from hardcase.claims.load import claim_record

        about["claims"] = claim_record(context.seeds.images(), context.task, context.subject)
    if config.judge_features:
        about["judge_features"] = list(config.judge_features)
    if config.baseline is not None:
        about["baseline"] = config.baseline
    if context.generated:
        about["generated seeds"] = context.generated
    if context.map_cells is not None:
        from hardcase.analysis.maps import record

        about["map"] = record(context.map_cells)
    return about


def _check_conditions(context: Context, conditions: Conditions) -> None:
    """Tell what is wrong with conditions and references before the search begins."""
    from hardcase.analysis.references import ReferenceRun
    from hardcase.conditions.box import condition_box

    condition_box(conditions, context.shape)
    for reference in context.references if context.config.references else ():
        if isinstance(reference, ReferenceRun):
            reference.check(conditions, context.seeds, context.config.seed)


def _campaign_of(config: Config) -> Campaign:
    """A campaign from its configuration, in whatever process needs it."""
    return Context(config).campaign


def _itself(campaign: Campaign) -> Campaign:
    return campaign


# --- a run

Opened = tuple[Campaign, Store, Tasks, Budget, dict[str, Any]]
"""A campaign with its run folder, the shards of its usable seeds, their budget and its record."""


def start(plan: Plan, out: Path, watcher: Watcher | None = None, *, again: bool = False) -> Run:
    """Check the subject, select the seeds, run the campaign into a new folder `out`; or `again`:
    go on with the shards that `out` does not have yet, from the same model and data.
    """
    watcher = watcher or Watcher()
    opened = _reopened if again else _created
    with (
        opened(plan, out, watcher) as (campaign, store, todo, budget, record),
        logged(store.folder),
    ):
        with campaign.arithmetic():
            todo = replace(todo, canaries=Canaries.drawn(campaign, plan.images))
        watcher.begin(record, len(todo.rows), plan.shard * plan.workers)
        guides = copy.deepcopy((*campaign.method.guides, *campaign.criteria))
        size = plan.rounds
        if not guides and budget.findings is None:  # nothing passes from round to round
            size = max(len(todo), 1)
        with (
            ProgressLog(store, record, len(todo), watcher, plan.metrics) as book,
            _executing(plan, campaign, watcher) as search,
        ):
            limit = seconds(budget.time)
            deadline = None if limit is None else monotonic() + limit - book.before
            done = store.done()
            for numbers in in_rounds(len(todo), size, guides, store.deltas):
                if budget.findings is not None and book.found >= budget.findings and numbers.start:
                    break  # the round before reached the limit
                missing = (replace(todo[n], deadline=deadline) for n in numbers if n not in done)
                for outcome in search(missing, guides):
                    summary = {**outcome.summary, "elapsed": book.elapsed()}
                    store.put(outcome.number, outcome.packed, summary)
                    done.add(outcome.number)
                    book.shard(summary)
                if not done.issuperset(numbers):
                    break
    return Run(store.folder)


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with a run that was stopped; see `start`."""
    return start(plan, out, watcher, again=True)


def _ray() -> Any:
    return teams_module("ray", "a cluster", "ray")


@contextmanager
def _executing(plan: Plan, campaign: Campaign, watcher: Watcher) -> Iterator[Round]:
    """What searches the shards of a round: this process, several of this machine, or a cluster."""
    callbacks = (watcher.on_step, watcher.stopped)
    if plan.cluster is None and plan.workers <= 1:
        search = search_here if steady(campaign.subject.device) else search_on_device
        yield partial(search, campaign, *callbacks)
        return
    if plan.cluster is not None:
        with _ray().Cluster(plan.cluster, campaign) as cluster:
            yield partial(run_shards, cluster, *callbacks)
        return
    with Processes(plan.source, plan.workers, plan.devices) as processes:
        yield partial(run_shards, processes, *callbacks)


def reopen(out: Path) -> Repaired:
    """Put the record and the settings of a run folder right before they are read."""
    Store.open(out)
    with locked(out):
        return repair_record(out)


@contextmanager
def _created(plan: Plan, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """A new run folder, for a campaign that passed its checks."""
    refuse_used(out)
    if plan.cluster is not None:
        _ray().check_place(plan.cluster)
    campaign = plan.campaign or plan.source()
    with campaign.arithmetic():
        health = check(campaign.subject, plan.images, allow_low_accuracy=plan.allow_low_accuracy)
        rows = asked_seeds(campaign, plan.images)
        known = behaviour_of(networks_of(campaign), plan.images, campaign)
    if not steady(campaign.subject.device):
        watcher.say(f"computing on {campaign.subject.device}, in tiles of {campaign.tile} rows")
    inexact = [
        f"bits of the {role} are not promised: on resume its answers may differ by {one.within:.1g}"
        for role, one in known.items()
        if one.within
    ]
    for note in (*health.notes, *inexact):
        watcher.say(note)
    todo, budget = _tasks(plan, campaign, usable_rows(rows))
    record = _first_record(campaign, plan.images, budget, health, plan.about)
    record |= {"shards": len(todo), "identity": plan.identity(campaign).to_json()}
    record |= {"behaviour": {role: one.to_json() for role, one in known.items()}}
    with locked(out):
        store = Store.create(out, record, plan.config, with_images(rows, plan.images))
        rows.clear()  # what grows with the seeds and is stored
        if CLAIMED in getattr(plan.images, "context", {}):
            keep_claims(store, plan.images)
        yield campaign, store, todo, budget, record


@contextmanager
def _reopened(plan: Plan, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """A run folder as it was left, put right where it is damaged."""
    store = Store.open(out)
    with locked(out):
        record, notes = repair_record(out)
        campaign = plan.campaign or plan.source()
        then = Identity.from_json(record.get("identity"))
        if then is None:
            raise Problem(f"{out} does not say which ingredients it began with.", fix=ANOTHER)
        require_same(then, plan.identity(campaign), fix=ANOTHER)
        with campaign.arithmetic():
            chosen, more = _stored_usable(store, campaign, plan.images)
            require_behaviour(record, networks_of(campaign), plan.images, campaign)
        if CLAIMED in getattr(plan.images, "context", {}):
            store.run = then.digest
            keep_claims(store, plan.images)
        todo, budget = _tasks(plan, campaign, chosen)
        damaged = repair_shards(store, shards=len(todo))
        again = [f"shard {n} was damaged; it is set aside and searched again" for n in damaged]
        for note in (*notes, *more, *again):
            watcher.say(note)
        yield campaign, store, todo, budget, record


def _stored_usable(
    store: Store, campaign: Campaign, images: ImageSet
) -> tuple[Int[Tensor, " u"], list[str]]:
    """The same as stored, or asked of the subject again; and notes."""
    try:
        rows = list(store.seed_groups(["id", "status"]))
        names = (name for part in rows for name in part["id"].to_pylist())
        if all(one == other for one, other in zip_longest(names, images.id)):
            return usable_rows(rows), []
    except Problem:
        pass
    set_aside(store.folder / "seeds.parquet")
    rows = asked_seeds(campaign, images)
    store.write_seeds(with_images(rows, images))
    return usable_rows(rows), ["seeds.parquet was damaged or missing; the subject was asked again"]


def _tasks(plan: Plan, campaign: Campaign, chosen: Int[Tensor, " u"]) -> tuple[Tasks, Budget]:
    """The shards of the usable seeds, and the budget they share."""
    if not len(chosen):
        away = "" if campaign.target is None else " and of another class than the target"
        raise Problem(
            f"none of the {len(plan.images)} seeds is correctly classified{away}, so there is"
            " nothing to search from.",
            fix="more --seeds, another --split, or a better model",
            code=NO_SEEDS,
        )
    budget = overlay(plan.budget, campaign.method.budget)
    seconds(budget.time)
    return Tasks(plan.images, chosen, limits(budget, len(chosen)), plan.shard), budget
