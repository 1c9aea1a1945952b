"""How far a run has come: sums over shards, kept true in status.json, history.csv, run.json, the
log and a monitoring system's file while shards come in.
"""

from __future__ import annotations

import csv
import io
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import pyarrow.compute as pc

from hardcase.cache import write_atomically
from hardcase.environment import Redacting
from hardcase.runs.files import checked_json, read_plain, require_plain, size_and_crc
from hardcase.runs.folder import Store
from hardcase.runs.results import Run
from hardcase.runs.tables import SPENDING
from hardcase.runs.verify import set_aside

__all__ = ["Progress", "ProgressLog", "logged", "run_log"]

_HISTORY = ("queries", "gradients", "seeds", "failing", "findings")
COLUMNS = ["seconds", "queries", "gradients", "seeds_done", "failing_seeds", "findings"]
LONGEST = 2000
"""Rows of history.csv after which every second one is dropped."""
LARGEST = 1_000_000
"""Bytes after which the log is begun anew; the one before is kept."""
OFTEN = 0.5
"""Seconds between two writes of the small files; what they say can be had from the shards at any
time.
"""
WINDOW = 60.0
"""Seconds over which speed is measured."""
SLOW = 3.0
"""Slow-down factor that triggers a warning."""
METRICS = {
    "elapsed": ("counter", "seconds_total", "time spent"),
    "queries": ("counter", "queries_total", "images the subject was asked about"),
    "gradients": ("counter", "gradients_total", "images whose gradient was asked for"),
    "shards_done": ("counter", "shards_done_total", "finished shards"),
    "shards": ("gauge", "shards", "shards in all"),
    "failing": ("gauge", "failing_seeds", "seeds with a finding that leaves their label"),
    "findings": ("gauge", "findings", "findings that are kept"),
    "speed": ("gauge", "queries_per_second", "speed since the process began"),
    "searching": ("gauge", "searching", "1 while the search goes on"),
}
"""What Prometheus' node exporter (and its like) is told: kind, name and meaning of each number."""
Row = list[float]


@dataclass(frozen=True, slots=True)
class Progress:
    """Sums over shards, told after every one.

    Args:
        done: Shards that are finished.
        shards: Shards in all.
        seeds: Seeds of finished shards, as all numbers below.
        queries: Images the subject was asked about.
        gradients: Images whose gradient was asked for.
        failing: Seeds with a finding that leaves their label.
        findings: Findings that are kept.
        confusions: How often which label was mistaken for which.
        service: What it took to get the subject's answers, where it counts that.
        kinds: Findings by their kind.
    """

    done: int = 0
    shards: int = 0
    seeds: int = 0
    queries: int = 0
    gradients: int = 0
    failing: int = 0
    findings: int = 0
    confusions: Counter[tuple[int, int]] = field(default_factory=Counter)
    service: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    @staticmethod
    def none(shards: int) -> Progress:
        """Before the first of so many shards."""
        return Progress(shards=shards)

    @staticmethod
    def sum(summaries: Sequence[Mapping[str, Any]]) -> Progress:
        """Several finished shards, by their summaries in the ledger."""
        total = Progress()
        for one in summaries:
            numbers = ("seeds", "queries", "gradients", "failing", "findings")
            total += Progress(
                done=1,
                **{name: int(one.get(name, 0)) for name in numbers},
                confusions=Counter({(a, b): times for a, b, times in one.get("confusions", ())}),
                service=Counter(one.get("service", {})),
                kinds=Counter(one.get("kinds", {})),
            )
        return total

    def __add__(self, other: Progress) -> Progress:
        return Progress(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Progress)))


# --- history.csv: a row for every shard at first, then fewer


def read_history(path: Path) -> list[Row]:
    """The rows that are whole. If some are not, the file is set aside and the good rows go on."""
    try:
        text = read_plain(path).decode(errors="replace")
        lines = list(csv.reader(io.StringIO(text)))[1:]
    except (OSError, csv.Error):
        return []
    rows = []
    for line in lines:
        try:
            first, *rest = line
            row: Row = [float(first), *map(int, rest)]
        except ValueError:
            continue
        if len(row) == len(COLUMNS):
            rows.append(row)
    if len(rows) < len(lines):
        set_aside(path)
    return rows


