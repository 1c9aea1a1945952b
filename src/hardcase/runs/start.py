"""The search of a run, from its first seed to its last file, and how it goes on after a stop."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any

from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.claims import CLAIMED
from hardcase.campaign.loop import in_rounds
from hardcase.campaign.record import Campaign, limits, overlay, seconds
from hardcase.companions import teams_module
from hardcase.data.files import ImageSet
from hardcase.environment import VERSION
from hardcase.errors import NO_SEEDS, HardcaseError, Refused
from hardcase.models.health import require_gradients
from hardcase.models.load import lineage_of
from hardcase.models.witnesses import catalogued, witness_record
from hardcase.registry import citation_key
from hardcase.runs.files import locked
from hardcase.runs.folder import SCHEMA, Store, refuse_used
from hardcase.runs.identity import ANOTHER, Identity, require_same
from hardcase.runs.phases import NOT_BEGUN, PHASES, inexact, phase, status_of
from hardcase.runs.plan import Plan
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
)
from hardcase.runs.workers import (
    Processes,
    Round,
    Tasks,
    run_shards,
    search_here,
)
from hardcase.tensors import steady
from hardcase.types import Budget, is_photographic

_log = logging.getLogger(__name__)

# --- what the search adds to run.json when it begins


def _search_record(
    campaign: Campaign, images: ImageSet, budget: Budget, about: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json says of a search before it starts."""
    method = campaign.method
    subject = campaign.subject
    card = method.details.get("generator")
    # of parameters alone: a network is the same under another name
    weights = {
        role: getattr(weight, "weights", "") for role, weight in networks_of(campaign).items()
    }
    hashes = {
        "model": subject.hash,
        "peers": [peer.hash for peer in campaign.peers],
        "witnesses": [witness.hash for witness in campaign.witnesses],
        "generator": (card or {}).get("weights"),
        "parameters": {role: weight for role, weight in weights.items() if weight},
        "guides": {},
        "data": images.hash,
    }
    if method.details.get("surrogates"):
        hashes["surrogates"] = list(method.details["surrogates"])
    witnesses = None
    if campaign.witnesses:
        witnesses = witness_record(subject, campaign.witnesses, campaign.margin, None)
    return {
        "method": method.name,
        "options": dict(method.details.get("options", {})),
        "images": len(images),
        "budget": {name: value for name, value in asdict(budget).items() if value is not None},
        "tile": campaign.tile,
        "precision": campaign.precision,
        "deterministic": budget.time is None,
        "hashes": hashes,
        "witnesses": witnesses,
        **_lineages(campaign, images),
        "space": method.details.get("space"),
        "generator": card,
        "places": method.details.get("places"),
        "citations": list(map(citation_key, method.details.get("cite", ()))),
        **about,
    }


def _lineages(campaign: Campaign, images: ImageSet) -> dict[str, Any]:
    """Where the networks of the search come from, if others have trained any of them."""
    name: Callable[[Any], str] = attrgetter("name")
    if is_photographic(images.shape):
        name = catalogued
    lineages = {
        "model": lineage_of(name(campaign.subject)),
        "peers": [lineage_of(name(peer)) for peer in campaign.peers],
        "witnesses": [lineage_of(name(witness)) for witness in campaign.witnesses],
    }
    named = lineages["model"] or any([*lineages["peers"], *lineages["witnesses"]])
    return {"lineages": lineages} if named else {}


# --- the search of a run

Opened = tuple[Campaign, Tasks, Budget, dict[str, Any]]
"""A campaign with the shards of its usable seeds, their budget and the record of its run."""
ALONE = "the search was started alone"


def start(plan: Plan, out: Path, watcher: Watcher | None = None, *, again: bool = False) -> Run:
    """Search alone, into a new folder `out` in which nothing is measured or checked; or `again`: go
    on with the shards that `out` does not have yet.
    """
    watcher = watcher or Watcher()
    if again:
        for text in reopen(out).notes:
            watcher.log(text)
        store = Store.open(out)
    else:
        refuse_used(out)
        campaign = plan.campaign or plan.source()
        record = {
            "schema": SCHEMA,
            "hardcase": VERSION,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": False,
            "elapsed": 0.0,
            "phases": {**dict.fromkeys(PHASES, phase("skipped", ALONE)), "search": NOT_BEGUN},
            "identity": plan.identity(campaign).to_json(),
            "model": campaign.subject.name,
            "data": plan.images.name,
            "split": plan.images.split,
            "classes": list(plan.images.classes),
            "shape": list(plan.images.shape),
            "seed": campaign.seed,
            "device": str(campaign.subject.device),
            "totals": dict.fromkeys(SPENDING, 0),
        }
        with locked(out):
            store = Store.create(out, record, plan.config)
    search(plan, store, watcher)
    return Run(out)


