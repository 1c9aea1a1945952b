"""Two runs or more side by side: equal budgets, paired seeds, tests corrected for their number, curves over queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from hardcase.errors import Problem
from hardcase.randomness import stream
from hardcase.results import Run
from hardcase.suite.pairing import correct, median, pair, share
from hardcase.suite.survival import survival
from hardcase.suite.tried import Tried


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that is said of some runs side by side, as plain values."""

    table: dict[str, Any]

    def report(self, page: str | Path = "compare.html") -> Path:
        """Write the page and, beside it, its JSON twin."""
        from hardcase.suite.comparison import write

        return write(self.table, Path(page))


def compare(*given: Run | str | Path, seed: int = 0) -> Comparison:
    """Compare runs (or their folders) with statistics; what must be equal and is not is said first."""
    runs = [one if isinstance(one, Run) else Run(one) for one in given]
    if len(runs) < 2:
        raise Problem("a comparison needs at least two runs.", fix="hardcase compare RUN RUN")
    sheets = [Tried.of(run, name) for run, name in zip(runs, _names(runs))]
    same, differ = _alike(runs)
    if "classes" in differ or "image" in differ:
        what = "classes" if "classes" in differ else "image size"
        raise Problem(f"these runs do not have the same {what}; they cannot be compared.", fix="runs on the same data")
    pairs = [pair(a, b, stream(seed, "compare", a.name, b.name)) for a, b in combinations(sheets, 2)]
    correct(pairs)
    table = {
        "runs": [_described(sheet) for sheet in sheets],
        "same": same,
        "differ": differ,
        "sentence": _sentence(same, differ),
        "pairs": pairs,
        "note": "A run keeps the nearest test of a seed unless told otherwise, so “first failing” is the earliest kept one.",
    }
    return Comparison(table)


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names; longer ones where they are not told apart by them."""
    names = [run.folder.resolve().name for run in runs]
    if len(set(names)) == len(names):
        return names
    longer = [str(run.folder) for run in runs]
    return longer if len(set(longer)) == len(longer) else [f"{name} ({i})" for i, name in enumerate(longer, 1)]


def _alike(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """What the runs share and what they do not."""
    hashes = [run.record.get("hashes") or {} for run in runs]
    tried: dict[str, list[Any]] = {
        "model": [known.get("subject") for known in hashes],
        "classes": [tuple(run.record.get("classes") or ()) for run in runs],
        "image": [tuple(run.record.get("image") or ()) for run in runs],
        "seeds": [frozenset(run.seeds["id"].to_pylist()) for run in runs],
        "budget": [_budget(run) for run in runs],
        "complete": [bool(run.record.get("complete")) for run in runs],
        "judge": [(run.record.get("judge") or {}).get("weights") for run in runs],
    }
    same = [name for name, values in tried.items() if len(set(values)) == 1]
    return same, [name for name in tried if name not in same]


def _budget(run: Run) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((run.record.get("budget") or {}).items()))


def _sentence(same: Sequence[str], differ: Sequence[str]) -> str:
    words = {"image": "image size", "complete": "completeness"}
    told = [words.get(name, name) for name in differ]
    if not told:
        return "The runs share model, data, seeds, budget and judge."
    care = (
        "The budgets are not equal: rates and costs below cannot be read as one method being better. "
        if "budget" in differ
        else ""
    )
    return f"{care}The runs differ in: {', '.join(told)}."


def _described(sheet: Tried) -> dict[str, Any]:
    record, total = sheet.run.record, len(sheet.failing)
    return {
        "name": sheet.name,
        **{name: record.get(name) for name in ("method", "model", "data", "seed", "budget", "complete")},
        "attempted": total,
        "queries": sum(sheet.spent.values()),
        "failing": share(sum(sheet.failing.values()), total),
        "confirmed": None if sheet.confirmed is None else share(sum(sheet.confirmed.values()), total),
        "distinct": (sheet.run.record.get("funnel") or {}).get("distinct"),
        "l2": median(list(sheet.nearest.values())),
        "survival": survival([sheet.first[seed] for seed in sheet.first], [sheet.spent[seed] for seed in sheet.first]),
    }