def to_csv(rows: list[Row]) -> bytes:
    """history.csv."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue().encode()


# --- the log

run_log = logging.getLogger("hardcase.run_log")
"""What belongs into the log but not on the screen."""
run_log.propagate = False
run_log.setLevel(logging.INFO)
run_log.addHandler(logging.NullHandler())


class _Quiet(RotatingFileHandler):
    """A log that cannot be written must not disturb the search. It is not written through a link or
    into a pipe.
    """

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


def write_metrics(path: Path, run: str, status: Mapping[str, Any]) -> None:
    """Rewrite `path` as a whole with what `status` says of the run called `run`."""
    label = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    values = {**status, "searching": int(status["phase"] == "searching")}
    lines = []
    for key, (kind, name, words) in METRICS.items():
        lines += [f"# HELP hardcase_{name} {words}", f"# TYPE hardcase_{name} {kind}"]
        lines.append(f'hardcase_{name}{{run="{label}"}} {values[key]}')
    write_atomically(path, ("\n".join(lines) + "\n").encode(), flush=False)


class Pace:
    """Is told the time and the queries so far; warns once per slow-down of the subject."""

    def __init__(self, window: float = WINDOW) -> None:
        self.window = window
        self.best = 0.0
        self.slow = False
        self.since: tuple[float, int] | None = None

    def tell(self, seconds: float, queries: int) -> str | None:
        """A warning, if the subject has become slow since it was told before."""
        if self.since is None:
            self.since = (seconds, queries)
        spent = seconds - self.since[0]
        if spent < self.window:
            return None
        speed = (queries - self.since[1]) / spent
        self.since = (seconds, queries)
        self.best = max(self.best, speed)
        before = self.slow
        self.slow = speed * SLOW < self.best
        if before or not self.slow:
            return None
        return (
            f"the subject has become slow: {speed:,.0f} queries a second, {self.best:,.0f} at its"
            " best"
        )


@runtime_checkable
class Listener(Protocol):
    """Who hears where a run stands."""

    def say(self, text: str) -> None: ...

    def shard(self, progress: Progress) -> None: ...


class ProgressLog:
    """Told of every shard; `listener` hears where the whole run stands, earlier processes included.

    Args:
        store: The run folder.
        record: What run.json says so far.
        shards: Shards in all.
        listener: Told after every shard.
        metrics: A file for a monitoring system.
    """

    def __init__(
        self,
        store: Store,
        record: dict[str, Any],
        shards: int,
        listener: Listener,
        metrics: Path | None = None,
    ) -> None:
        self.store = store
        self.record = record
        self.shards = shards
        self.listener = listener
        self.metrics = metrics
        self.rows = read_history(store.folder / "history.csv")
        self.base = _stored(store)
        self.latest = Progress.none(shards)
        self.start = monotonic()
        self.before = max([float(record["elapsed"]), *(row[0] for row in self.rows[-1:])])
        self.written = -OFTEN
        self.pace = Pace()

    def open(self) -> None:
        """The search begins."""
        run_log.info(
            "%s: %d of %d shards are stored", self.store.folder, self.base.done, self.shards
        )
        self.write("searching")
        self.listener.shard(self.base + self.latest)

    def shard(self, summary: Mapping[str, Any]) -> None:
        """A shard with these counts is stored."""
        self.latest += Progress.sum([summary])
        total = self.base + self.latest
        elapsed = self._elapsed()
        self.rows.append([elapsed, *(getattr(total, name) for name in _HISTORY)])
        slow = self.pace.tell(elapsed, self.latest.queries)
        if slow:
            run_log.warning(slow)
            self.listener.say(slow)
        if monotonic() - self.written >= OFTEN:
            self.write("searching")
        self.listener.shard(total)

    def write(self, phase: str) -> None:
        """Rewrite the small files."""
        self.written = monotonic()
        status = self._status(phase)
        if len(self.rows) > LONGEST:
            self.rows = [*self.rows[:-1:2], self.rows[-1]]
        if self.rows:
            history = to_csv(self.rows)
            self.store.write("history.csv", history, flush=False)
            status["history"] = size_and_crc(history)
        self.store.write("status.json", checked_json(status), flush=False)
        if self.metrics is not None:
            write_metrics(self.metrics, str(self.store.folder), status)

    def close(self) -> None:
        """Count everything that is stored and say so in run.json; also after an error or an
        interrupt.
        """
        self.store.settle()
        run = Run(self.store.folder)
        complete = self.store.done() >= set(range(self.shards))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        service = dict(_stored(self.store).service)
        kinds = run.findings["kind"].value_counts().to_pylist()
        record = {
            **self.record,
            "complete": complete,
            "finished": now if complete else None,
            "elapsed": self._elapsed(),
            "totals": {name: pc.sum(run.seeds[name]).as_py() or 0 for name in SPENDING},
            "kinds": {row["values"]: row["counts"] for row in kinds},
            **run.counts(),
        }
        if service:
            record["service"] = service
        self.store.write_record(record)
        phase = "done" if complete else "stopped"
        self.write(phase)
        run_log.info("%s: %s", self.store.folder, phase)

    def _status(self, phase: str) -> dict[str, Any]:
        total = self.base + self.latest
        spent = max(monotonic() - self.start, 1e-9)
        eta = None
        if self.latest.done:
            eta = round((self.shards - total.done) * spent / self.latest.done, 1)
        return {
            "phase": phase,
            "elapsed": self._elapsed(),
            "shards": self.shards,
            "shards_done": total.done,
            **{name: getattr(total, name) for name in ("queries", "gradients", "failing")},
            "findings": total.findings,
            "speed": round(self.latest.queries / spent, 1),
            "eta": eta,
        }

    def _elapsed(self) -> float:
        return round(self.before + monotonic() - self.start, 3)


def _stored(store: Store) -> Progress:
    """What earlier processes have already brought into this folder, from the ledger alone."""
    entries = store.ledger.read()
    return Progress.sum([entries[number].summary for number in store.done()])
