"""Two runs or more side by side: their failure rates image by image, then their searches on equal
budgets, with paired originals and tests corrected for their number.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from hardcase import statistics
from hardcase.analysis.references import changed
from hardcase.analysis.slices import attempted_labels
from hardcase.cache import write_atomically
from hardcase.environment import for_people
from hardcase.errors import HardcaseError
from hardcase.report import words
from hardcase.report.page import plain, render
from hardcase.runs.results import Run
from hardcase.statistics import Rate, accepted_by, bounded_mean_interval, median_interval
from hardcase.suite.measured import paired_rates
from hardcase.wording.numbers import difference, rate


class Tried:
    """A run, seed by seed: searched images by name, when each first failed (inf: never), the
    nearest failure of each.

    A method that stores many failures has no more chances than a method that stores the best: only
    the nearest failure of a seed counts as accepted or not."""

    def __init__(self, run: Run, name: str) -> None:
        self.name = name
        self.run = run
        tried = attempted_labels(run)
        columns = ["id", "original", "kind", "queries", "l2"]
        rows = run.findings.select(columns).to_pylist()
        rows = [row for row in rows if row["kind"] == "label" and row["original"] in tried]
        rows.sort(key=lambda row: float(row["l2"]), reverse=True)
        nearest = {row["original"]: row for row in rows}  # the last one stays
        self.first = dict.fromkeys(tried, math.inf)
        for row in rows:
            self.first[row["original"]] = min(self.first[row["original"]], float(row["queries"]))
        self.failing = {seed: seed in nearest for seed in tried}
        self.accepted: dict[str, bool] | None = None
        if run.verdicts is not None:
            verdicts = run.verdicts
            good = {seed for seed, row in nearest.items() if accepted_by(verdicts, row["id"])}
            self.accepted = {seed: seed in good for seed in tried}
        seeds = run.seeds.select(["id", "queries"]).to_pylist()
        self.spent = {row["id"]: float(row["queries"]) for row in seeds if row["id"] in tried}
        self.nearest = {seed: float(nearest[seed]["l2"]) for seed in tried if seed in nearest}


OUTCOMES = ("failing", "accepted")
"""What an image may come to; `accepted` only where both runs were judged."""
WHAT = {
    "failing": "images with a failure",
    "accepted": "images whose nearest failure is accepted",
}
Compared = Callable[[statistics.Numbers, statistics.Numbers], statistics.Test]


def pair(a: Tried, b: Tried) -> dict[str, Any]:
    """Tests of two runs: on images that both attempted where values are paired, on all failures
    where they are not."""
    shared = [seed for seed in a.failing if seed in b.failing]
    tests = [
        _outcome(name, a, b, shared)
        for name in OUTCOMES
        if shared and (name == "failing" or (a.accepted is not None and b.accepted is not None))
    ]
    if shared:
        limit = max(max(a.spent.values()), max(b.spent.values()))
        cost = [[min(sheet.first[seed], limit) for seed in shared] for sheet in (a, b)]
        how = "paired images; never failing counts as the largest cost"
        what = "queries to the first failing input"
        tests.append(_numbers(what, cost, statistics.wilcoxon, how))
    near = [list(sheet.nearest.values()) for sheet in (a, b)]
    if all(near):
        what = "L2 of the nearest failure of a failing seed"
        tests.append(_numbers(what, near, statistics.mann_whitney, "not paired"))
    return {
        "first": a.name,
        "second": b.name,
        "failure_rate": failure_rates(a.run, b.run),
        "shared_seeds": len(shared),
        "tests": tests,
        "changed": _versions(a, b, shared),
    }


def failure_rates(first: Run, second: Run) -> dict[str, Any] | None:
    """Return how the failure rates of two measured runs differ, image by image.

    Args:
        first: A run.
        second: Another; the difference is the first minus the second.

    Returns:
        The rates, their difference with its interval, and how many images both measured; or only
        why they cannot be compared; None if either run measured nothing.
    """
    if not (first.record.get("risk") and second.record.get("risk")):
        return None
    try:
        rates = paired_rates(first, second)
    except HardcaseError as problem:
        return {"why": " ".join([problem.what, *problem.why])}
    low, high = rates.bounds
    return {
        "first": rates.value,
        "second": rates.other,
        "difference": {"value": rates.value - rates.other, "low": low, "high": high},
        "images": rates.images,
        "missing": rates.missing,
    }


def _versions(a: Tried, b: Tried, shared: Sequence[str]) -> dict[str, Any] | None:
    """Fixed, still failing and newly failing images of the second run's model; None for the same
    model.

    Searches of two trainings of the same recipe differ too: this is no regression without its null
    (`hardcase.analysis.references.excess`)."""
    models = [(sheet.run.record.get("hashes") or {}).get("model") for sheet in (a, b)]
    if not shared or models[0] == models[1]:
        return None
    before, after = (torch.tensor([sheet.failing[seed] for seed in shared]) for sheet in (a, b))
    return changed(before, after).record()


def _outcome(name: str, a: Tried, b: Tried, shared: Sequence[str]) -> dict[str, Any]:
    """McNemar's test of a yes-or-no outcome on shared images, and the difference of the rates."""
    values_of_runs = [[(getattr(sheet, name) or {})[seed] for seed in shared] for sheet in (a, b)]
    first, second = (torch.tensor(values, dtype=torch.bool) for values in values_of_runs)
    gap = (first.double() - second.double()).numpy()
    low, high = bounded_mean_interval(gap, -1.0)
    only = [int((first & ~second).sum()), int((second & ~first).sum())]
    return {
        "what": WHAT[name],
        "test": "McNemar",
        "how": "paired seeds",
        "first": Rate(int(first.sum()), len(shared)).to_json(),
        "second": Rate(int(second.sum()), len(shared)).to_json(),
        "only": only,
        "difference": {"value": float(gap.mean()), "low": low, "high": high},
        "p": statistics.mcnemar(*only).p,
    }


