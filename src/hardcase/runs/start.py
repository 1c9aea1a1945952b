"""A campaign from its first check to its last file: select seeds, search, count,
and go on after a stop.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.campaign.record import Campaign, Counts, limits, overlay, seconds
from hardcase.environment import VERSION
from hardcase.errors import NO_SEEDS, Problem
from hardcase.models.health import Health, answers, check
from hardcase.models.pretrained.roles import lineage_of
from hardcase.models.witnesses import witness_record
from hardcase.registry import citation_key
from hardcase.runs.folder import SCHEMA, Store, locked, refuse_used
from hardcase.runs.progress import Logbook, diary, logged
from hardcase.runs.ray import check_place
from hardcase.runs.repair import Mended, mend_papers, mend_shards, seeds_are_whole, set_aside
from hardcase.runs.results import Run
from hardcase.runs.tables import SEEDS, SPENDING, read, seeds_table
from hardcase.runs.workers import Progress, Source, Tasks, execute
from hardcase.types import Budget, Images

# What run.json says of a campaign before it starts.


def first_record(
    campaign: Campaign, images: Images, budget: Budget, health: Health, about: Mapping[str, Any]
) -> dict[str, Any]:
    method = campaign.method
    subject = campaign.subject
    card = method.details.get("generator")
    return {
        "schema": SCHEMA,
        "hardcase": VERSION,
        "versions": _versions(),
        "argv": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "complete": False,
        "elapsed": 0.0,
        "method": method.name,
        "model": subject.name,
        "data": images.name,
        "split": images.split,
        "classes": list(images.classes),
        "image": list(images.x.shape[1:]),
        "seed": campaign.seed,
        "seeds": len(images),
        "budget": {name: value for name, value in asdict(budget).items() if value is not None},
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
        "bitwise": health.bitwise and _repeatable(campaign),
        "tile": campaign.tile,
        "precision": campaign.precision,
        "deterministic": budget.time is None,
        "hashes": {
            "subject": subject.hash,
            "peers": [peer.hash for peer in campaign.peers],
            "witnesses": [witness.hash for witness in campaign.witnesses],
            "generator": card["weights"] if card else None,
            "guides": {},
            "data": images.hash,
        },
        "witnesses": witness_record(subject, campaign.witnesses, campaign.margin, None)
        if campaign.witnesses
        else None,
        **_lineages(campaign),
        "space": method.details.get("space"),
        "generator": card,
        "places": method.details.get("places"),
        "accuracy": {"value": health.accuracy, "images": health.images},
        "totals": dict.fromkeys(SPENDING, 0),
        "notes": list(health.notes),
        "citations": list(map(citation_key, method.details.get("cite", ()))),
        **about,
    }


def _lineages(campaign: Campaign) -> dict[str, Any]:
    """Where the networks of the search come from, if others have trained any of them."""
    known = {
        "subject": lineage_of(campaign.subject.name),
        "peers": [lineage_of(peer.name) for peer in campaign.peers],
        "witnesses": [lineage_of(witness.name) for witness in campaign.witnesses],
    }
    named = known["subject"] or any([*known["peers"], *known["witnesses"]])
    return {"lineages": known} if named else {}


def _repeatable(campaign: Campaign) -> bool:
    """Whether this arithmetic gives the same bits in every batch: told to on a CPU,
    tested on a device.
    """
    if campaign.subject.device.type == "cpu":
        return strict_arithmetic()
    return campaign.tile is not None


def strict_arithmetic() -> bool:
    """Whether the CPU library was told, before it computed anything,
    to give the same bits in every batch.
    """
    return os.environ.get("MKL_CBWR", "").endswith("STRICT")


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "pyarrow")},
    }


# Which seeds a run starts from: asked of the subject once, then read from the run folder.

UNUSABLE = ("skipped: misclassified", "skipped: non-finite", "skipped: target")
"""Seeds that are not searched from; those of the target's own class have no other class to reach.
"""


def seed_rows(images: Images, logits: Float[Tensor, "n k"], target: int | None = None) -> pa.Table:
    """The table of seeds at the beginning of a run: only correctly classified ones are searched
    from, and none of the class that the search must reach.
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
    return seeds_table(columns, images.x)


def usable(rows: pa.Table) -> Int[Tensor, " u"]:
    """The positions of the seeds that are searched from."""
    waiting = [status not in UNUSABLE for status in rows["status"].to_pylist()]
    return torch.tensor(waiting, dtype=torch.bool).nonzero().squeeze(1)


def stored_rows(store: Store, campaign: Campaign, images: Images) -> tuple[pa.Table, list[str]]:
    """The seeds' names and states as they are stored; if they are damaged,
    the subject is asked again. Also notes.
    """
    path = store.folder / "seeds.parquet"
    try:
        rows = read(path, SEEDS, ["id", "status"] if seeds_are_whole(store) else None)
        if rows["id"].to_pylist() == list(images.id):  # making an array of them would import pandas
            return rows, []
    except Problem:
        pass
    place = set_aside(path)
    rows = seed_rows(images, answers(campaign.subject, images, campaign.batch), campaign.target)
    store.write_seeds(rows)
    why = f"was damaged and is set aside as {place.name}" if place else "was missing"
    return rows, [f"seeds.parquet {why}; the subject was asked again"]


