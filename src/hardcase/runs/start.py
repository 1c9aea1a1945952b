"""A campaign from its first check to its last file: select seeds, search, count,
and go on after a stop.
"""

from __future__ import annotations

import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.campaign.record import Campaign, Counts, limits, overlay, seconds
from hardcase.data.streams import ImageSet
from hardcase.environment import VERSION
from hardcase.errors import NO_SEEDS, Problem
from hardcase.models.health import Health, answers, check
from hardcase.models.load import lineage_of
from hardcase.models.witnesses import catalogued, witness_record
from hardcase.registry import citation_key
from hardcase.runs.files import locked
from hardcase.runs.folder import SCHEMA, Store, refuse_used
from hardcase.runs.identity import ANOTHER, Identity, identity_of, require_same, settings_of
from hardcase.runs.progress import Logbook, Progress, diary, logged
from hardcase.runs.ray import check_place
from hardcase.runs.results import Run
from hardcase.runs.tables import SEEDS, SPENDING, group_rows, seeds_table, table
from hardcase.runs.verify import Mended, mend_papers, mend_shards, set_aside
from hardcase.runs.workers import Source, Tasks, execute
from hardcase.tensors import steady
from hardcase.types import Budget, Images, Model, is_photographic

__all__ = [
    *("UNUSABLE", "Plan", "Watcher", "reopen", "resume", "seed_rows", "server_answers", "start"),
    *("stored_rows", "strict_arithmetic", "usable"),
]

# --- run.json before the search


def _first_record(
    campaign: Campaign, images: ImageSet, budget: Budget, health: Health, about: Mapping[str, Any]
) -> dict[str, Any]:
    """What run.json says of a campaign before it starts."""
    method = campaign.method
    subject = campaign.subject
    card = method.details.get("generator")
    hashes = {
        "subject": subject.hash,
        "peers": [peer.hash for peer in campaign.peers],
        "witnesses": [witness.hash for witness in campaign.witnesses],
        "generator": (card or {}).get("weights"),
        "parameters": _parameters(campaign),
        "guides": {},
        "data": images.hash,
    }
    if method.details.get("standins"):
        hashes["standins"] = list(method.details["standins"])
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
        "bitwise": health.bitwise and _repeatable(campaign),
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


def _parameters(campaign: Campaign) -> dict[str, str]:
    """Digests of parameters alone, by role: a network is the same under another name."""
    found = {role: getattr(one, "weights", "") for role, one in _roles(campaign, "subject").items()}
    return {role: weights for role, weights in found.items() if weights}


def _roles(campaign: Campaign, subject: str = "model") -> dict[str, Model]:
    """Every network of a search by its role; that of the subject is called `subject`."""
    roles: dict[str, Model] = {subject: campaign.subject}
    roles |= {f"peer {i}": peer for i, peer in enumerate(campaign.peers, 1)}
    return roles | {f"witness {i}": one for i, one in enumerate(campaign.witnesses, 1)}


def _repeatable(campaign: Campaign) -> bool:
    """Whether this arithmetic gives the same bits in every batch: told to on a CPU,
    tested on a device.
    """
    if steady(campaign.subject.device):
        return strict_arithmetic()
    return campaign.tile is not None


def strict_arithmetic() -> bool:
    """Whether the CPU library was told, before it computed anything,
    to give the same bits in every batch.
    """
    return os.environ.get("MKL_CBWR", "").endswith("STRICT")


# --- which seeds a run starts from: asked of the subject once, then read from the run folder

UNUSABLE = ("skipped: misclassified", "skipped: non-finite", "skipped: target")
"""Seeds that are not searched from; those of the target's own class have no other class to reach.
"""


def seed_rows(images: Images, logits: Float[Tensor, "n k"], target: int | None = None) -> pa.Table:
    """The table of seeds at the beginning of a run, without their images: only correctly
    classified ones are searched from, and none of the class that the search must reach.
    """
    probabilities = logits.softmax(1)
    zeros = [0] * len(images)
    columns = {
        "id": list(images.id),
        "label": images.y.tolist(),
        "predicted": probabilities.argmax(1).tolist(),
        "confidence": probabilities.amax(1).tolist(),
        "status": _status(images, logits, target),
        **dict.fromkeys(("looked", "failing", *SPENDING), zeros),
    }
    return table(columns, {name: SEEDS[name] for name in columns})


def _asked(campaign: Campaign, images: ImageSet) -> pa.Table:
    """The subject is asked about every seed."""
    parts = [
        seed_rows(part, answers(campaign.subject, part, campaign.batch), campaign.target)
        for part in images.shards(group_rows(images.shape))
    ]
    return pa.concat_tables(parts).combine_chunks()


def _with_images(rows: pa.Table, images: ImageSet) -> Iterator[pa.Table]:
    """The table of seeds with their images, in row groups."""
    first = 0
    for part in images.shards(group_rows(images.shape)):
        yield seeds_table(
            dict(zip(rows.column_names, rows.slice(first, len(part)).columns)), part.x
        )
        first += len(part)


