"""What it costs to believe nothing unchecked: the ledger, checksums and identity of a campaign, and opening a verified run."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import torch

import hardcase as hc
from benchmarks.figures import Figure, seconds
from benchmarks.scale import drawn_shard, plan_of
from hardcase.runs import start
from hardcase.runs.files import Ledger
from hardcase.runs.folder import Packed, Store
from hardcase.runs.results import Run
from hardcase.runs.tables import summarise, to_parquet
from hardcase.testing.toys import toy_images, toy_subject

COMMAND = "python -m benchmarks belief"
FINDINGS = 11_000
SHARD = 100
SEEDS = 10
"""Seeds of each shard of the view."""
WATCHED = (
    (Ledger, "add"),
    (Ledger, "flush"),
    (Store, "write_record"),
    (start.Plan, "identity"),
)
"""What a campaign does to be believed later."""


def figures(size: float = 1.0) -> Iterator[Figure]:
    """`size` below 1 only shows that everything runs."""
    torch.set_num_threads(1)
    for name in ("pgd", "sinvad"):
        yield _share(name, max(32, int(1000 * size)))
    yield _view(max(SHARD, int(FINDINGS * size)))


def _share(name: str, seeds: int) -> Figure:
    """The middle one of five runs."""
    plan = plan_of(name, seeds)
    plan.source()
    shares = []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as home, _clock() as clock:
            whole = seconds(lambda place=home: start.start(plan, Path(place) / "run"))
            verified = seconds(lambda place=home: Run(Path(place) / "run").verification)
        shares.append((sum(clock) + verified) / whole)
    return Figure(
        name=f"belief-share-{name}",
        value=statistics.median(shares),
        unit="of the campaign's time",
        against=f"ledger, checksums, identity and one verified reading, {seeds} seeds; a limit of 0.01",
        command=COMMAND,
    )


def _view(findings: int) -> Figure:
    """From a folder to a verified run whose findings are in memory; the middle one of seven."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"
        found, spent = drawn_shard(SEEDS, SHARD // SEEDS)
        images = replace(toy_images(SEEDS), id=tuple(spent["id"].to_pylist()))
        hc.run(toy_subject(), images, method="pgd", out=folder, judge=False)
        store = Store(folder)
        for name in ("expected", "predicted"):  # of the four classes there are
            labels = pc.bit_wise_and(found[name], pa.scalar(3, found[name].type))
            found = found.set_column(found.column_names.index(name), name, labels)
        packed = Packed(to_parquet(found), to_parquet(spent), b"")
        for number in range(findings // SHARD):
            store.put(number, packed, summarise(found, spent))
        times = []
        for _ in range(7):
            begun = perf_counter()
            run = Run(folder)
            assert run.verification.notes is not None
            assert len(run) == findings // SHARD * SHARD
            times.append(perf_counter() - begun)
    return Figure(
        name="verified-view",
        value=statistics.median(times),
        unit="s",
        against=f"{findings:,} findings of 28 x 28 pixels of noise in shards of {SHARD}; a limit of 1 s",
        command=COMMAND,
    )


@contextmanager
def _clock() -> Iterator[list[float]]:
    """Seconds that were spent inside what is watched; none twice."""
    spent: list[float] = []
    inside = False

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def timing(*values: Any, **named: Any) -> Any:
            nonlocal inside
            if inside:
                return work(*values, **named)
            inside = True
            begun = perf_counter()
            try:
                return work(*values, **named)
            finally:
                inside = False
                spent.append(perf_counter() - begun)

        return timing

    with ExitStack() as stack:
        for place, name in WATCHED:
            stack.enter_context(patch.object(place, name, timed(getattr(place, name))))
        yield spent
