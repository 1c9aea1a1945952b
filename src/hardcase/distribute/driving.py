"""One loop that keeps workers busy, whatever they are: it submits, collects, runs lost shards again, and stops."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch

from hardcase.campaign import Counts
from hardcase.distribute.record import Outcome, Pulse, Stopped, Task
from hardcase.errors import INTERNAL, Problem
from hardcase.types import Guide

OFTEN = 0.25
"""Seconds between two looks at what the workers do."""
PATIENCE = 3
"""How often in a row, for each worker, a shard may be lost before the run gives up."""


class Lost(Exception):  # noqa: N818 - what happened, not an error of ours
    """The worker of a shard is gone."""


@runtime_checkable
class Hands(Protocol):
    """Where shards are worked on: processes of this machine, or a cluster."""

    @property
    def slots(self) -> int:
        """How many shards are given out at a time."""
        ...

    def begin(self, guides: Sequence[Guide]) -> None:
        """A round begins, and its shards start from these guides."""
        ...

    def submit(self, task: Task) -> Hashable: ...

    def wait(self, handles: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """Those that are finished, waiting for the first of them at most so long."""
        ...

    def result(self, handle: Hashable) -> Outcome:
        """What a finished one brought; raises `Lost` if its worker died."""
        ...

    def pulses(self) -> Mapping[int, Counts]:
        """The latest counts of shards being searched, as far as they are known."""
        ...


def drive(hands: Hands, todo: Iterable[Task], stopped: Stopped, pulse: Pulse) -> Iterator[Outcome]:
    """The outcomes of `todo` in the order they finish. An error ends it when the shards that are under way are home."""
    fresh, lost, running = iter(todo), deque[Task](), dict[Hashable, Task]()
    error: Exception | None = None
    losses = 0
    while True:
        slots = hands.slots if error is None and not stopped() else 0
        while len(running) < slots and (new := lost.popleft() if lost else next(fresh, None)) is not None:
            running[hands.submit(new)] = new
        if not running:
            break
        for handle in hands.wait(list(running), OFTEN):
            task = running.pop(handle)
            try:
                outcome = hands.result(handle)
            except Lost as loss:
                losses += 1
                lost.append(task)
                if losses > PATIENCE * hands.slots:
                    error = _gone(task, loss)
            except Exception as problem:
                error = error or problem
            else:
                losses = 0
                yield outcome
        _tell(hands.pulses(), {task.number for task in running.values()}, pulse)
    if error is not None:
        raise error


def _tell(latest: Mapping[int, Counts], running: set[int], pulse: Pulse) -> None:
    now = [counts for number, counts in latest.items() if number in running]
    if now:
        names = ("queries", "gradients", "peer_queries", "failing", "lost")
        pulse(Counts(*(torch.cat([getattr(counts, name) for counts in now]) for name in names)))


def _gone(task: Task, loss: Lost) -> Problem:
    return Problem(
        f"worker processes end before their shards are finished, again and again; the last one had shard {task.number}.",
        f"Most often the memory runs out. The shards that were finished are stored. {loss}".strip(),
        fix="fewer workers, or a smaller batch_size, in config.toml",
        code=INTERNAL,
    )
