"""What a front end knows of a run while it goes on, and how a run is asked to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from types import FrameType
from typing import Any

from hardcase.campaign import Counts
from hardcase.distribute import Progress
from hardcase.running import Watcher
from hardcase.training import Progress as Training

OFTEN = 0.25
"""Seconds between two looks at the counts of the shard being searched."""


KEPT = 0.9
"""Share of the subject's accuracy that must be left on what a generator gives back."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands, as numbers to be shown."""

    phase: str
    elapsed: float
    seeds: int
    usable: int
    done: int
    running: int
    failing: int
    queries: int
    gradients: int
    speed: float
    left: float | None
    since_new: float | None
    confusions: tuple[tuple[str, int], ...]

    @property
    def waiting(self) -> int:
        return self.usable - self.done - self.running

    @property
    def skipped(self) -> int:
        return self.seeds - self.usable


class Front(Watcher):
    """Collects what it is told; subclasses show it. As a context it listens for Ctrl-C and SIGTERM.

    Once the search has begun, the first Ctrl-C (or SIGTERM) asks it to stop after the current shard, the second stops at
    once. Before that there is nothing to save, and the first one stops at once.
    """

    def __init__(self) -> None:
        self.phase, self.notes, self.training = "preparing", list[str](), dict[str, Training]()
        self.record: dict[str, Any] = {}
        self.started = self.began = monotonic()
        self.usable = self.stops = 0
        self.shard_size, self.workers = 0, 1
        self.base = self.total = Progress.none(0)
        self.current = (0, 0, 0)
        self.looked = 0.0
        self.news: float | None = None
        self.handlers: dict[int, Any] = {}

    def expect(self, *, shard: int, workers: int) -> None:
        """How many seeds are searched together, and in how many processes."""
        self.shard_size, self.workers = shard, workers

    def train(self, progress: Training) -> None:
        self.phase = "training"
        self.training[progress.what] = progress
        if progress.warning:
            self.say(f"{progress.what}: {progress.warning}")

    def say(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, record: dict[str, Any], usable: int) -> None:
        self.phase, self.record, self.usable, self.began = "searching", record, usable, monotonic()
        for text in doubts(record.get("generator") or {}):
            self.say(text)

    def pulse(self, counts: Counts) -> None:
        if monotonic() - self.looked < OFTEN:
            return
        self.looked = monotonic()
        failing = int((counts.failing > 0).sum())
        if failing > self.current[2]:
            self.news = self.looked
        self.current = (int(counts.queries.sum()), int(counts.gradients.sum()), failing)

    def shard(self, progress: Progress) -> None:
        first = self.total.shards == 0
        if not first and progress.failing > self.total.failing + self.current[2]:
            self.news = monotonic()
        self.base = progress if first else self.base
        self.total, self.current = progress, (0, 0, 0)

    def stopped(self) -> bool:
        return self.stops > 0

    def standing(self) -> Standing:
        now, total = monotonic(), self.total
        spent, fresh = max(now - self.began, 1e-9), total.seeds - self.base.seeds
        queries, gradients, failing = self.current
        searching = self.phase == "searching"
        ahead = self.usable - total.seeds
        phase = "stopping after this shard" if self.stops and searching else self.phase
        return Standing(
            phase=phase,
            elapsed=now - self.started,
            seeds=int(self.record.get("seeds", 0)),
            usable=self.usable,
            done=total.seeds,
            running=min(ahead, self.shard_size * self.workers) if searching else 0,
            failing=total.failing + failing,
            queries=total.queries + queries,
            gradients=total.gradients + gradients,
            speed=(total.queries + queries - self.base.queries) / spent,
            left=ahead * spent / fresh if fresh and searching else None,
            since_new=None if self.news is None else now - self.news,
            confusions=self._confusions(),
        )

    def _confusions(self, most: int = 4) -> tuple[tuple[str, int], ...]:
        names = self.record.get("classes", [])
        counted = Counter(self.total.confusions).most_common(most)
        return tuple((f"{names[expected]}→{names[predicted]}", times) for (expected, predicted), times in counted)

    def open(self) -> None:
        """Begin to show."""

    def close(self) -> None:
        """Show for the last time."""

    def __enter__(self) -> Front:
        if threading.current_thread() is threading.main_thread():
            self.handlers = {
                number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)
            }
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.phase, self.current = "stopped" if any(error) or self.stops else "done", (0, 0, 0)
        self.close()
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.phase != "searching" or (self.stops and number == signal.SIGINT):
            self.stops += 1
            raise KeyboardInterrupt
        self.stops += 1


def doubts(card: Mapping[str, Any]) -> list[str]:
    """What a user should know of a generator before a search in its space: does it lose the label?"""
    before, after = card.get("judge_accuracy"), card.get("reconstruction_accuracy")
    if not before or after is None or after >= KEPT * before:
        return []
    shares = f"{100 * after:.0f} % of the images it gives back, against {100 * before:.0f} % before"
    return [
        f"the generator loses the label: the subject is right on {shares}; findings may show its flaws, not the subject's"
    ]


def front(progress: str, *, quiet: bool = False) -> Front:
    """The front end that ``--progress`` names; `auto` is live on a terminal and plain lines elsewhere."""
    from hardcase.cli.lines import Lines
    from hardcase.cli.screen import Screen

    if quiet or progress == "none":
        return Front()
    live = progress == "live" or (progress == "auto" and sys.stderr.isatty())
    return Screen() if live else Lines()
