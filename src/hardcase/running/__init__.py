"""A campaign from its first check to its last file: select seeds, search, count, and go on after a stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa

from hardcase.campaign import Campaign, Counts, limits, overlay, seconds
from hardcase.distribute import Progress, Source, Tasks, execute
from hardcase.distribute.cluster import check_place
from hardcase.errors import NO_SEEDS, Problem
from hardcase.health import answers, check
from hardcase.results import Run
from hardcase.running.logbook import Logbook
from hardcase.running.logs import diary, logged
from hardcase.running.paths import paint_paths
from hardcase.running.record import first_record, strict_arithmetic
from hardcase.running.selecting import seed_rows, stored_rows, usable
from hardcase.store import Mended, Store, locked, mend_papers, mend_shards, refuse_used
from hardcase.types import Budget, Images


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a run needs. `source` builds the campaign, also in another process; `config` re-creates the plan.

    `workers` processes search side by side, or the `cluster` that is named. `metrics`: a file for a monitoring system.
    """

    source: Source
    images: Images
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

    def begin(self, record: dict[str, Any], usable: int) -> None:
        """The folder exists and the search begins from so many seeds."""

    def pulse(self, counts: Counts) -> None:
        """Steps were made; the counts are those of the shards being searched."""

    def shard(self, progress: Progress) -> None:
        """Where the whole run stands: told once before the first shard (a resumed run has some), then after every one."""

    def stopped(self) -> bool:
        """Whether to stop after the current shard."""
        return False


def start(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Check the subject, select the seeds, run the campaign into a new folder `out`."""
    watcher = watcher or Watcher()
    refuse_used(out)
    if plan.cluster is not None:
        check_place(plan.cluster)
    campaign = plan.source()
    health = check(campaign.subject, plan.images, allow_low_accuracy=plan.allow_low_accuracy)
    for note in health.notes:
        watcher.say(note)
    rows = seed_rows(plan.images, answers(campaign.subject, plan.images, campaign.batch))
    _, budget = _tasks(plan, campaign, rows)
    record = first_record(campaign, plan.images, budget, health, plan.about)
    with locked(out):
        store = Store.create(out, record, plan.config, rows)
        return _go(plan, campaign, store, rows, record, watcher)


def reopen(out: Path) -> Mended:
    """Put the papers of a run folder right before they are read: its record, and in words what was damaged."""
    Store.open(out)
    with locked(out):
        return mend_papers(out)


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with the shards that `out` does not have yet. The model and the data must be the ones it began with.

    What is damaged is said, set aside, and made again.
    """
    watcher, store = watcher or Watcher(), Store.open(out)
    with locked(out):
        record, notes = mend_papers(out)
        campaign = plan.source()
        _same_campaign(record, campaign, plan.images)
        rows, more = stored_rows(store, campaign, plan.images)
        guided = bool(campaign.method.guides or campaign.criteria)
        damaged = mend_shards(store, lambda name: guided and name.endswith(".safetensors"))
        for note in (*notes, *more, *map(_again, damaged)):
            watcher.say(note)
        return _go(plan, campaign, store, rows, record, watcher)


def _same_campaign(record: dict[str, Any], campaign: Campaign, images: Images) -> None:
    for what, now in {"subject": campaign.subject.hash, "data": images.hash}.items():
        if record["hashes"][what] != now:
            raise Problem(
                f"the {what} is not the one this run began with (hash {now}, then {record['hashes'][what]}).",
                "Findings of two different campaigns would be mixed.", fix="a new --out",
            )  # fmt: skip


def _go(plan: Plan, campaign: Campaign, store: Store, rows: pa.Table, record: dict[str, Any], watcher: Watcher) -> Run:
    todo, budget = _tasks(plan, campaign, rows)
    with logged(store.folder):
        watcher.begin(record, len(todo.rows))
        while _round_trip(plan, campaign, store, todo, budget, record, watcher):
            pass
    run = Run(store.folder)
    paint_paths(run, campaign, plan.images)
    return run


def _round_trip(
    plan: Plan, campaign: Campaign, store: Store, todo: Tasks, budget: Budget, record: dict[str, Any], watcher: Watcher
) -> bool:  # fmt: skip
    """Search what is missing and close the books; whether shards turned out to be damaged then and are missing again."""
    book, limit = Logbook(store, record, len(todo), watcher, plan.metrics), seconds(budget.time)
    book.open()
    try:
        execute(
            plan.source, todo, store, campaign=campaign, rounds=plan.rounds, workers=plan.workers, cluster=plan.cluster,
            findings=budget.findings, deadline=None if limit is None else monotonic() + limit - book.before,
            watch=book.shard, pulse=watcher.pulse, stopped=watcher.stopped,
        )  # fmt: skip
    except Exception:
        diary.exception("the search ended early")
        raise
    finally:
        damaged = book.close()
        for number in damaged:
            book.say(_again(number))
    return bool(damaged) and not watcher.stopped()


def _again(number: int) -> str:
    return f"shard {number} was damaged; it is set aside and searched again"


def _tasks(plan: Plan, campaign: Campaign, rows: pa.Table) -> tuple[Tasks, Budget]:
    """The shards of the usable seeds, and the budget they share; what is wrong with either is said before any folder is made."""
    chosen = usable(rows)
    if not len(chosen):
        raise Problem(
            f"none of the {len(plan.images)} seeds is classified rightly, so there is nothing to search from.",
            fix="more --seeds, another --split, or a better model", code=NO_SEEDS,
        )  # fmt: skip
    budget = overlay(plan.budget, campaign.method.budget)
    seconds(budget.time)
    return Tasks(plan.images, chosen, limits(budget, len(chosen)), plan.shard), budget


__all__ = ["Plan", "Watcher", "reopen", "resume", "start", "strict_arithmetic"]