def _status(images: Images, logits: Float[Tensor, "n k"], target: int | None) -> list[str]:
    finite = logits.isfinite().all(1)
    right = logits.argmax(1) == images.y
    there = images.y == (-1 if target is None else target)
    words = ("waiting", "skipped: target", "skipped: misclassified", "skipped: non-finite")
    word = torch.where(there, 1, 0)
    word = torch.where(right, word, 2)
    word = torch.where(finite, word, 3)
    return [words[i] for i in word.tolist()]


# A campaign from its first check to its last file: select seeds, search, count, and go on after a
# stop.


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
        cluster: A Ray cluster that searches instead.
        metrics: A file for a monitoring system.
        allow_low_accuracy: Go on with a subject that is hardly better than chance.
        config: The text that re-creates the plan.
        about: More entries of the record.
    """

    source: Source
    images: Images
    campaign: Campaign | None = None
    budget: Budget = field(default_factory=Budget)
    shard: int = 32
    rounds: int = 8
    workers: int = 1
    cluster: str | None = None
    metrics: Path | None = None
    allow_low_accuracy: bool = False
    config: str = ""
    about: dict[str, Any] = field(default_factory=dict)


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


def start(plan: Plan, out: Path, watcher: Watcher | None = None, *, again: bool = False) -> Run:
    """Check the subject, select the seeds, run the campaign into a new folder `out`.

    Args:
        plan: What to search, and how.
        out: A folder that does not exist yet or is empty.
        watcher: Told how the run goes.
        again: Go on with the campaign that `out` holds; `resume` says how.
    """
    watcher = watcher or Watcher()
    opened = _reopened if again else _created
    with opened(plan, out, watcher) as (campaign, store, rows, record):
        todo, budget = _tasks(plan, campaign, rows)
        limit = seconds(budget.time)
        with logged(store.folder):
            watcher.expect(shard=plan.shard, workers=plan.workers)
            watcher.begin(record, len(todo.rows))
            missing = True
            while missing:  # shards that turn out to be damaged at the end are missing again
                book = Logbook(store, record, len(todo), watcher, plan.metrics)
                book.open()
                try:
                    execute(
                        plan.source,
                        todo,
                        store,
                        campaign=campaign,
                        rounds=plan.rounds,
                        workers=plan.workers,
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
                    damaged = book.close()
                    for number in damaged:
                        book.say(_again(number))
                missing = bool(damaged) and not watcher.stopped()
        return Run(store.folder)


def reopen(out: Path) -> Mended:
    """Put the papers of a run folder right before they are read: its record,
    and in words what was damaged.
    """
    Store.open(out)
    with locked(out):
        return mend_papers(out)


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with the shards that `out` does not have yet. The model and the data must be the ones
    it began with.

    What is damaged is said, set aside, and made again.
    """
    return start(plan, out, watcher, again=True)


Opened = tuple[Campaign, Store, pa.Table, dict[str, Any]]
"""A campaign with its run folder, the table of its seeds and its record."""


@contextmanager
def _created(plan: Plan, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """A new run folder, for a campaign that passed its checks."""
    refuse_used(out)
    if plan.cluster is not None:
        check_place(plan.cluster)
    campaign = plan.campaign or plan.source()
    with campaign.arithmetic():
        health = check(campaign.subject, plan.images, allow_low_accuracy=plan.allow_low_accuracy)
        logits = answers(campaign.subject, plan.images, campaign.batch)
    for note in health.notes:
        watcher.say(note)
    rows = seed_rows(plan.images, logits, campaign.target)
    _, budget = _tasks(plan, campaign, rows)
    record = first_record(campaign, plan.images, budget, health, plan.about)
    with locked(out):
        yield campaign, Store.create(out, record, plan.config, rows), rows, record


@contextmanager
def _reopened(plan: Plan, out: Path, watcher: Watcher) -> Iterator[Opened]:
    """A run folder as it was left, put right where it is damaged."""
    store = Store.open(out)
    with locked(out):
        record, notes = mend_papers(out)
        campaign = plan.campaign or plan.source()
        _same_campaign(record, campaign, plan.images)
        rows, more = stored_rows(store, campaign, plan.images)
        guided = bool(campaign.method.guides or campaign.criteria)
        damaged = mend_shards(store, lambda name: guided and name.endswith(".safetensors"))
        for note in (*notes, *more, *map(_again, damaged)):
            watcher.say(note)
        yield campaign, store, rows, record


def _same_campaign(record: dict[str, Any], campaign: Campaign, images: Images) -> None:
    present = {
        "subject": campaign.subject.hash,
        "witnesses": [witness.hash for witness in campaign.witnesses],
        "data": images.hash,
    }
    for what, now in present.items():
        if record["hashes"].get(what, []) != now:
            raise Problem(
                f"the {what} is not the one this run began with (hash {now}, then"
                f" {record['hashes'].get(what)}).",
                "Findings of two different campaigns would be mixed.",
                fix="a new --out",
            )


def _again(number: int) -> str:
    return f"shard {number} was damaged; it is set aside and searched again"


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
