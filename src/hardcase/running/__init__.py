"""A campaign from its first check to its last file: select seeds, search, count, and go on after a stop."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign import Campaign, Counts, limits, overlay, seconds
from hardcase.distribute import Progress, Source, Task, execute, tasks
from hardcase.errors import NO_SEEDS, Problem
from hardcase.health import answers, check
from hardcase.results import Run
from hardcase.running.logbook import Logbook
from hardcase.running.record import first_record, strict_arithmetic
from hardcase.store import Store, seeds_table
from hardcase.types import Budget, Images


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a run needs. `source` builds the campaign, also in another process; `config` re-creates the plan."""

    source: Source
    images: Images
    budget: Budget = field(default_factory=Budget)
    shard: int = 32
    rounds: int = 8
    workers: int = 1
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
        """A step was made; the counts are those of the shard being searched."""

    def shard(self, progress: Progress) -> None:
        """Where the whole run stands: told once before the first shard (a resumed run has some), then after every one."""

    def stopped(self) -> bool:
        """Whether to stop after the current shard."""
        return False


def start(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Check the subject, select the seeds, run the campaign into a new folder `out`."""
    watcher = watcher or Watcher()
    campaign = plan.source()
    health = check(campaign.subject, plan.images, allow_low_accuracy=plan.allow_low_accuracy)
    for note in health.notes:
        watcher.say(note)
    logits = answers(campaign.subject, plan.images, campaign.batch)
    status = _select(plan.images, logits)
    _, budget = _tasks(plan, campaign, status, logits)
    record = first_record(campaign, plan.images, budget, health, plan.about)
    store = Store.create(out, record, plan.config, _seed_rows(plan.images, logits, status))
    return _go(plan, campaign, store, status, logits, watcher)


def resume(plan: Plan, out: Path, watcher: Watcher | None = None) -> Run:
    """Go on with the shards that `out` does not have yet. The model and the data must be the ones it began with."""
    store, campaign, watcher = Store.open(out), plan.source(), watcher or Watcher()
    record = store.record()
    for what, now in {"subject": campaign.subject.hash, "data": plan.images.hash}.items():
        if record["hashes"][what] != now:
            raise Problem(
                f"the {what} is not the one this run began with (hash {now}, then {record['hashes'][what]}).",
                "Findings of two different campaigns would be mixed.", fix="a new --out",
            )  # fmt: skip
    for number in store.mend():
        watcher.say(f"shard {number} was damaged; it is set aside and searched again")
    logits = answers(campaign.subject, plan.images, campaign.batch)
    return _go(plan, campaign, store, _select(plan.images, logits), logits, watcher)


def _go(
    plan: Plan, campaign: Campaign, store: Store, status: list[str], logits: Float[Tensor, "n k"], watcher: Watcher
) -> Run:
    todo, budget = _tasks(plan, campaign, status, logits)
    limit = seconds(budget.time)
    record = store.record()
    watcher.begin(record, sum(len(task.images) for task in todo))
    log = Logbook(store, record, len(todo), watcher.shard)
    log.write("searching", Progress.none(len(todo)))
    watcher.shard(log.base + Progress.none(len(todo)))
    try:
        execute(
            plan.source, todo, store, campaign=campaign, rounds=plan.rounds, workers=plan.workers, findings=budget.findings,
            deadline=None if limit is None else monotonic() + limit - record["elapsed"],
            watch=log.shard, pulse=watcher.pulse, stopped=watcher.stopped,
        )  # fmt: skip
    finally:
        log.close()
    return Run(store.folder)


def _tasks(
    plan: Plan, campaign: Campaign, status: list[str], logits: Float[Tensor, "n k"]
) -> tuple[list[Task], Budget]:
    """The shards of the usable seeds, and the budget they share; what is wrong with either is said before any folder is made."""
    usable = torch.tensor([i for i, word in enumerate(status) if word == "waiting"], dtype=torch.int64)
    if not len(usable):
        raise Problem(
            f"none of the {len(plan.images)} seeds is classified rightly, so there is nothing to search from.",
            fix="more --seeds, another --split, or a better model", code=NO_SEEDS,
        )  # fmt: skip
    budget = overlay(plan.budget, campaign.method.budget)
    seconds(budget.time)
    sure = logits[usable].softmax(1).max(1)
    images, each = plan.images.take(usable), limits(budget, len(usable))
    return tasks(images, sure.indices.tolist(), sure.values.tolist(), each, shard=plan.shard), budget


def _select(images: Images, logits: Float[Tensor, "n k"]) -> list[str]:
    """What is to become of each seed: only rightly classified ones are searched from."""
    finite = logits.isfinite().all(1).tolist()
    right = (logits.argmax(1) == images.y).tolist()
    return [
        "skipped: non-finite" if not good else "waiting" if hit else "skipped: misclassified"
        for good, hit in zip(finite, right)
    ]


def _seed_rows(images: Images, logits: Float[Tensor, "n k"], status: list[str]) -> Any:
    probabilities = logits.softmax(1)
    zeros = [0] * len(images)
    columns = {
        "id": list(images.id),
        "label": images.y.tolist(),
        "predicted": probabilities.argmax(1).tolist(),
        "confidence": probabilities.amax(1).tolist(),
        "status": status,
        **dict.fromkeys(("looked", "failing", "queries", "gradients", "peer_queries"), zeros),
    }
    return seeds_table(columns, images.x)


__all__ = ["Plan", "Watcher", "resume", "start", "strict_arithmetic"]
