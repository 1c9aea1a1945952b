"""One figure, and how the figures of one sitting are collected."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
COLUMNS = ["name", "value", "unit", "against", "command", "commit", "load", "code"]
COMMANDS = {"bench-cpu": "make bench", "bench-gpu": "make gpu"}
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
    """Print each figure as it comes and add it to the stored result.

    Every row has its own commit, the load of the machine when it was measured and the hash of the
    code that was imported by then. Rows that are not measured now stay as they are: `stale_rows`
    says which are older than their code, and pages mark those of other commits than the last.

    Args:
        figures: Measured one after the other as they are asked for.
        result: Name of the stored result; without one nothing is stored.
        about: What the result says of the machine.
    """
    if result is None:
        for figure in figures:
            print(figure, flush=True)
        return
    from hardcase_studies.stored import commit, write

    path = RESULTS / f"{result}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    now = commit()
    record = {**ABOUT, **record, **(about or {}), "name": result, "columns": COLUMNS}
    exercised = dict(record.get("exercised", {}))
    known = {row["name"]: row for row in record["rows"]}
    for figure in figures:
        print(figure, flush=True)
        files = imported_files()
        code = hash_of(files)
        exercised[code] = files
        load = round(os.getloadavg()[0], 2)
        known[figure.name] = {**asdict(figure), "commit": now, "load": load, "code": code}
        record["rows"] = sorted(known.values(), key=lambda row: str(row["name"]))
        codes = {row["code"] for row in known.values()}
        record["exercised"] = {name: exercised[name] for name in sorted(codes & set(exercised))}
        record["command"] = COMMANDS.get(result, figure.command)
        write(path, record)


def imported_files() -> list[str]:
    """Files of this checkout that this process has imported: the code that a figure exercises."""
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {Path(path).resolve() for path in paths if path}
    own = {path.relative_to(ROOT) for path in files if path.is_relative_to(ROOT)}
    return sorted(str(path) for path in own if path.suffix == ".py" and path.parts[0] != ".venv")


def hash_of(files: Iterable[str]) -> str:
    """One short hash of the contents of several files of the checkout; one that is gone counts."""
    contents = hashlib.sha256()
    for file in files:
        path = ROOT / file
        contents.update(path.read_bytes() if path.is_file() else b"gone")
    return contents.hexdigest()[:16]


def stale_rows(record: Mapping[str, Any]) -> list[str]:
    """Names of the rows whose code was changed since they were measured."""
    exercised = record.get("exercised", {})
    current = {code for code, files in exercised.items() if hash_of(files) == code}
    return [row["name"] for row in record["rows"] if row.get("code") not in current]


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def ratio(one: Callable[[], object], other: Callable[[], object], repeats: int = 5) -> float:
    """Median time of `one` over that of `other`, measured in turns so that a slow moment hits both."""
    pairs = [(seconds(one), seconds(other)) for _ in range(repeats)]
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
