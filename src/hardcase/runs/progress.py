"""How far a run has come: status.json, history.csv, run.json, log, a monitoring system's file."""

from __future__ import annotations

import csv
import io
import logging
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from hardcase.campaign.record import Counts
from hardcase.environment import Redacting
from hardcase.errors import count_interrupt
from hardcase.runs.files import checked_json, require_plain, size_and_crc
from hardcase.runs.folder import Store
from hardcase.runs.results import Run
from hardcase.runs.tables import SPENDING
from hardcase.training.cards import TrainingProgress

_HISTORY = ("queries", "gradients", "seeds", "failing", "findings")
COLUMNS = ["seconds", "queries", "gradients", "seeds_done", "failing_seeds", "findings"]
LONGEST = 2000
"""Rows of history.csv after which every second row is dropped."""
LARGEST = 1_000_000
"""Bytes after which a new log begins; the previous log stays."""
OFTEN = 0.5
"""Seconds between two writes of the small files; what they say can be had from the shards at any
time.
"""
Row = list[float]


@dataclass(frozen=True, slots=True)
class Progress:
    """Sums over the finished shards (`done` of `shards`), reported after every shard.

    `confusions` says how often which label was mistaken for which, `service` the calls and seconds
    of the subject's answers, if they are counted, `canaries` how often networks were checked for
    equal answers.
    """

    done: int = 0
    shards: int = 0
    seeds: int = 0
    queries: int = 0
    gradients: int = 0
    failing: int = 0
    findings: int = 0
    canaries: int = 0
    confusions: Counter[tuple[int, int]] = field(default_factory=Counter)
    service: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def sum(summaries: Sequence[Mapping[str, Any]]) -> Progress:
        """The sum of finished shards, from their summaries in the ledger."""
        total = Progress()
        for summary in summaries:
            numbers = ("seeds", "queries", "gradients", "failing", "findings", "canaries")
            total += Progress(
                done=1,
                **{name: int(summary.get(name, 0)) for name in numbers},
                confusions=Counter(
                    {(a, b): times for a, b, times in summary.get("confusions", ())}
                ),
                service=Counter(summary.get("service", {})),
                kinds=Counter(summary.get("kinds", {})),
            )
        return total

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Progress)))


def _summaries(store: Store) -> list[Mapping[str, Any]]:
    """The counts of every stored shard."""
    entries = store.ledger.read()
    return [entries[number].summary for number in store.done()]


# --- the log

run_log = logging.getLogger("hardcase.run_log")
"""What belongs into the log but not on the screen."""
run_log.propagate = False
run_log.setLevel(logging.INFO)
run_log.addHandler(logging.NullHandler())


class _Quiet(RotatingFileHandler):
    """A log that cannot be written must not disturb the search; it is no link and no pipe."""

    def _open(self) -> TextIOWrapper:
        require_plain(Path(self.baseFilename))
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        pass


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """The log of the run, and whatever else hardcase logs, also goes to ``log.txt`` in `folder`."""
    handler = _Quiet(
        folder / "log.txt", maxBytes=LARGEST, backupCount=1, delay=True, encoding="utf-8"
    )
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = (run_log, logging.getLogger("hardcase"))
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


class Watcher:
    """The interface of front ends to a run; this class does nothing."""

    def log(self, text: str) -> None:
        """A line for the user: failures, skipped parts, choices."""

    def prepare(self, what: str) -> None:
        """What is done from now on, in words, until a phase begins or goes on."""

    def enter(self, phase: str, record: dict[str, Any]) -> None:
        """A phase begins; the folder exists, and a stop loses at most a shard."""

    def advance(self, done: int, total: int, failing: int) -> None:
        """So many of all images are measured, and so many of their samples fail: called once before
        the first shard (a resumed run has finished shards), then after every shard.
        """

    def begin(self, record: dict[str, Any], usable: int, at_once: int = 0) -> None:
        """The search begins from so many seeds, at most so many at once."""

    def on_step(self, counts: Counts) -> None:
        """Steps were made; the counts are those of the shards being searched."""

    def shard(self, progress: Progress) -> None:
        """The progress of the entire run: called once before the first shard (a resumed run has
        finished shards), then after every shard.
        """

    def stopped(self) -> bool:
        """Whether to stop after the current shard."""
        return False


RUNNING = {"measure": "measuring", "search": "searching", "check": "checking"}
"""The name of a phase while it runs."""
STOPPABLE = ("measuring", "searching")
"""A process that ends after the current shard, when it is stopped."""


