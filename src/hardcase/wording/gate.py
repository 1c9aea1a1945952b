"""What a gate says: a line for every limit, with its figure, its interval and what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hardcase.wording.numbers import percent, points, span

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardcase.statistics import LimitDecision
    from hardcase.suite.measured import PairedRates

    Vector = NDArray[np.float64]

__all__ = [
    *("MEASURE_MORE", "conditions_line", "conditions_name", "counted_line", "difference_line"),
    *("first_line", "limit_words", "rate_line", "ties_line"),
]

MEASURE_MORE = "more images: hardcase run ... --measure all"
"""What decides where no number of images is known."""


def limit_words(share: float) -> str:
    """Return a limit in per cent, with as many digits as it was given.

    Example:
        >>> limit_words(0.05), limit_words(0.0025)
        ('5 %', '0.25 %')
    """
    return f"{100 * share:.4f}".rstrip("0").rstrip(".") + " %"


def conditions_name(record: Mapping[str, Any]) -> str:
    """Return what conditions a run declared; a name alone proves nothing, see `conditions_line`.

    Example:
        >>> conditions_name({"conditions": {"name": "scanner", "rotation": "±8 deg"}})
        'scanner conditions'
    """
    declared = record.get("conditions") or {}
    if not declared:
        return "no conditions"
    return f"{declared.get('name', 'declared')} conditions"


def conditions_line(record: Mapping[str, Any]) -> str:
    """Return what the conditions of a run are, whatever they are called.

    Example:
        >>> conditions_line({"conditions": {"name": "scanner", "rotation": "±8 deg"}})
        'scanner: rotation ±8 deg'
    """
    declared = dict(record.get("conditions") or {})
    name = declared.pop("name", "declared")
    ranges = ", ".join(f"{key} {value}" for key, value in declared.items())
    return f"{name}: {ranges}" if declared else "none: unmodified images alone"


def rate_line(
    name: str, decision: LimitDecision, images: int, record: Mapping[str, Any] | None = None
) -> str:
    """Return one line about a rate and its limit."""
    under = "" if record is None else f" under {conditions_name(record)}"
    figure = (
        f"{percent(decision.value)} ({span(decision.low, decision.high)})"
        if images
        else "not known"
    )
    return f"{name} {figure}, limit {limit_words(decision.limit)}{under}, {images:,} images"


def difference_line(
    what: str, decision: LimitDecision, rates: PairedRates, record: Mapping[str, Any]
) -> str:
    """Return one line about how much more often a model fails than another."""
    bounds = f"{100 * decision.low:+.1f} to {100 * decision.high:+.1f}"
    under = f", under {conditions_name(record)}" if record else ""
    missing = f"; {rates.missing:,} images of the baseline are missing" if rates.missing else ""
    return (
        f"{what} {percent(rates.value)}, {rates.name} {percent(rates.other)}: difference"
        f" {points(rates.value - rates.other)} ({bounds}), limit {points(decision.limit)}{under},"
        f" {rates.images:,} common images{missing}"
    )


def ties_line(least: Vector, most: Vector) -> str:
    """Return what would decide where answers are ties; nothing where none is."""
    tied = int((least != most).sum())
    if not tied:
        return ""
    return f"a model without ties: on {tied:,} images the label shares the largest output"


def counted_line(name: str, decided: LimitDecision, least: int, most: int, total: int) -> str:
    """Return one line about a share of the searched images."""
    unsure = f", with {most - least:,} unsure ones {percent(most / total)}" if most > least else ""
    value = percent(least / total) if total else "not known"
    return (
        f"{name}: {least:,} of {total:,} searched images = {value}"
        f" ({span(decided.low, decided.high)}){unsure}, limit {limit_words(decided.limit)}"
    )


def first_line(outcome: str, model: str, passed: int, total: int) -> str:
    """Return the first line of a gate: its first word, and how many limits hold.

    Example:
        >>> first_line("pass", "zoo:lenet5", 2, 2)
        'PASS  zoo:lenet5: 2 of 2 limits hold'
    """
    return f"{outcome.upper()}  {model}: {passed} of {total} limits hold"
