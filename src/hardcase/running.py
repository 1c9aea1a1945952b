"""A campaign from its first check to its last file: select seeds, search, count, and go on after a stop."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign import Campaign, Counts, limits, overlay, seconds
from hardcase.distribute import Progress, Source, Task, execute, tasks
from hardcase.errors import NO_SEEDS, Problem
from hardcase.health import Health, answers, check
from hardcase.results import Run
from hardcase.store import SCHEMA, Store, seeds_table
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
    _tasks(plan, campaign, status, logits)
    record = _record(plan, campaign, health)
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
    log = _Log(store, record, todo, watcher)
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


class _Log:
    """Keeps status.json, history.csv and run.json true while shards come in."""

    def __init__(self, store: Store, record: dict[str, Any], todo: Sequence[Task], watcher: Watcher) -> None:
        self.store, self.record, self.todo, self.watcher = store, record, todo, watcher
        self.start, self.before = monotonic(), float(record["elapsed"])
        self.rows = _history(store)
        self.base = _stored(store)

    def shard(self, progress: Progress) -> None:
        total = self.base + progress
        row = [round(self._elapsed(), 3), total.queries, total.gradients, total.seeds, total.failing, total.findings]
        self.rows.append([str(value) for value in row])
        self.store.write("history.csv", _csv(self.rows))
        self.write("searching", progress)
        self.watcher.shard(total)

    def write(self, phase: str, progress: Progress) -> None:
        total, elapsed = self.base + progress, self._elapsed()
        spent = monotonic() - self.start
        left = progress.shards - total.done
        eta = left * spent / progress.done if progress.done else None
        status = {
            "phase": phase, "elapsed": round(elapsed, 3), "shards": progress.shards, "shards_done": total.done,
            "queries": total.queries, "gradients": total.gradients, "failing": total.failing, "findings": total.findings,
            "speed": round(progress.queries / spent, 1) if spent > 0 else 0, "eta": eta and round(eta, 1),
        }  # fmt: skip
        self.store.write("status.json", json.dumps(status, indent=2).encode())

    def close(self) -> None:
        """Count everything that is stored and say so in run.json; also after an error or an interrupt."""
        self.store.settle()
        run = Run(self.store.folder)
        complete = self.store.done() == {task.number for task in self.todo}
        spent = {name: sum(run.seeds[name].to_pylist()) for name in ("queries", "gradients", "peer_queries")}
        finished = datetime.now(UTC).isoformat(timespec="seconds") if complete else None
        self.store.write_record(
            {**self.record, "complete": complete, "finished": finished, "elapsed": round(self._elapsed(), 3),
             "totals": spent, **run.counts()}
        )  # fmt: skip
        self.write("done" if complete else "stopped", Progress.none(len(self.todo)))

    def _elapsed(self) -> float:
        return self.before + monotonic() - self.start


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


def _record(plan: Plan, campaign: Campaign, health: Health) -> dict[str, Any]:
    method, subject = campaign.method, campaign.subject
    card = method.details.get("generator")
    budget = overlay(plan.budget, method.budget)
    return {
        "schema": SCHEMA,
        "hardcase": metadata.version("hardcase"),
        "versions": _versions(),
        "argv": sys.argv,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": None,
        "complete": False,
        "elapsed": 0.0,
        "method": method.name,
        "model": subject.name,
        "data": plan.images.name,
        "split": plan.images.split,
        "classes": list(plan.images.classes),
        "image": list(plan.images.x.shape[1:]),
        "seed": campaign.seed,
        "seeds": len(plan.images),
        "budget": {name: value for name, value in asdict(budget).items() if value is not None},
        "device": str(subject.device),
        "threads": torch.get_num_threads(),
        "bitwise": health.bitwise and strict_arithmetic(),
        "deterministic": budget.time is None,
        "hashes": {
            "subject": subject.hash,
            "peers": [peer.hash for peer in campaign.peers],
            "generator": card["weights"] if card else None,
            "guides": {},
            "data": plan.images.hash,
        },
        "generator": card,
        "accuracy": {"value": health.accuracy, "images": health.images},
        "totals": {"queries": 0, "gradients": 0, "peer_queries": 0},
        "notes": list(health.notes),
        "citations": [method.details["cite"]] if "cite" in method.details else [],
        **plan.about,
    }


def strict_arithmetic() -> bool:
    """Whether the CPU library was told, before it computed anything, to give the same bits in every batch."""
    return os.environ.get("MKL_CBWR", "").endswith("STRICT")


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "numpy", "pyarrow")},
    }


def _stored(store: Store) -> Progress:
    """What earlier processes have already brought into this folder."""
    run = Run(store.folder)
    reached = ("done", "out of time", "skipped: reconstruction")
    done = [row for row in run.seeds.drop_columns(["image"]).to_pylist() if row["status"] in reached]
    found = run.findings.select(["seed", "kind", "expected", "predicted"]).to_pylist()
    return Progress(
        done=len(store.done()),
        shards=0,
        seeds=len(done),
        queries=sum(row["queries"] for row in done),
        gradients=sum(row["gradients"] for row in done),
        failing=len({row["seed"] for row in found if row["kind"] == "label"}),
        findings=len(found),
        confusions=tuple((row["expected"], row["predicted"]) for row in found),
    )


_COLUMNS = ["seconds", "queries", "gradients", "seeds_done", "failing_seeds", "findings"]


def _history(store: Store) -> list[list[str]]:
    path = store.folder / "history.csv"
    return list(csv.reader(io.StringIO(path.read_text())))[1:] if path.is_file() else []


def _csv(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    return text.getvalue().encode()


__all__ = ["Plan", "Watcher", "resume", "start", "strict_arithmetic"]