def usable(rows: pa.Table) -> Int[Tensor, " u"]:
    """The positions of the seeds that are searched from."""
    waiting = [status not in UNUSABLE for status in rows["status"].to_pylist()]
    return torch.tensor(waiting, dtype=torch.bool).nonzero().squeeze(1)


def stored_rows(store: Store, campaign: Campaign, images: ImageSet) -> tuple[pa.Table, list[str]]:
    """The seeds' names and states as they are stored; if they are damaged,
    the subject is asked again. Also notes.
    """
    path = store.folder / "seeds.parquet"
    try:
        rows = pa.concat_tables(store.seed_groups(["id", "status"]))
        if rows["id"].to_pylist() == list(images.id):  # making an array of them would import pandas
            return rows, []
    except Problem:
        pass
    set_aside(path)
    rows = _asked(campaign, images)
    store.write_seeds(_with_images(rows, images))
    return rows, ["seeds.parquet was damaged or missing; the subject was asked again"]


def _status(images: Images, logits: Float[Tensor, "n k"], target: int | None) -> list[str]:
    finite = logits.isfinite().all(1)
    right = logits.argmax(1) == images.y
    words = ["waiting"] * len(images)
    for i, (fine, correct, label) in enumerate(
        zip(finite.tolist(), right.tolist(), images.y.tolist())
    ):
        if not fine:
            words[i] = "skipped: non-finite"
        elif not correct:
            words[i] = "skipped: misclassified"
        elif label == target:
            words[i] = "skipped: target"
    return words


# --- a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a run needs.

    Args:
        source: Builds the campaign, also in another process.
        images: The seeds.
        campaign: What `source` builds, where this process has built it already.
        budget: Replaces what it names of the method's own.
        shard: Seeds that are searched at once.
        rounds: Shards that start from the same state of the guides.
        workers: Processes that search side by side.
        devices: GPUs over which they are spread; all on the subject's device if empty.
        cluster: A Ray cluster that searches instead.
        metrics: A file for a monitoring system.
        allow_low_accuracy: Go on with a subject that is hardly better than chance.
        config: The text that re-creates the plan.
        about: More entries of the record.
        ingredients: Digests of what the campaign was made from and does not show: source text,
            training data.
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
        settings = settings_of(
            self.config,
            overlay(self.budget, campaign.method.budget),
            shard=self.shard,
            rounds=self.rounds,
            campaign=campaign,
        )
        return identity_of(campaign, self.images, settings=settings, ingredients=self.ingredients)


ASKED = 512
"""Seeds, at most, that the subject is asked about again before a run goes on."""
SERVED = 64
"""Seeds whose answers tell one server from another."""
LEAD = 0.02
"""Logits by which a server's lead may differ between two answers (a fraction of large ones)."""
MOVED = 1e-3
"""How far the confidence of the same model on the same image may move."""


class Watcher:
    """What a front end may do during a run; this one does nothing."""

    def say(self, text: str) -> None:
        """Something worth a line: what is being checked, trained or skipped."""

    def expect(self, *, shard: int, workers: int) -> None:
        """How many seeds are searched together, and in how many processes."""

    def begin(self, record: dict[str, Any], usable: int) -> None:
        """The folder exists and the search begins from so many seeds."""

    def pulse(self, counts: Counts) -> None:
        """Steps were made; the counts are those of the shards being searched."""

    def shard(self, progress: Progress) -> None:
        """Where the whole run stands: told once before the first shard (a resumed run has some),
        then after every one.
        """

    def stopped(self) -> bool:
        """Whether to stop after the current shard."""
        return False


Opened = tuple[Campaign, Store, pa.Table, dict[str, Any]]
"""A campaign with its run folder, the table of its seeds and its record."""


