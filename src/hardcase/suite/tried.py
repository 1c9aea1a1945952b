"""One run seed by seed, as comparisons need it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hardcase.results import Run


@dataclass(frozen=True, slots=True)
class Tried:
    """One run, seed by seed: attempted seeds by name, when each first failed (inf: never), the nearest test of each."""

    name: str
    run: Run
    failing: dict[str, bool]
    confirmed: dict[str, bool] | None
    first: dict[str, float]
    spent: dict[str, float]
    nearest: dict[str, float]

    @staticmethod
    def of(run: Run, name: str) -> Tried:
        seeds = run.seeds.select(["id", "status", "looked", "queries"]).to_pylist()
        tried = {
            row["id"]: float(row["queries"])
            for row in seeds
            if row["status"] in ("done", "out of time") and row["looked"]
        }
        rows = [
            row for row in run.findings.select(["id", "seed", "kind", "queries", "l2"]).to_pylist()
            if row["kind"] == "label" and row["seed"] in tried
        ]  # fmt: skip
        said, seen = run.verdicts, {row["seed"] for row in rows}
        good = None if said is None else {row["seed"] for row in rows if _confirmed(said.get(row["id"], {}))}
        return Tried(
            name,
            run,
            failing={seed: seed in seen for seed in tried},
            confirmed=None if good is None else {seed: seed in good for seed in tried},
            first=_least(tried, rows, "queries"),
            spent=tried,
            nearest={seed: value for seed, value in _least(tried, rows, "l2").items() if math.isfinite(value)},
        )


def _least(tried: dict[str, float], rows: Sequence[dict[str, Any]], column: str) -> dict[str, float]:
    least = dict.fromkeys(tried, math.inf)
    for row in rows:
        least[row["seed"]] = min(least[row["seed"]], float(row[column]))
    return least


def _confirmed(said: dict[str, Any]) -> bool:
    return bool(said.get("valid") and said.get("label_kept"))
