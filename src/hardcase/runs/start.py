"""A campaign from its first check to its last file, and how it goes on after a stop."""

from __future__ import annotations

import copy
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.claims import claim_context, stored_label
from hardcase.campaign.loop import in_rounds
from hardcase.campaign.record import Campaign, limits, overlay, seconds
from hardcase.data.streams import ImageSet
from hardcase.environment import VERSION
from hardcase.errors import NO_SEEDS, Problem
from hardcase.models.health import Health, answers, check
from hardcase.models.load import lineage_of
from hardcase.models.witnesses import catalogued, witness_record
from hardcase.registry import citation_key
from hardcase.runs import behaviour
from hardcase.runs.behaviour import Canaries, networks_of
from hardcase.runs.claims import keep_claims
from hardcase.runs.files import locked
from hardcase.runs.folder import SCHEMA, Store, refuse_used
from hardcase.runs.identity import ANOTHER, Identity, identity_of, require_same
from hardcase.runs.progress import ProgressLog, Watcher, logged, run_log
from hardcase.runs.ray import Cluster, check_place
from hardcase.runs.results import Run
from hardcase.runs.tables import SEEDS, SPENDING, group_rows, seeds_table, table
from hardcase.runs.verify import Repaired, repair_record, repair_shards, set_aside
from hardcase.runs.workers import Processes, Round, Source, Tasks, run_shards, search_here
from hardcase.tensors import steady
from hardcase.types import Budget, is_photographic

__all__ = [
    *("UNUSABLE", "Plan", "Watcher", "reopen", "resume", "start"),
]

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
        repeatable = behaviour.strict_arithmetic()
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


# --- which seeds a run starts from: asked of the subject once, then read from the run folder

UNUSABLE = ("skipped: misclassified", "skipped: non-finite", "skipped: target")
"""Seeds that are not searched from; those of the target's own class have no other class to reach.
"""


def _asked(campaign: Campaign, images: ImageSet) -> list[pa.Table]:
    """What the subject says of every seed, and which of them wait for their search, in row groups
    without what is known before.
    """
    rows = []
    for part in images.shards(group_rows(images.shape)):
        logits = answers(campaign.subject, part, campaign.batch)
        probabilities = logits.softmax(1)
        claims = claim_context(part.context)
        fate = torch.zeros_like(part.y)
        if campaign.target is not None:
            fate[part.y == campaign.target] = 3
        fate[logits.argmax(1) != part.y] = 1
        fate[~logits.isfinite().all(1)] = 2
        columns = {
            "predicted": stored_label(probabilities.argmax(1), logits.shape[1], claims),
            "confidence": probabilities.amax(1),
            "status": [("waiting", *UNUSABLE)[one] for one in fate.tolist()],
        }
        rows.append(table(columns, {name: SEEDS[name] for name in columns}))
    return rows


def _with_images(rows: Sequence[pa.Table], images: ImageSet) -> Iterator[pa.Table]:
    """The table of seeds as a run begins with it, in row groups."""
    for part, said in zip(images.shards(group_rows(images.shape)), rows):
        columns = {
            "id": part.id,
            "label": part.y,
            **dict(zip(said.column_names, said.columns)),
            **dict.fromkeys(("looked", "failing", *SPENDING), [0] * len(part)),
        }
        yield seeds_table(columns, part.x)


def _usable(rows: Iterable[pa.Table]) -> Int[Tensor, " u"]:
    """The positions of the seeds that are searched from."""
    skipped = [pc.is_in(part["status"], pa.array(UNUSABLE)).to_numpy() for part in rows]
    return torch.from_numpy(np.flatnonzero(~np.concatenate(skipped)))


def _stored_usable(
    store: Store, campaign: Campaign, images: ImageSet
) -> tuple[Int[Tensor, " u"], list[str]]:
    """The same as stored, or asked of the subject again; and notes."""
    try:
        rows = list(store.seed_groups(["id", "status"]))
        names = (name for part in rows for name in part["id"].to_pylist())
        if all(one == other for one, other in zip_longest(names, images.id)):
            return _usable(rows), []
    except Problem:
        pass
    set_aside(store.folder / "seeds.parquet")
    rows = _asked(campaign, images)
    store.write_seeds(_with_images(rows, images))
    return _usable(rows), ["seeds.parquet was damaged or missing; the subject was asked again"]


# --- a run


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


Opened = tuple[Campaign, Store, Int[Tensor, " u"], dict[str, Any]]
"""A campaign with its run folder, the positions of its usable seeds and its record."""


