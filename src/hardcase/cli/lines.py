"""Progress as plain lines, for logs and pipes."""

from __future__ import annotations

import threading
from typing import Any

from hardcase.cli.speaking import clock, note
from hardcase.cli.watching import OFTEN, Front, Standing
from hardcase.training import Progress as Training

EVERY = 30.0
"""Seconds between two lines."""


class Lines(Front):
    """A line when something begins or ends, and one every 30 seconds in between."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._tick, daemon=True)
        self.warned = False

    def say(self, text: str) -> None:
        super().say(text)
        note(f"note: {text}")

    def train(self, progress: Training) -> None:
        if progress.what not in self.training:
            note(f"training {progress.what}: {progress.epochs} epochs of {progress.steps // progress.epochs} steps")
        super().train(progress)
        if progress.step == progress.steps:
            note(f"trained {progress.what}: loss {progress.loss:.4g}")

    def begin(self, record: dict[str, Any], usable: int) -> None:
        super().begin(record, usable)
        where = f"{record['method']} on {record['model']}, {record['data']}"
        note(f"searching with {where}: {usable} usable of {record['seeds']} seeds")

    def open(self) -> None:
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        if self.record:
            note(line(self.standing()))

    def _tick(self) -> None:
        waited = 0.0
        while not self.over.wait(OFTEN):
            waited += OFTEN
            if self.stops and not self.warned:
                self.warned = True
                note("stopping: the current shard is finished and saved first; Ctrl-C again stops at once")
            if waited >= EVERY:
                waited = 0.0
                note(self._line())

    def _line(self) -> str:
        latest = list(self.training.values())[-1:]
        return line(self.standing()) if self.record or not latest else training_line(latest[0])


def line(now: Standing) -> str:
    """Where a run stands, in one line."""
    counts = f"{now.done:,} of {now.usable:,} seeds done, {now.failing:,} failing (not judged)"
    cost = f"{now.queries:,} queries, {now.speed:,.0f} a second"
    left = f"; about {clock(now.left)} left" if now.left else ""
    return (
        f"{clock(now.elapsed)} {now.phase}: {counts}; {cost}{left}"
        if now.usable
        else f"{clock(now.elapsed)} {now.phase}"
    )


def training_line(now: Training) -> str:
    return f"training {now.what}: epoch {now.epoch} of {now.epochs}, loss {now.loss:.4g}"