class Stoppable(Watcher):
    """Shows nothing. As a context it listens for Ctrl-C and SIGTERM.

    While a run measures or searches, the first Ctrl-C (or SIGTERM) asks it to stop after the
    current shard, the second stops at once. At any other time the first request stops at once:
    there is nothing to save.
    """

    def __init__(self) -> None:
        self.phase = "preparing"
        self.folder: Path | None = None
        self.record: dict[str, Any] = {}
        self.stops = 0
        self.handlers: dict[int, Any] = {}

    def prepare(self, what: str) -> None:
        self.phase = "preparing"

    def train(self, progress: TrainingProgress) -> None:
        """Where the training of a network stands."""

    def enter(self, phase: str, record: dict[str, Any]) -> None:
        self.phase = RUNNING[phase]
        self.record = record

    def begin(self, record: dict[str, Any], usable: int, at_once: int = 0) -> None:
        self.enter("search", record)

    def stopped(self) -> bool:
        return self.stops > 0

    def __enter__(self) -> Stoppable:
        if threading.current_thread() is threading.main_thread():
            self.handlers = {
                number: signal.signal(number, self._interrupt)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        count_interrupt()
        self.stops += 1
        if self.phase not in STOPPABLE or (self.stops > 1 and number == signal.SIGINT):
            raise KeyboardInterrupt


class ProgressLog:
    """Called after every shard; reports to `watcher` the progress of the entire run, earlier
    processes included.

    `shards` is their number in all.
    """

    def __init__(
        self,
        store: Store,
        record: dict[str, Any],
        shards: int,
        watcher: Watcher,
    ) -> None:
        self.store = store
        self.record = record
        self.shards = shards
        self.watcher = watcher
        stored = _summaries(store)
        self.rows = list[Row]()
        for entry in sorted(stored, key=lambda entry: entry.get("elapsed", 0.0)):
            before = self.rows[-1][1:] if self.rows else [0] * len(_HISTORY)
            sums = [a + entry.get(name, 0) for a, name in zip(before, _HISTORY)]
            self.rows.append([entry.get("elapsed", 0.0), *sums])
        self.base = Progress.sum(stored)
        self.latest = Progress(shards=shards)
        self.start = monotonic()
        self.before = max([float(record["elapsed"]), *(row[0] for row in self.rows[-1:])])
        self.written = -OFTEN

    def __enter__(self) -> ProgressLog:
        """The search begins."""
        run_log.info(
            "%s: %d of %d shards are stored", self.store.folder, self.base.done, self.shards
        )
        self.write("searching")
        self.watcher.shard(self.base + self.latest)
        return self

    @property
    def found(self) -> int:
        """Findings of all shards that are stored."""
        return self.base.findings + self.latest.findings

    def shard(self, summary: Mapping[str, Any]) -> None:
        """A shard with these counts is stored."""
        self.latest += Progress.sum([summary])
        total = self.base + self.latest
        self.rows.append([summary["elapsed"], *(getattr(total, name) for name in _HISTORY)])
        if monotonic() - self.written >= OFTEN:
            self.write("searching")
        self.watcher.shard(total)

    def write(self, phase: str) -> None:
        """Rewrite the small files."""
        self.written = monotonic()
        total = self.base + self.latest
        spent = max(monotonic() - self.start, 1e-9)
        eta = None
        if self.latest.done:
            eta = round((self.shards - total.done) * spent / self.latest.done, 1)
        status: dict[str, Any] = {
            "phase": phase,
            "elapsed": self.elapsed(),
            "shards": self.shards,
            "shards_done": total.done,
            **{name: getattr(total, name) for name in ("queries", "gradients", "failing")},
            "findings": total.findings,
            "speed": round(self.latest.queries / spent, 1),
            "eta": eta,
        }
        if len(self.rows) > LONGEST:
            self.rows = [*self.rows[:-1:2], self.rows[-1]]
        if self.rows:
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows([COLUMNS, *self.rows])
            history = text.getvalue().encode()
            self.store.write("history.csv", history, flush=False)
            status["history"] = size_and_crc(history)
        self.store.write("status.json", checked_json(status), flush=False)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Count everything that is stored and say so in run.json; also after an error."""
        if isinstance(error, Exception):
            run_log.error("the search ended early", exc_info=error)
        self.store.settle()
        run = Run(self.store)
        complete = self.store.done() >= set(range(self.shards))
        searched = {"status": "done" if complete else "running", "elapsed": self.elapsed()}
        phases = dict(self.record["phases"])
        phases["search"] = {**phases["search"], **searched}
        ended = all(entry["status"] in ("done", "skipped") for entry in phases.values())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        stored = _summaries(self.store)
        total = Progress.sum(stored)
        findings = self.store.findings()
        kinds = findings["kind"].value_counts().to_pylist()
        record = {
            **self.record,
            "phases": phases,
            "complete": ended,
            "finished": now if ended else None,
            "elapsed": self.elapsed(),
            "totals": {name: sum(entry.get(name, 0) for entry in stored) for name in SPENDING},
            "canaries": total.canaries,
            "kinds": {row["values"]: row["counts"] for row in kinds},
            **run.counted(self.store.seed_groups(["status", "evaluated", "failing"]), findings),
        }
        if total.service:
            record["service"] = dict(total.service)
        self.store.write_record(record)
        phase = "done" if complete else "stopped"
        self.write(phase)
        run_log.info("%s: %s", self.store.folder, phase)

    def elapsed(self) -> float:
        """Seconds that were spent on the run, in all processes."""
        return round(self.before + monotonic() - self.start, 3)
