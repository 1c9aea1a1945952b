"""Keeps status.json, history.csv and run.json true while shards come in."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import pyarrow.compute as pc

from hardcase.distribute import Progress
from hardcase.results import Run
from hardcase.running import history, metrics
from hardcase.running.logs import diary
from hardcase.running.pace import Pace
from hardcase.store import Store, mend_shards

OFTEN = 0.5
"""Seconds between two writes of the small files; what they say can be had from the shards at any time."""


@runtime_checkable
class Listener(Protocol):
    def say(self, text: str) -> None: ...

    def shard(self, progress: Progress) -> None: ...


class Logbook:
    """Told of every shard; `listener` hears where the whole run stands, earlier processes included."""

    def __init__(
        self, store: Store, record: dict[str, Any], shards: int, listener: Listener, metrics: Path | None = None
    ) -> None:
        self.store, self.record, self.shards, self.listener, self.metrics = store, record, shards, listener, metrics
        self.rows = history.read(store.folder / "history.csv")
        self.base, self.latest = _stored(store), Progress.none(shards)
        self.start, self.before = monotonic(), max([float(record["elapsed"]), *(row[0] for row in self.rows[-1:])])
        self.written, self.pace = -OFTEN, Pace()

    def open(self) -> None:
        diary.info("%s: %d of %d shards are stored", self.store.folder, self.base.done, self.shards)
        self.write("searching")
        self.listener.shard(self.base + self.latest)

    def shard(self, progress: Progress) -> None:
        self.latest, total = progress, self.base + progress
        elapsed = self._elapsed()
        self.rows.append(
            [round(elapsed, 3), total.queries, total.gradients, total.seeds, total.failing, total.findings]
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
            self.rows = history.thinned(self.rows)
            self.store.write("history.csv", history.to_csv(self.rows), flush=False)
        self.store.write("status.json", json.dumps(status, indent=2).encode(), flush=False)
        if self.metrics is not None:
            metrics.write(self.metrics, str(self.store.folder), status)

    def close(self) -> list[int]:
        """Count everything that is stored and say so in run.json; also after an error or an interrupt.

        Every stored file is compared with its checksum first; the numbers of shards that were damaged are returned.
        """
        damaged = mend_shards(self.store)
        self.store.settle()
        run = Run(self.store.folder)
        complete = self.store.done() >= set(range(self.shards))
        finished = datetime.now(UTC).isoformat(timespec="seconds") if complete else None
        self.store.write_record(
            {**self.record, "complete": complete, "finished": finished, "elapsed": round(self._elapsed(), 3),
             **_totals(self.store, run), **run.counts()}
        )  # fmt: skip
        self.write("done" if complete else "stopped")
        diary.info("%s: %s", self.store.folder, "complete" if complete else "stopped")
        return damaged

    def _status(self, phase: str) -> dict[str, Any]:
        total, spent = self.base + self.latest, monotonic() - self.start
        eta = (self.shards - total.done) * spent / self.latest.done if self.latest.done else None
        return {
            "phase": phase, "elapsed": round(self._elapsed(), 3), "shards": self.shards, "shards_done": total.done,
            "queries": total.queries, "gradients": total.gradients, "failing": total.failing, "findings": total.findings,
            "speed": round(self.latest.queries / spent, 1) if spent > 0 else 0, "eta": eta and round(eta, 1),
        }  # fmt: skip

    def _elapsed(self) -> float:
        return self.before + monotonic() - self.start


def _stored(store: Store) -> Progress:
    """What earlier processes have already brought into this folder, from the ledger alone."""
    done = store.done()
    return Progress.sum([entry.summary for number, entry in store.ledger.read().items() if number in done])


def _totals(store: Store, run: Run) -> dict[str, Any]:
    """What was spent, and what it took to get the answers where the subject counts that."""
    spent = {name: pc.sum(run.seeds[name]).as_py() or 0 for name in ("queries", "gradients", "peer_queries")}
    service = dict(_stored(store).service)
    kinds = {row["values"]: row["counts"] for row in run.findings["kind"].value_counts().to_pylist()}
    return {"totals": spent, **({"service": service} if service else {}), "kinds": kinds}
