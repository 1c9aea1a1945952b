"""Two runs against each other: a test for each question, effect sizes, intervals by resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hardcase import statistics
from hardcase.funnel import interval
from hardcase.suite.tried import Tried

OUTCOMES = ("failing", "confirmed")
"""What a seed may come to; `confirmed` only where both runs were judged."""
Compared = Callable[[statistics.Numbers, statistics.Numbers], statistics.Test]


def pair(a: Tried, b: Tried, rng: torch.Generator) -> dict[str, Any]:
    """Tests of two runs: on seeds that both attempted where values are paired, on all tests where they are not."""
    shared = [seed for seed in a.failing if seed in b.failing]
    tests = [
        _outcome(name, a, b, shared, rng)
        for name in OUTCOMES
        if shared and (name == "failing" or (a.confirmed is not None and b.confirmed is not None))
    ]
    if shared:
        limit = max(max(a.spent.values()), max(b.spent.values()))
        cost = [[min(sheet.first[seed], limit) for seed in shared] for sheet in (a, b)]
        tests.append(
            _numbers(
                "queries to the first failing test",
                cost,
                statistics.wilcoxon,
                "paired seeds; never failing counts as the largest cost",
                rng,
            )
        )
    near = [list(sheet.nearest.values()) for sheet in (a, b)]
    if all(near):
        tests.append(
            _numbers("L2 of the nearest test of a failing seed", near, statistics.mann_whitney, "not paired", rng)
        )
    return {"first": a.name, "second": b.name, "shared_seeds": len(shared), "tests": tests}


def _outcome(name: str, a: Tried, b: Tried, shared: Sequence[str], rng: torch.Generator) -> dict[str, Any]:
    """McNemar's test of a yes-or-no outcome on shared seeds, and the difference of the rates."""
    said = [[(getattr(sheet, name) or {})[seed] for seed in shared] for sheet in (a, b)]
    one, two = (torch.tensor(values, dtype=torch.float64) for values in said)
    gap = statistics.bootstrap(lambda x, y: x.mean(-1) - y.mean(-1), (one, two), rng=rng) if len(shared) > 1 else None
    only = [int(((one > two) if first else (two > one)).sum()) for first in (True, False)]
    return {
        "what": f"seeds with a {name} test",
        "test": "McNemar",
        "how": "paired seeds",
        "first": share(int(one.sum()), len(shared)),
        "second": share(int(two.sum()), len(shared)),
        "only": only,
        "difference": None if gap is None else {"value": gap.value, "low": gap.low, "high": gap.high},
        "p": statistics.mcnemar(*only).p,
    }


def _numbers(
    what: str,
    values: Sequence[Sequence[float]],
    test: Compared,
    how: str,
    rng: torch.Generator,
) -> dict[str, Any]:
    one, two = values
    delta = statistics.cliffs_delta(one, two)
    return {
        "what": what,
        "test": "Wilcoxon signed-rank" if test is statistics.wilcoxon else "Mann-Whitney",
        "how": how,
        "first": median(one, rng),
        "second": median(two, rng),
        "a12": statistics.a12(one, two),
        "cliffs_delta": delta,
        "magnitude": statistics.magnitude(delta),
        "p": test(one, two).p,
    }


def correct(pairs: Sequence[dict[str, Any]]) -> None:
    """Holm's correction over every test of the page."""
    tests = [test for pair in pairs for test in pair["tests"]]
    for test, corrected in zip(tests, statistics.holm([test["p"] for test in tests])):
        test["p_holm"] = corrected


def median(values: Sequence[float], rng: torch.Generator | None = None) -> dict[str, Any] | None:
    """The median, with a bootstrap interval if `rng` is given and there are values enough."""
    if not values:
        return None
    middle = float(torch.tensor(values, dtype=torch.float64).median())
    if rng is None or len(values) < 2:
        return {"median": middle, "count": len(values)}
    ends = statistics.bootstrap(_middle, (values,), rng=rng, repeats=500)
    return {"median": middle, "low": ends.low, "high": ends.high, "count": len(values)}


def _middle(sample: Tensor) -> Tensor:
    return sample.median(-1).values


def share(hits: int, total: int) -> dict[str, Any]:
    low, high = interval(hits, total)
    return {"hits": hits, "total": total, "share": hits / total if total else None, "low": low, "high": high}
