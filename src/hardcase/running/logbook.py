"""Keeps status.json, history.csv and run.json true while shards come in."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from hardcase.distribute import Progress
from hardcase.results import Run
from hardcase.store import Store

COLUMNS = ["seconds", "queries", "gradients", "seeds_done", "failing_seeds", "findings"]


class Logbook:
    """Told of every shard; `tell` hears where the whole run stands, earlier processes included."""

    def __init__(self, store: Store, record: dict[str, Any], shards: int, tell: Callable[[Progress], None]) -> None:
        self.store, self.record, self.shards, self.tell = store, record, shards, tell
        self.start, self.before = monotonic(), float(record["elapsed"])
        self.rows = _history(store)
        self.base, self.latest = _stored(store), Progress.none(shards)

    def shard(self, progress: Progress) -> None:
        self.latest, total = progress, self.base + progress
        row = [round(self._elapsed(), 3), total.queries, total.gradients, total.seeds, total.failing, total.findings]
        self.rows.append([str(value) for value in row])
        self.store.write("history.csv", _csv(self.rows))
        self.write("searching", progress)
        self.tell(total)

    def write(self, phase: str, progress: Progress) -> None:
        total, elapsed = self.base + progress, self._elapsed()
        spent = monotonic() - self.start
        left = progress.shards - total.done
        eta = left * spent / progress.done if progress.done else None
        status = {
            "phase": phase, "elapsed": round(elapsed, 3), "shards": progress.shards, "shards_done": total.done,
            "queries": total.queries, "gradients": total.gradients, "failing": total.failing, "findings": total.findings,
            "speed": round(progress.queries / spent, 1) if spent > 0 else 0, "eta": eta and round(eta, 1),
        }  # fmt: skip
        self.store.write("status.json", json.dumps(status, indent=2).encode())

    def close(self) -> None:
        """Count everything that is stored and say so in run.json; also after an error or an interrupt."""
        self.store.settle()
        run = Run(self.store.folder)
        complete = self.store.done() >= set(range(self.shards))
        spent = {name: sum(run.seeds[name].to_pylist()) for name in ("queries", "gradients", "peer_queries")}
        finished = datetime.now(UTC).isoformat(timespec="seconds") if complete else None
        self.store.write_record(
            {**self.record, "complete": complete, "finished": finished, "elapsed": round(self._elapsed(), 3),
             "totals": spent, **run.counts()}
        )  # fmt: skip
        self.write("done" if complete else "stopped", self.latest)

    def _elapsed(self) -> float:
        return self.before + monotonic() - self.start


def _stored(store: Store) -> Progress:
    """What earlier processes have already brought into this folder."""
    run = Run(store.folder)
    reached = ("done", "out of time", "skipped: reconstruction")
    done = [row for row in run.seeds.drop_columns(["image"]).to_pylist() if row["status"] in reached]
    found = run.findings.select(["seed", "kind", "expected", "predicted"]).to_pylist()
    return Progress(
        done=len(store.done()),
        shards=0,
        seeds=len(done),
        queries=sum(row["queries"] for row in done),
        gradients=sum(row["gradients"] for row in done),
        failing=len({row["seed"] for row in found if row["kind"] == "label"}),
        findings=len(found),
        confusions=tuple((row["expected"], row["predicted"]) for row in found),
    )


def _history(store: Store) -> list[list[str]]:
    path = store.folder / "history.csv"
    return list(csv.reader(io.StringIO(path.read_text())))[1:] if path.is_file() else []


def _csv(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *rows])
    return text.getvalue().encode()
