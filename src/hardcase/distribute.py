"""From a campaign to a run folder: shards and rounds, in this process or in several. The findings are the same either way."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, fields, replace
from multiprocessing import get_context
from time import monotonic

import torch

from hardcase.campaign import Campaign, Counts, Limits, Shard, run_shard
from hardcase.errors import INTERNAL, Problem
from hardcase.store import Packed, Store, findings_table, pack_deltas, seeds_table, to_parquet
from hardcase.tensors import chunks
from hardcase.types import Guide, Images


@dataclass(frozen=True, slots=True)
class Task:
    """One shard's work: which seeds, what they may cost, and what the guides knew when its round began."""

    number: int
    first: int
    images: Images
    predicted: tuple[int, ...]
    confidence: tuple[float, ...]
    limits: Limits
    guides: tuple[Guide, ...] = ()
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What happened since the start of this process, told after every shard."""

    done: int
    shards: int
    seeds: int
    queries: int
    gradients: int
    failing: int
    findings: int
    confusions: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def none(shards: int) -> Progress:
        return Progress(0, shards, 0, 0, 0, 0, 0)

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Progress)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished shard on its way to the store."""

    number: int
    packed: Packed
    progress: Progress


Watch = Callable[[Progress], None]
Pulse = Callable[[Counts], None]
Source = Callable[[], Campaign]


def tasks(
    images: Images, predicted: Sequence[int], confidence: Sequence[float], limits: Limits, *, shard: int
) -> list[Task]:
    """Cut the usable seeds into shards of `shard` seeds."""
    parts = list(chunks(len(images), shard))
    return [
        Task(
            i,
            p.start,
            images.take(torch.arange(p.start, p.stop)),
            tuple(predicted[p]),
            tuple(confidence[p]),
            limits.take(p),
        )
        for i, p in enumerate(parts)
    ]


def execute(
    source: Source,
    todo: Sequence[Task],
    store: Store,
    *,
    campaign: Campaign,
    rounds: int = 8,
    workers: int = 1,
    findings: int | None = None,
    deadline: float | None = None,
    watch: Watch = lambda progress: None,
    pulse: Pulse = lambda counts: None,
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Run the tasks that the store does not have yet, round by round, and store each shard when it is finished.

    `campaign` is what `source` builds; worker processes build their own from `source`.

    All shards of a round start from the same guides; their deltas are merged in shard order when it ends. `findings`
    stops at the end of a round, `deadline` (monotonic seconds) after the current step, `stopped` after the current shard.
    `watch` is told of every finished shard, `pulse` of every step made in this process.
    """
    guides = (*campaign.method.guides, *campaign.criteria)
    total = Progress.none(len(todo))
    with _Runner(source, campaign, workers, pulse) as run:
        for part in chunks(len(todo), rounds):
            done = store.done()
            fresh = [replace(t, guides=guides, deadline=deadline) for t in todo[part] if t.number not in done]
            for outcome in run(fresh, stopped):
                store.put(outcome.number, outcome.packed)
                total = total + outcome.progress
                watch(total)
            if not {t.number for t in todo[part]} <= store.done():
                return
            for guide in guides:
                guide.merge([store.deltas(t.number).get(guide.name, {}) for t in todo[part]])
            if findings is not None and len(store.findings()) >= findings:
                return


def run_task(campaign: Campaign, task: Task, pulse: Pulse = lambda counts: None) -> Outcome:
    """Search one shard and pack what it found."""
    late = math.inf if task.deadline is None else task.deadline

    def stop(counts: Counts) -> bool:
        pulse(counts)
        return monotonic() >= late

    shard = run_shard(
        campaign,
        task.images,
        task.limits,
        number=task.number,
        first=task.first,
        guides=task.guides,
        stop=stop,
    )
    return Outcome(task.number, _pack(campaign, task, shard), _progress(shard))


def _pack(campaign: Campaign, task: Task, shard: Shard) -> Packed:
    own = shard.findings.seed.cpu() - task.first
    ids = [task.images.id[i] for i in own.tolist()]
    table = findings_table(
        shard.findings, task.images.x[own], ids, method=campaign.method.name, oracle=campaign.method.oracle.kind
    )
    counts = shard.counts
    late = ["out of time" if late else "done" for late in shard.unfinished.tolist()]
    columns = {
        "id": list(task.images.id),
        "label": task.images.y.tolist(),
        "predicted": list(task.predicted),
        "confidence": list(task.confidence),
        "status": ["skipped: reconstruction" if lost else word for lost, word in zip(counts.lost.tolist(), late)],
        "looked": counts.queries.tolist(),
        **{name: getattr(counts, name).tolist() for name in ("failing", "queries", "gradients", "peer_queries")},
    }
    return Packed(to_parquet(table), to_parquet(seeds_table(columns, task.images.x)), pack_deltas(shard.deltas))


def _progress(shard: Shard) -> Progress:
    found = shard.findings
    pairs = tuple(zip(found.expected.tolist(), found.predicted.tolist()))
    failing = len(set(found.seed[found.kind == 0].tolist()))
    queries, gradients = int(shard.counts.queries.sum()), int(shard.counts.gradients.sum())
    return Progress(1, 0, len(shard.counts.queries), queries, gradients, failing, len(found), pairs)


class _Runner:
    """Runs tasks here or in worker processes, in the order they finish."""

    def __init__(self, source: Source, campaign: Campaign, workers: int, pulse: Pulse) -> None:
        self.source, self.campaign, self.workers, self.pulse = source, campaign, workers, pulse
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Callable[[list[Task], Callable[[], bool]], Iterator[Outcome]]:
        if self.workers <= 1:
            return self._here
        self.pool = ProcessPoolExecutor(self.workers, get_context("spawn"), _set_up, (self.source, self.workers))
        return self._there

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self.pool is None:
            return
        if kind is not None and not issubclass(kind, Exception):  # an interrupt: unfinished shards are given up at once
            for process in list((self.pool._processes or {}).values()):
                process.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)

    def _here(self, todo: list[Task], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        for task in todo:
            if stopped():
                return
            yield run_task(self.campaign, task, self.pulse)

    def _there(self, todo: list[Task], stopped: Callable[[], bool]) -> Iterator[Outcome]:
        assert self.pool is not None
        futures = [self.pool.submit(_work, task) for task in todo]
        for future in as_completed(futures):
            if stopped():
                for waiting in futures:
                    waiting.cancel()
            if not future.cancelled():
                yield _result(future)


def _result(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BrokenProcessPool as error:
        raise Problem(
            "a worker process ended before its shard was finished.",
            "Most often the memory ran out. The shards that were finished are stored.",
            fix="hardcase resume RUN, with fewer --workers or a smaller --batch-size in its config.toml",
            code=INTERNAL,
        ) from error


_campaign: Campaign | None = None


def _set_up(source: Source, workers: int) -> None:
    """In a new worker process: the same arithmetic as everywhere, a fair share of the cores, the campaign built once."""
    global _campaign
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the one that owns the folder decides
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    _campaign = source()


def _work(task: Task) -> Outcome:
    assert _campaign is not None
    return run_task(_campaign, task)


__all__ = ["Outcome", "Progress", "Task", "execute", "run_task", "tasks"]
