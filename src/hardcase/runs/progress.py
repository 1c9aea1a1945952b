"""status.json, history.csv, run.json and the log, kept true while shards come in."""

from __future__ import annotations

import csv
import io
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import pyarrow.compute as pc

from hardcase.cache import write_atomically
from hardcase.environment import Redacting
from hardcase.runs.directory import FOLDERS, NOFOLLOW, plain, read_plain
from hardcase.runs.folder import Store, mend_shards, set_aside
from hardcase.runs.ledger import seal_of, sealed
from hardcase.runs.results import Run
from hardcase.runs.tables import SPENDING
from hardcase.runs.workers import Progress

# The growth curves of a run: a row for every shard at first, then fewer, so that the file stays
# small for ever.

COLUMNS = ["seconds", "queries", "gradients", "seeds_done", "failing_seeds", "findings"]
LONGEST = 2000
"""Rows after which every second one is dropped."""

Row = list[float]


def read_history(path: Path) -> list[Row]:
    """The rows that are whole. If some are not, the file is set aside and the good rows go on."""
    try:
        text = read_plain(path).decode(errors="replace")
        lines = list(csv.reader(io.StringIO(text)))[1:]
    except (OSError, csv.Error):
        return []
    rows = [row for line in lines if (row := _numbers(line)) is not None]
    if len(rows) < len(lines):
        set_aside(path)
    return rows


