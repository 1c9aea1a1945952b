"""From a campaign to a run folder: shards and rounds, here, in several processes or on a cluster. The findings are the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase import cache
from hardcase.campaign import Campaign, Limits
from hardcase.distribute.driving import Hands, drive
from hardcase.distribute.processes import Processes
from hardcase.distribute.record import Outcome, Progress, Pulse, Source, Stopped, Task, Watch
from hardcase.distribute.working import run_task
from hardcase.store import Store
from hardcase.tensors import chunks
from hardcase.types import Guide, Images

Round = Callable[[Iterable[Task], tuple[Guide, ...]], Iterator[Outcome]]
"""Searches the tasks of a round, all from the same guides."""


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """The seeds at `rows` of `images`, cut into shards of `shard` seeds; a task is made when it is asked for."""

    images: Images
    rows: Int[Tensor, " u"]
    limits: Limits
    shard: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.shard)

    def __getitem__(self, number: Any) -> Any:
        part = slice(number * self.shard, min((number + 1) * self.shard, len(self.rows)))
        if not 0 <= part.start < len(self.rows):
            raise IndexError(number)
        return Task(number, part.start, self.images.take(self.rows[part]), self.limits.take(part))


def tasks(images: Images, limits: Limits, *, shard: int) -> Tasks:
    """Cut all of `images` into shards of `shard` seeds."""
    return Tasks(images, torch.arange(len(images)), limits, shard)


def execute(
    source: Source,
    todo: Sequence[Task],
    store: Store,
    *,
    campaign: Campaign,
    rounds: int = 8,
    workers: int = 1,
    cluster: str | None = None,
    findings: int | None = None,
    deadline: float | None = None,
    watch: Watch = lambda progress: None,
    pulse: Pulse = lambda counts: None,
    stopped: Stopped = lambda: False,
) -> tuple[Guide, ...]:
    """Run the tasks (the one at place `i` is number `i`) that the store does not have yet, round by round, and store each shard when it is finished.

    `campaign` is what `source` builds; worker processes build their own from `source`, a cluster is sent `campaign`.

    All shards of a round start from the same guides; their deltas are merged in shard order when it ends. `findings`
    stops at the end of a round, `deadline` (monotonic seconds) after the current step, `stopped` after the current shard.
    `watch` is told of every finished shard, `pulse` of the counts of those under way. Where nothing passes from one round
    to the next (no guides, no findings limit), all shards are one round, and nobody waits for the slowest of eight.
    Returns copies of the campaign's guides and criteria with all finished rounds merged.
    """
    guides = copy.deepcopy((*campaign.method.guides, *campaign.criteria))
    total, size = Progress.none(len(todo)), rounds if guides or findings is not None else max(len(todo), 1)
    done = store.done()
    kept = sum(int(entry.summary.get("findings", 0)) for n, entry in store.ledger.read().items() if n in done)
    with _runner(source, campaign, workers, cluster, pulse, stopped) as run:
        for part in chunks(len(todo), size):
            numbers = range(part.start, part.stop)
            missing = [number for number in numbers if number not in done]
            for outcome in run((replace(todo[number], deadline=deadline) for number in missing), guides):
                store.put(outcome.number, outcome.packed, outcome.summary)
                done.add(outcome.number)
                total, kept = total + Progress.of(outcome.summary), kept + int(outcome.summary["findings"])
                watch(total)
            if not done.issuperset(numbers):
                break
            cache.step("merge", store.folder)
            for guide in guides:
                guide.merge([store.deltas(number).get(guide.name, {}) for number in numbers])
            if findings is not None and kept >= findings:
                break
    return guides


def _runner(
    source: Source, campaign: Campaign, workers: int, cluster: str | None, pulse: Pulse, stopped: Stopped
) -> AbstractContextManager[Round]:
    if cluster is not None:
        from hardcase.distribute.cluster import Cluster

        return _with(lambda: Cluster(cluster, campaign), stopped, pulse)
    if workers > 1:
        return _with(lambda: Processes(source, workers), stopped, pulse)
    return _here(campaign, pulse, stopped)


@contextmanager
def _here(campaign: Campaign, pulse: Pulse, stopped: Stopped) -> Iterator[Round]:
    def run(todo: Iterable[Task], guides: tuple[Guide, ...]) -> Iterator[Outcome]:
        for task in todo:
            if stopped():
                return
            yield run_task(campaign, task, guides, pulse)

    yield run


@contextmanager
def _with(make: Callable[[], AbstractContextManager[Hands]], stopped: Stopped, pulse: Pulse) -> Iterator[Round]:
    with make() as hands:

        def run(todo: Iterable[Task], guides: tuple[Guide, ...]) -> Iterator[Outcome]:
            hands.begin(guides)
            return drive(hands, todo, stopped, pulse)

        yield run


__all__ = ["Outcome", "Progress", "Source", "Task", "Tasks", "execute", "run_task", "tasks"]
