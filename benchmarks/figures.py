"""One figure, and how figures are collected."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"
COLUMNS = ["name", "value", "unit", "against", "command", "commit"]
COMMANDS = {"bench-cpu": "python -m benchmarks", "bench-gpu": "python -m benchmarks gpu"}
ABOUT: Mapping[str, Any] = {
    "seeds": 0,
    "data": "mnist5k, or made",
    "device": f"cpu, {os.cpu_count()} cores",
    "versions": {"torch": metadata.version("torch"), "numpy": metadata.version("numpy")},
    "notes": [],
    "rows": [],
}
"""What a result of benchmarks says of itself where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """`value` in `unit`, compared with `against`; `command` measures it again."""

    name: str
    value: float
    unit: str
    against: str
    command: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value:.4g} {self.unit} (against {self.against})"


def collect(
    figures: Iterable[Figure],
    result: str | None = "bench-cpu",
    about: Mapping[str, Any] | None = None,
) -> None:
    """Print each figure as it comes and merge it into the stored result, newest value of a name.

    Every row has the commit that measured it. `about` is what the result says of the machine;
    without a result nothing is stored.
    """
    if result is None:
        for figure in figures:
            print(figure, flush=True)
        return
    from hardcase_studies.stored import commit, write

    path = RESULTS / f"{result}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    record = {**ABOUT, **record, **(about or {}), "name": result, "columns": COLUMNS}
    known = {row["name"]: row for row in record["rows"] if row.get("commit")}
    for figure in figures:
        print(figure, flush=True)
        known[figure.name] = {**asdict(figure), "commit": commit()}
        record["rows"] = sorted(known.values(), key=lambda row: str(row["name"]))
        record["command"] = COMMANDS.get(result, figure.command)
        write(path, record)


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def ratio(one: Callable[[], object], other: Callable[[], object], repeats: int = 5) -> float:
    """Median time of `one` over that of `other`, measured in turns so that a slow moment hits both."""
    pairs = [(seconds(one), seconds(other)) for _ in range(repeats)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
