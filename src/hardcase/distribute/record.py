"""What travels between the owner of a run folder and those who search its shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from hardcase.campaign import Campaign, Counts, Limits
from hardcase.store import Packed
from hardcase.types import Images


@dataclass(frozen=True, slots=True)
class Task:
    """One shard's work: which seeds, what they may cost, and when to stop (monotonic seconds)."""

    number: int
    first: int
    images: Images
    limits: Limits
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Sums over shards, told after every one. `service`: what it took to get the subject's answers, where it counts that."""

    done: int
    shards: int
    seeds: int
    queries: int
    gradients: int
    failing: int
    findings: int
    confusions: Counter[tuple[int, int]] = field(default_factory=Counter)
    service: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def none(shards: int) -> Progress:
        return Progress(0, shards, 0, 0, 0, 0, 0)

    @staticmethod
    def of(summary: Mapping[str, Any]) -> Progress:
        """One finished shard."""
        return Progress.sum([summary])

    @staticmethod
    def sum(summaries: Sequence[Mapping[str, Any]]) -> Progress:
        """Several finished shards."""
        pairs, service = Counter[tuple[int, int]](), Counter[str]()
        for one in summaries:
            pairs.update({(expected, predicted): times for expected, predicted, times in one.get("confusions", ())})
            service.update(one.get("service", {}))
        names = ("seeds", "queries", "gradients", "failing", "findings")
        seeds, queries, gradients, failing, findings = (
            sum(int(one.get(name, 0)) for one in summaries) for name in names
        )
        return Progress(len(summaries), 0, seeds, queries, gradients, failing, findings, pairs, service)

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Progress)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A finished shard on its way to the store, and its counts."""

    number: int
    packed: Packed
    summary: Mapping[str, Any]


Watch = Callable[[Progress], None]
Pulse = Callable[[Counts], None]
Source = Callable[[], Campaign]
Stopped = Callable[[], bool]
