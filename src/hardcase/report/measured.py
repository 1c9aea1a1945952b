"""What the measurement says beyond its one figure: the failure rate of each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardcase.errors import HardcaseError
from hardcase.runs.measured import Measured
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import Run
from hardcase.statistics.bounded import bounded_mean_interval
from hardcase.wording.numbers import difference, percent, rate

__all__ = ["class_rates", "shown_effects"]

CLASSES_SHOWN = 20
"""Classes with an interval: those that fail most often."""
LEVEL = 0.05
"""The chance, at most, that any interval of the table misses."""


def class_rates(run: Run) -> list[dict[str, Any]]:
    """Return the failure rate of each class, the highest first; nothing without a measurement.

    The intervals hold together: each leaves out its share of the error of all classes. Classes
    beyond those shown have a rate without one.
    """
    try:
        rows = measured_rows(run.store)
    except HardcaseError:  # a damaged table: the rest of the page can be written
        return []
    labels = np.unique(rows.label).tolist()
    if len(labels) < 2:
        return []
    rates = [_class_rate(rows, label) for label in labels]
    rates.sort(key=lambda row: (-row["value"], row["label"]))
    level = 1 - LEVEL / len(labels)
    for row in rates[:CLASSES_SHOWN]:
        part = rows.take(rows.label == row["label"])
        bounds = bounded_mean_interval(part.shares, 0, 1, level=level, clusters=part.clusters)
        row |= {"low": bounds.low, "high": bounds.high}
        row["text"] = rate(row)
    return rates


def _class_rate(rows: Measured, label: int) -> dict[str, Any]:
    of_class = rows.label == label
    value, unmodified = float(rows.shares[of_class].mean()), float(rows.wrong[of_class].mean())
    return {
        "label": label,
        "images": int(of_class.sum()),
        "value": value,
        "low": None,
        "high": None,
        "text": percent(value),
        "unmodified": unmodified,
        "unmodified_text": percent(unmodified),
    }


def shown_effects(risk: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the conditions whose effect is beyond doubt, the largest first."""
    effects: Sequence[Mapping[str, Any]] = (risk or {}).get("effects") or ()
    return [
        {**row, "name": row["condition"].replace("_", " "), "text": difference(row)}
        for row in effects
        if row.get("shown", row["low"] > 0 or row["high"] < 0)
    ]