def start(plan: Plan, out: Path, watcher: Watcher | None = None, *, again: bool = False) -> Run:
    """Check the subject, select the seeds, run the campaign into a new folder `out`; or `again`:
    go on with the shards that `out` does not have yet, from the same model and data.
    """
    watcher = watcher or Watcher()
    opened = _reopened if again else _created
    with opened(plan, out, watcher) as (campaign, store, chosen, record), logged(store.folder):
        todo, budget = _tasks(plan, campaign, chosen)
        with campaign.arithmetic():
            todo = replace(todo, canaries=Canaries.drawn(campaign, plan.images))
        watcher.expect(shard=plan.shard, workers=plan.workers)
        watcher.begin(record, len(todo.rows))
        book = ProgressLog(store, record, len(todo), watcher, plan.metrics)
        book.open()
        try:
            _search(plan, campaign, todo, budget, book, watcher)
        except Exception:
            run_log.exception("the search ended early")
            raise
        finally:
            book.close()
    return Run(store.folder)


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with a run that was stopped; see `start`."""
    return start(plan, out, watcher, again=True)


def _search(
    plan: Plan,
    campaign: Campaign,
    todo: Tasks,
    budget: Budget,
    book: ProgressLog,
    watcher: Watcher,
) -> None:
    """Search the shards that the store does not have yet, and store each when it is finished."""
    store = book.store
    guides = copy.deepcopy((*campaign.method.guides, *campaign.criteria))
    limit = seconds(budget.time)
    deadline = None if limit is None else monotonic() + limit - book.before
    size = plan.rounds
    if not guides and budget.findings is None:  # nothing passes from round to round: one is enough
        size = max(len(todo), 1)
    done = store.done()
    found = sum(int(store.ledger.read()[number].summary.get("findings", 0)) for number in done)
    with _executing(plan, campaign, watcher) as run:
        for numbers in in_rounds(len(todo), size, guides, store.deltas):
            if budget.findings is not None and found >= budget.findings and numbers.start:
                return  # the round before reached the limit
            missing = (replace(todo[n], deadline=deadline) for n in numbers if n not in done)
            for outcome in run(missing, guides):
                summary = {**outcome.summary, "elapsed": book.elapsed()}
                store.put(outcome.number, outcome.packed, summary)
                done.add(outcome.number)
                found += int(summary["findings"])
                book.shard(summary)
            if not done.issuperset(numbers):
                return


@contextmanager
def _executing(plan: Plan, campaign: Campaign, watcher: Watcher) -> Iterator[Round]:
    """What searches the shards of a round: this process, several of this machine, or a cluster."""
    callbacks = (watcher.on_step, watcher.stopped)
    if plan.cluster is None and plan.workers <= 1:
        yield partial(search_here, campaign, *callbacks)
        return
    if plan.cluster is not None:
        with Cluster(plan.cluster, campaign) as cluster:
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
        check_place(plan.cluster)
    campaign = plan.campaign or plan.source()
    with campaign.arithmetic():
        health = check(campaign.subject, plan.images, allow_low_accuracy=plan.allow_low_accuracy)
        rows = _asked(campaign, plan.images)
        known = behaviour.behaviour_of(networks_of(campaign), plan.images, campaign)
    if not steady(campaign.subject.device):
        watcher.say(f"computing on {campaign.subject.device}, in tiles of {campaign.tile} rows")
    inexact = [
        f"bits of the {role} are not promised: on resume its answers may differ by {one.within:.1g}"
        for role, one in known.items()
        if one.within
    ]
    for note in (*health.notes, *inexact):
        watcher.say(note)
    chosen = _usable(rows)
    todo, budget = _tasks(plan, campaign, chosen)
    record = _first_record(campaign, plan.images, budget, health, plan.about)
    record |= {"shards": len(todo), "identity": plan.identity(campaign).to_json()}
    record |= {"behaviour": {role: one.to_json() for role, one in known.items()}}
    with locked(out):
        store = Store.create(out, record, plan.config, _with_images(rows, plan.images))
        rows.clear()  # what grows with the seeds and is stored
        if claim_context(getattr(plan.images, "context", {})):
            keep_claims(store, plan.images)
        yield campaign, store, chosen, record


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
            behaviour.require_behaviour(record, networks_of(campaign), plan.images, campaign)
        if claim_context(getattr(plan.images, "context", {})):
            store.run = then.digest
            keep_claims(store, plan.images)
        damaged = repair_shards(store, shards=len(_tasks(plan, campaign, chosen)[0]))
        again = [f"shard {n} was damaged; it is set aside and searched again" for n in damaged]
        for note in (*notes, *more, *again):
            watcher.say(note)
        yield campaign, store, chosen, record


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
