"""Notices when a subject gets slower in the course of a run."""

from __future__ import annotations

WINDOW = 60.0
"""Seconds over which speed is measured."""
SLOW = 3.0
"""How many times slower than at its best a subject is worth a word."""


class Pace:
    """Told of the time and of the queries so far; says, once for each time it happens, that they have become slow."""

    def __init__(self, window: float = WINDOW) -> None:
        self.window, self.best, self.slow = window, 0.0, False
        self.since: tuple[float, int] | None = None

    def tell(self, seconds: float, queries: int) -> str | None:
        if self.since is None:
            self.since = (seconds, queries)
        spent = seconds - self.since[0]
        if spent < self.window:
            return None
        speed = (queries - self.since[1]) / spent
        self.since, self.best = (seconds, queries), max(self.best, speed)
        before, self.slow = self.slow, speed * SLOW < self.best
        if self.slow and not before:
            return f"the subject has become slow: {speed:,.0f} queries a second, {self.best:,.0f} at its best"
        return None