def start(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Check the subject, select the seeds, run the campaign into a new folder `out`.

    Args:
        plan: What to search, and how.
        out: A folder that does not exist yet or is empty.
        watcher: Told how the run goes.
    """
    watcher = watcher or Watcher()
    return _searched(plan, _created(plan, out, watcher), watcher)


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with the shards that `out` does not have yet. The model and the data must be the ones
    it began with.

    What is damaged is said, set aside, and made again.

    Args:
        plan: As for `start`.
        out: The run folder.
        watcher: Told how the run goes.
    """
    watcher = watcher or Watcher()
    return _searched(plan, _reopened(plan, out, watcher), watcher)


def _searched(plan: Plan, folder: AbstractContextManager[Opened], watcher: Watcher) -> Run:
    """Search what is missing in a folder that is open, and count what is in it."""
    with folder as (campaign, store, rows, record), logged(store.folder):
        todo, budget = _tasks(plan, campaign, rows)
        watcher.expect(shard=plan.shard, workers=plan.workers)
        watcher.begin(record, len(todo.rows))
        book = Logbook(store, record, len(todo), watcher, plan.metrics)
        book.open()
        limit = seconds(budget.time)
        try:
            execute(
                plan.source,
                todo,
                store,
                campaign=campaign,
                rounds=plan.rounds,
                workers=plan.workers,
                devices=plan.devices,
                cluster=plan.cluster,
                findings=budget.findings,
                deadline=None if limit is None else monotonic() + limit - book.before,
                watch=book.shard,
                pulse=watcher.pulse,
                stopped=watcher.stopped,
            )
        except Exception:
            diary.exception("the search ended early")
            raise
        finally:
            book.close()
    return Run(store.folder)


def reopen(out: Path) -> Mended:
    """Put the papers of a run folder right before they are read: its record,
    and in words what was damaged.
    """
    Store.open(out)
    with locked(out):
        return mend_papers(out)


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
    if not steady(campaign.subject.device):
        watcher.say(f"computing on {campaign.subject.device}, in tiles of {campaign.tile} rows")
    for note in health.notes:
        watcher.say(note)
    todo, budget = _tasks(plan, campaign, rows)
    record = _first_record(campaign, plan.images, budget, health, plan.about)
    record |= {"shards": len(todo), "identity": plan.identity(campaign).to_json()}
    record |= {"answers": server_answers(campaign, plan.images)}
    with locked(out):
        store = Store.create(out, record, plan.config, _with_images(rows, plan.images))
        yield campaign, store, rows, record


@contextmanager
def _reopened(plan: Plan, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """A run folder as it was left, put right where it is damaged."""
    store = Store.open(out)
    with locked(out):
        record, notes = mend_papers(out)
        campaign = plan.campaign or plan.source()
        then = Identity.from_json(record.get("identity"))
        if then is None:
            raise Problem(f"{out} does not say which ingredients it began with.", fix=ANOTHER)
        require_same(then, plan.identity(campaign), fix=ANOTHER)
        with campaign.arithmetic():
            rows, more = stored_rows(store, campaign, plan.images)
            _same_servers(record, campaign, plan.images)
            if not more:
                said = pa.concat_tables(store.seed_groups(["predicted", "confidence"]))
                _same_answers(said, campaign, plan.images)
        damaged = mend_shards(store, shards=len(_tasks(plan, campaign, rows)[0]))
        again = [f"shard {n} was damaged; it is set aside and searched again" for n in damaged]
        for note in (*notes, *more, *again):
            watcher.say(note)
        yield campaign, store, rows, record


def server_answers(campaign: Campaign, images: ImageSet) -> dict[str, list[float]]:
    """How far the first class leads on some seeds, for every model that is asked over a network.

    Nothing else tells such a model from another one behind the same address.
    """
    some = images.take(torch.arange(min(len(images), SERVED))).images()
    said = {}
    for role, model in _roles(campaign).items():
        if _is_server(model):
            top = answers(model, some, campaign.batch).topk(2, dim=1).values
            said[role] = [round(lead, 4) for lead in (top[:, 0] - top[:, 1]).tolist()]
    return said


def _is_server(model: Any) -> bool:
    while hasattr(model, "model"):
        model = model.model
    return hasattr(model, "url")


def _same_servers(record: Mapping[str, Any], campaign: Campaign, images: ImageSet) -> None:
    """Refuse a server that leads by other margins than when the run began."""
    then = record.get("answers") or {}
    now = server_answers(campaign, images) if then else {}
    for role, leads in then.items():
        pairs = zip(leads, now.get(role, ()))
        far = sum(_apart(a, b) for a, b in pairs)
        if far or role not in now:
            raise Problem(
                f"the server of the {role} answers {far} of {len(leads)} seeds differently"
                " from when this run began.",
                "Findings of two different campaigns would be mixed.",
                fix=ANOTHER,
            )


def _apart(then: float | None, now: float) -> bool:
    """Whether two leads are of two models; None: the answer was no number."""
    if then is None:
        return math.isfinite(now)
    return not abs(then - now) <= LEAD * max(1.0, abs(then) / 10)


def _same_answers(rows: pa.Table, campaign: Campaign, images: ImageSet) -> None:
    """Ask the subject again about seeds whose answers are stored; these queries are counted
    nowhere.

    Whatever was changed without a trace in any digest shows here.
    """
    count = min(len(images), ASKED)
    chosen = torch.linspace(0, len(images) - 1, count).round().long()
    kept = rows.take(pa.array(chosen.tolist()))
    now = answers(campaign.subject, images.take(chosen).images(), campaign.batch).softmax(1)
    then = torch.tensor(kept["confidence"].to_pylist())
    moved = ((now.amax(1) - then).abs() > MOVED) & then.isfinite()
    other = (now.argmax(1) != torch.tensor(kept["predicted"].to_pylist())) & then.isfinite()
    different = int((moved | other).sum())
    if different:
        raise Problem(
            f"the model answers {different} of {count} seeds differently from when this run began.",
            "Findings of two different campaigns would be mixed.",
            fix=ANOTHER,
        )


def _tasks(plan: Plan, campaign: Campaign, rows: pa.Table) -> tuple[Tasks, Budget]:
    """The shards of the usable seeds, and the budget they share;
    what is wrong with either is said before any folder is made.
    """
    chosen = usable(rows)
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