def to_csv(rows: list[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue().encode()


def thinned(rows: list[Row]) -> list[Row]:
    """`rows`, or every second one of them with the last if there are too many."""
    return rows if len(rows) <= LONGEST else [*rows[:-1:2], rows[-1]]


def _numbers(line: list[str]) -> Row | None:
    try:
        first, *rest = line
        row: Row = [float(first), *map(int, rest)]
    except ValueError:
        return None
    return row if len(row) == len(COLUMNS) else None


# A log beside the findings, for whoever comes back to a run after days.

LARGEST = 1_000_000
"""Bytes after which the log is begun anew; the one before is kept."""

diary = logging.getLogger("hardcase.diary")
"""What belongs into the log but not on the screen."""
diary.propagate = False
diary.setLevel(logging.INFO)
diary.addHandler(logging.NullHandler())


class _Quiet(RotatingFileHandler):
    """A log that cannot be written must not disturb the search. It is not written through a link or
    into a pipe.
    """

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | NOFOLLOW
        handle = plain(os.open(self.baseFilename, flags, 0o644), Path(self.baseFilename))
        return open(handle, "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        pass


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """The diary, and whatever else hardcase logs, also goes to ``log.txt`` in `folder`."""
    handler = _Quiet(
        folder / "log.txt", maxBytes=LARGEST, backupCount=1, delay=True, encoding="utf-8"
    )
    handler.setFormatter(Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = (diary, logging.getLogger("hardcase"))
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


# A run's numbers as a text file that Prometheus' node exporter (and its like) picks up.

NUMBERS = {
    "elapsed": ("counter", "seconds_total", "time spent"),
    "queries": ("counter", "queries_total", "images the subject was asked about"),
    "gradients": ("counter", "gradients_total", "images whose gradient was asked for"),
    "shards_done": ("counter", "shards_done_total", "finished shards"),
    "shards": ("gauge", "shards", "shards in all"),
    "failing": ("gauge", "failing_seeds", "seeds with a finding that leaves their label"),
    "findings": ("gauge", "findings", "findings that are kept"),
    "speed": ("gauge", "queries_per_second", "speed since the process began"),
}


def write_metrics(path: Path, run: str, status: Mapping[str, Any]) -> None:
    """Rewrite `path` as a whole with what `status` says of the run called `run`."""
    label = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    lines = []
    for key, (kind, name, words) in NUMBERS.items():
        lines += [f"# HELP hardcase_{name} {words}", f"# TYPE hardcase_{name} {kind}"]
        lines.append(f'hardcase_{name}{{run="{label}"}} {status[key]}')
    searching = int(status["phase"] == "searching")
    lines += [
        "# HELP hardcase_searching 1 while the search goes on",
        "# TYPE hardcase_searching gauge",
    ]
    lines.append(f'hardcase_searching{{run="{label}"}} {searching}')
    write_atomically(path, ("\n".join(lines) + "\n").encode(), flush=False)


# Notices when a subject gets slower in the course of a run.

WINDOW = 60.0
"""Seconds over which speed is measured."""
SLOW = 3.0
"""Slow-down factor that triggers a warning."""


class Pace:
    """Is told the time and the queries so far; warns once per slow-down."""

    def __init__(self, window: float = WINDOW) -> None:
        self.window = window
        self.best = 0.0
        self.slow = False
        self.since: tuple[float, int] | None = None

    def tell(self, seconds: float, queries: int) -> str | None:
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
        if self.slow and not before:
            return (
                f"the subject has become slow: {speed:,.0f} queries a second, {self.best:,.0f} at"
                " its best"
            )
        return None


# Keeps status.json, history.csv and run.json true while shards come in.

OFTEN = 0.5
"""Seconds between two writes of the small files; what they say can be had from the shards at any
time.
"""


@runtime_checkable
class Listener(Protocol):
    def say(self, text: str) -> None: ...

    def shard(self, progress: Progress) -> None: ...


class Logbook:
    """Told of every shard; `listener` hears where the whole run stands,
    earlier processes included.
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
        diary.info("%s: %d of %d shards are stored", self.store.folder, self.base.done, self.shards)
        self.write("searching")
        self.listener.shard(self.base + self.latest)

    def shard(self, progress: Progress) -> None:
        self.latest = progress
        total = self.base + progress
        elapsed = self._elapsed()
        self.rows.append(
            [
                round(elapsed, 3),
                total.queries,
                total.gradients,
                total.seeds,
                total.failing,
                total.findings,
            ]
        )
        slow = self.pace.tell(elapsed, progress.queries)
        if slow:
            self.say(slow)
        if monotonic() - self.written >= OFTEN:
            self.write("searching")
        self.listener.shard(total)

    def say(self, text: str) -> None:
        diary.warning(text)
        self.listener.say(text)

    def write(self, phase: str) -> None:
        self.written = monotonic()
        status = self._status(phase)
        if self.rows:
            self.rows = thinned(self.rows)
            history = to_csv(self.rows)
            self.store.write("history.csv", history, flush=False)
            status["history"] = seal_of(history)
        self.store.write("status.json", sealed(status), flush=False)
        if self.metrics is not None:
            write_metrics(self.metrics, str(self.store.folder), status)

    def close(self) -> list[int]:
        """Count everything that is stored and say so in run.json; also after an error or an
        interrupt.

        Every stored file is compared with its checksum first; the numbers of shards that were
        damaged are returned.
        """
        self.store.directory.hold(
            *FOLDERS
        )  # a folder that was moved away is told before anything else
        damaged = mend_shards(self.store, shards=self.shards)
        self.store.settle()
        run = Run(self.store.folder)
        complete = self.store.done() >= set(range(self.shards))
        finished = datetime.now(UTC).isoformat(timespec="seconds") if complete else None
        self.store.write_record(
            {
                **self.record,
                "complete": complete,
                "finished": finished,
                "elapsed": round(self._elapsed(), 3),
                **_totals(self.store, run),
                **run.counts(),
            }
        )
        self.write("done" if complete else "stopped")
        diary.info("%s: %s", self.store.folder, "complete" if complete else "stopped")
        return damaged

    def _status(self, phase: str) -> dict[str, Any]:
        total = self.base + self.latest
        spent = monotonic() - self.start
        eta = (self.shards - total.done) * spent / self.latest.done if self.latest.done else None
        return {
            "phase": phase,
            "elapsed": round(self._elapsed(), 3),
            "shards": self.shards,
            "shards_done": total.done,
            "queries": total.queries,
            "gradients": total.gradients,
            "failing": total.failing,
            "findings": total.findings,
            "speed": round(self.latest.queries / spent, 1) if spent > 0 else 0,
            "eta": eta and round(eta, 1),
        }

    def _elapsed(self) -> float:
        return self.before + monotonic() - self.start


def _stored(store: Store) -> Progress:
    """What earlier processes have already brought into this folder, from the ledger alone."""
    done = store.done()
    return Progress.sum(
        [entry.summary for number, entry in store.ledger.read().items() if number in done]
    )


def _totals(store: Store, run: Run) -> dict[str, Any]:
    """What was spent, and what it took to get the answers where the subject counts that."""
    spent = {name: pc.sum(run.seeds[name]).as_py() or 0 for name in SPENDING}
    service = dict(_stored(store).service)
    kinds = {
        row["values"]: row["counts"] for row in run.findings["kind"].value_counts().to_pylist()
    }
    return {"totals": spent, **({"service": service} if service else {}), "kinds": kinds}