def _numbers(
    what: str,
    values: Sequence[Sequence[float]],
    test: Compared,
    how: str,
) -> dict[str, Any]:
    first, second = values
    delta = statistics.cliffs_delta(first, second)
    return {
        "what": what,
        "test": "Wilcoxon signed-rank" if test is statistics.wilcoxon else "Mann-Whitney",
        "how": how,
        "first": median(first),
        "second": median(second),
        "a12": statistics.a12(first, second),
        "cliffs_delta": delta,
        "magnitude": statistics.magnitude(delta),
        "p": test(first, second).p,
    }


def median(values: Sequence[float]) -> dict[str, Any] | None:
    """The median, with its interval over images if there are values enough."""
    if not values:
        return None
    interval = median_interval(values)
    ends = {"low": interval.low, "high": interval.high} if interval.known else {}
    return {"median": interval.value, **ends, "count": len(values)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All results of a comparison of runs, as plain values."""

    table: dict[str, Any]

    def report(self, page: str | Path = "compare.html") -> Path:
        """Write the page and, next to it, its JSON twin."""
        return write(self.table, Path(page))


def compare(*given: Run | str | Path) -> Comparison:
    """Compare runs (or their folders) with statistics; settings that must be equal but differ come
    first.

    Args:
        given: Two or more runs or their folders.

    Example:
        >>> import tempfile
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> folder = tempfile.mkdtemp()
        >>> run = hc.run(toy_subject(), toy_images(8), method="pgd", out=folder, judge=False)
        >>> other = hc.run(
        ...     toy_subject(), toy_images(8), method="fgsm", out=tempfile.mkdtemp(), judge=False
        ... )
        >>> hc.compare(run, other).table["differ"]
        ['budget']
    """
    runs = [
        run_or_folder if isinstance(run_or_folder, Run) else Run(run_or_folder)
        for run_or_folder in given
    ]
    if len(runs) < 2:
        raise HardcaseError("a comparison needs at least two runs.", fix="hardcase compare RUN RUN")
    names = [run.folder.resolve().name for run in runs]
    if len(set(names)) < len(names):  # with their places where names do not tell them apart
        names = [f"{run.folder} ({i})" for i, run in enumerate(runs, 1)]
    sheets = [Tried(run, name) for run, name in zip(runs, names)]
    same, differ = _alike(runs)
    if "classes" in differ or "image" in differ:
        what = "classes" if "classes" in differ else "image size"
        raise HardcaseError(
            f"these runs do not have the same {what}; they cannot be compared.",
            fix="runs on the same data",
        )
    pairs = [pair(a, b) for a, b in combinations(sheets, 2)]
    tests = [test for pair in pairs for test in pair["tests"]]
    for test, corrected in zip(tests, statistics.holm([test["p"] for test in tests])):
        test["p_holm"] = corrected
    table = {
        "runs": [_described(sheet) for sheet in sheets],
        "same": same,
        "differ": differ,
        "sentence": _sentence(same, differ, any(run.store.searching for run in runs)),
        "pairs": pairs,
        "note": (
            "A run keeps the nearest failure of an image by default, so “first failing” is"
            " the earliest kept one."
        ),
    }
    return Comparison(table)


def _alike(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """What the runs share and what they do not."""
    hashes, judges = ([run.record.get(key) or {} for run in runs] for key in ("hashes", "judge"))
    tried: dict[str, list[Any]] = {
        "model": [hashes_of_run.get("model") for hashes_of_run in hashes],
        "classes": [tuple(run.record.get("classes") or ()) for run in runs],
        "image": [tuple(run.record.get("shape") or ()) for run in runs],
        "seeds": [frozenset(run.seeds["id"].to_pylist()) for run in runs],
        "budget": [tuple(sorted((run.record.get("budget") or {}).items())) for run in runs],
        "complete": [bool(run.record.get("complete")) for run in runs],
        "judge": [
            hashes_of_run.get("weights") if run.judged_by is None else run.judged_by.digest
            for run, hashes_of_run in zip(runs, judges)
        ],
    }
    same = [name for name, values in tried.items() if len(set(values)) == 1]
    return same, [name for name in tried if name not in same]


def _sentence(same: Sequence[str], differ: Sequence[str], searched: bool) -> str:
    long_names = {"image": "image size", "complete": "completeness"}
    named = [long_names.get(name, name) for name in differ]
    if not named:
        return "The runs share model, data, images, budget and judge."
    sentence = f"The runs differ in: {', '.join(named)}."
    if "budget" not in differ or not searched:
        return sentence
    return (
        "The budgets are not equal: rates and costs below cannot be read as one method being"
        f" better. {sentence}"
    )


def _described(sheet: Tried) -> dict[str, Any]:
    record = sheet.run.record
    total = len(sheet.failing)
    facts = ("method", "model", "data", "seed", "budget", "complete")
    accepted = None
    if sheet.accepted is not None:
        accepted = Rate(sum(sheet.accepted.values()), total).to_json()
    return {
        "name": sheet.name,
        **{name: record.get(name) for name in facts},
        "risk": _risk(record),
        "searched": total,
        "queries": sum(sheet.spent.values()),
        "failing": Rate(sum(sheet.failing.values()), total).to_json(),
        "accepted": accepted,
        "clusters": (sheet.run.record.get("search_results") or {}).get("clusters"),
        "l2": median(list(sheet.nearest.values())),
    }


def _risk(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The failure rate of a run with its interval, if it was measured."""
    risk = record.get("risk")
    return risk and {name: risk[name] for name in ("value", "low", "high", "images")}


def write(table: Mapping[str, Any], page: Path) -> Path:
    """Write `page` and, next to it, its JSON twin."""
    filters = {name: getattr(words, name) for name in ("share", "number", "decimal")}
    filters |= {"rate": rate, "points": difference}
    filters |= {"limits": words.budget, "middle": _middle, "effect": _effect, "small": _small}
    record = for_people(plain(table))
    html = render(Path(__file__).with_name("comparison.html"), filters, table=record)
    twin = json.dumps(record, indent=1, allow_nan=False)
    write_atomically(page.with_suffix(".json"), twin.encode())
    return write_atomically(page, html.encode())


def _middle(side: Mapping[str, Any] | None) -> str:
    """A median with its interval."""
    if side is None:
        return words.MISSING
    ends = ""
    if "low" in side:
        ends = f" ({side['low']:.4g} to {side['high']:.4g})"
    return f"median {side['median']:.4g}{ends} of {side['count']}"


def _effect(test: Mapping[str, Any]) -> str:
    if "a12" in test:
        return (
            f"A12 {test['a12']:.2f}, Cliff’s delta {test['cliffs_delta']:+.2f}"
            f" ({test['magnitude']})"
        )
    gap = test["difference"]
    only = f"only first {test['only'][0]}, only second {test['only'][1]}"
    if gap is None:
        return only
    return f"difference {gap['value']:+.1%} ({gap['low']:+.1%} to {gap['high']:+.1%}); {only}"


def _small(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