def search(plan: Plan, store: Store, watcher: Watcher) -> bool:
    """Search the shards that `store` lacks; returns whether all of them are there.

    Raises:
        HardcaseError: If no image can be searched from, or the ingredients differ from those of the
            interrupted search.
    """
    with (
        store.writing(),
        logged(store.folder),
        _opened(plan, store, watcher) as (campaign, todo, budget, record),
    ):
        with campaign.arithmetic():
            todo = replace(todo, canaries=Canaries.of_campaign(campaign, plan.images, len(todo)))
        watcher.begin(record, len(todo.rows), plan.shard * plan.workers)
        guides = copy.deepcopy((*campaign.method.guides, *campaign.criteria))
        size = plan.rounds
        if not guides and budget.findings is None:  # nothing passes from round to round
            size = max(len(todo), 1)
        with (
            ProgressLog(store, record, len(todo), watcher) as book,
            _executing(plan, campaign, watcher, len(todo)) as search,
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
    return status_of(store.record(), "search") == "done"


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with a run that was stopped; see `start`."""
    return start(plan, out, watcher, again=True)


@contextmanager
def _executing(plan: Plan, campaign: Campaign, watcher: Watcher, shards: int) -> Iterator[Round]:
    """The executor of a round's shards: this process, worker processes of this machine, or a
    cluster."""
    callbacks = (watcher.on_step, watcher.stopped)
    if plan.cluster is None and plan.workers <= 1:
        yield partial(search_here, campaign, *callbacks)
        return
    if plan.cluster is not None:
        with teams_module("ray", "a cluster", "ray").Cluster(
            plan.cluster, campaign, campaign.subject.device.type
        ) as cluster:
            yield partial(run_shards, cluster, *callbacks)
        return
    with Processes(plan.source, min(plan.workers, max(shards, 1)), plan.devices) as processes:
        yield partial(run_shards, processes, *callbacks)


def reopen(out: Path) -> Repaired:
    """Put the record and the settings of a run folder right before they are read."""
    Store.open(out)
    with locked(out):
        return repair_record(out)


@contextmanager
def _opened(plan: Plan, store: Store, watcher: Watcher) -> Iterator[Opened]:
    """The interrupted search, repaired where it is damaged; or the beginning of a new search."""
    campaign = plan.campaign or plan.source()
    chosen, notes = _begun(plan, campaign, store, watcher)
    if CLAIMED in getattr(plan.images, "context", {}):
        keep_claims(store, plan.images)
    todo, budget = _tasks(plan, campaign, chosen)
    damaged = repair_shards(store, shards=len(todo))
    again = [f"shard {n} was damaged; it is set aside and searched again" for n in damaged]
    for note in (*notes, *again):
        watcher.log(note)
    yield campaign, todo, budget, store.record()


def _begun(
    plan: Plan, campaign: Campaign, store: Store, watcher: Watcher
) -> tuple[Int[Tensor, " u"], list[str]]:
    """The usable seeds of a search, which is begun if it was not, and notes."""
    record = store.record()
    identity = plan.identity(campaign)
    with campaign.arithmetic():
        require_gradients(campaign.subject, plan.images, campaign.method)
        then = Identity.from_json(record["phases"]["search"].get("identity"))
        if then is not None:
            require_same(then, identity, fix=ANOTHER)
            require_behaviour(record, networks_of(campaign), plan.images, campaign, known=True)
            return _stored_usable(store, campaign, plan.images)
        if store.done():
            what = f"{store.folder} does not say which ingredients its search began with."
            raise Refused(what, fix=ANOTHER)
        rows = asked_seeds(campaign, plan.images)
        behaviour = behaviour_of(networks_of(campaign), plan.images, campaign)
    if not steady(campaign.subject.device):
        watcher.log(f"computing on {campaign.subject.device}, in tiles of {campaign.tile} rows")
    for note in inexact(behaviour):
        watcher.log(note)
    todo, budget = _tasks(plan, campaign, usable_rows(rows))
    added = _search_record(campaign, plan.images, budget, plan.about)
    entries = {f"searched {role}": fingerprint.to_json() for role, fingerprint in behaviour.items()}
    added |= {
        "shards": len(todo),
        "behaviour": {**record.get("behaviour", {}), **entries},
        "phases": {**record["phases"], "search": phase("running", identity=identity.to_json())},
    }
    store.begin_search(added, plan.config, with_images(rows, plan.images))
    return usable_rows(rows), []


def _stored_usable(
    store: Store, campaign: Campaign, images: ImageSet
) -> tuple[Int[Tensor, " u"], list[str]]:
    """The same as stored, or from a new evaluation of the subject; and notes."""
    try:
        rows = list(store.seed_groups(["id", "status"]))
        names = (name for part in rows for name in part["id"].to_pylist())
        if all(one == other for one, other in zip_longest(names, images.id)):
            return usable_rows(rows), []
    except HardcaseError:
        pass
    set_aside(store.folder / "images.parquet")
    rows = asked_seeds(campaign, images)
    store.write_seeds(with_images(rows, images))
    return usable_rows(rows), ["images.parquet was damaged or missing; the model was asked again"]


def _tasks(plan: Plan, campaign: Campaign, chosen: Int[Tensor, " u"]) -> tuple[Tasks, Budget]:
    """The shards of the usable seeds, and the budget they share."""
    if not len(chosen):
        away = "" if campaign.target is None else " and of another class than the target"
        raise HardcaseError(
            f"none of the {len(plan.images)} images is correctly classified{away}, so there is"
            " nothing to search from.",
            fix="more --images, another --split, or a better model",
            code=NO_SEEDS,
        )
    budget = overlay(plan.budget, campaign.method.budget)
    seconds(budget.time)
    return Tasks(plan.images, chosen, limits(budget, len(chosen)), plan.shard), budget
