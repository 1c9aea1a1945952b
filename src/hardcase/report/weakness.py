"""Where the model is weak: which classes it takes for which, and how often each class fails."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from hardcase import funnel
from hardcase.report.sheet import Sheet
from hardcase.report.words import rate

CLASSES_SHOWN = 20
"""A matrix of more classes than this cannot be read: the ones with the most tests are shown."""


def weakness(sheet: Sheet, classes: tuple[str, ...]) -> dict[str, Any]:
    """Pairs of classes with their tests, the classes worth a line of the matrix, and a row per class."""
    pairs = _pairs(sheet)
    shown = _shown(pairs, len(classes))
    at = {(pair["expected"], pair["predicted"]): pair for pair in pairs}
    largest = max((pair["tests"] for pair in pairs), default=0)
    return {
        "pairs": pairs,
        "largest": largest,
        "shown": shown,
        "matrix": [[at.get((expected, predicted)) for predicted in shown] for expected in shown],
        "left_out": len(classes) - len(shown),
        "classes": _per_class(sheet, classes, pairs),
    }


def _pairs(sheet: Sheet) -> list[dict[str, Any]]:
    """Every expected → predicted pair that occurs, most tests first."""
    seeds: dict[tuple[int, int], list[str]] = defaultdict(list)
    rows = np.flatnonzero(sheet.label)
    for row, expected, predicted in zip(rows.tolist(), sheet.expected[rows].tolist(), sheet.predicted[rows].tolist()):
        seeds[expected, predicted].append(sheet.seed[row])
    found = [
        {"expected": expected, "predicted": predicted, "tests": len(names), "seeds": len(set(names))}
        for (expected, predicted), names in seeds.items()
    ]
    return sorted(found, key=lambda pair: (-pair["tests"], pair["expected"], pair["predicted"]))


def _shown(pairs: list[dict[str, Any]], count: int) -> list[int]:
    if count <= CLASSES_SHOWN:
        return list(range(count))
    tests = np.zeros(count, dtype=np.int64)
    for pair in pairs:
        tests[[pair["expected"], pair["predicted"]]] += pair["tests"]
    busiest = np.argsort(-tests, kind="stable")[:CLASSES_SHOWN]
    return sorted(int(label) for label in busiest if tests[label])


def _per_class(sheet: Sheet, classes: tuple[str, ...], pairs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seeds, findings = defaultdict(list), defaultdict(list)
    for row in sheet.seeds.values():
        seeds[row["label"]].append(row)
    for i, expected in enumerate(sheet.expected.tolist()):
        findings[expected].append({"id": sheet.id[i], "seed": sheet.seed[i], "kind": sheet.kind[i]})
    commonest = {pair["expected"]: pair for pair in reversed(pairs)}
    rows = []
    for label in range(len(classes)):
        counts = funnel.count(seeds[label], findings[label], sheet.verdicts)["funnel"]
        steps = {name: counts[name] for name in ("seeds", "usable", "attempted")}
        rates = {name: rate(counts[name], counts["attempted"]) for name in ("failing", "confirmed")}
        taken = commonest.get(label)
        said = None if taken is None else {name: taken[name] for name in ("predicted", "tests")}
        rows.append({"label": label, **steps, **rates, "taken_for": said})
    return rows
