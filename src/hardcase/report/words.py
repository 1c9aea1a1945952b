"""Numbers as people read them: every rate with its numerator, its denominator and its interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hardcase.campaign import seconds
from hardcase.funnel import interval

Rate = dict[str, Any]
MISSING = "–"


def rate(hits: int | None, total: int | None) -> Rate | None:
    """A share with what it is a share of, and Wilson's 95 % interval; None if it was not counted."""
    if hits is None or total is None:
        return None
    low, high = interval(hits, total)
    return {"hits": hits, "total": total, "share": hits / total if total else None, "low": low, "high": high}


def share(value: Rate | None) -> str:
    """87 of 96 (90.6 %, 95 % interval 83.1 % to 95.0 %)."""
    if value is None:
        return "not judged"
    counted = f"{number(value['hits'])} of {number(value['total'])}"
    if value["share"] is None:
        return counted
    span = f"{percent(value['low'])} to {percent(value['high'])}"
    return f"{counted} ({percent(value['share'])}, 95\u00a0% interval {span})"


def percent(value: float | None) -> str:
    """One decimal; 0 % and 100 % only where nothing was rounded away."""
    if value is None or not math.isfinite(value):
        return MISSING
    if min(abs(value), abs(1 - value)) < 1e-9:
        return f"{100 * round(value)}\u00a0%"
    return f"{min(max(100 * value, 0.1), 99.9):.1f}\u00a0%"


def number(value: float | None) -> str:
    """Whole numbers with thousands set apart by commas, others with three significant digits or two decimals."""
    if value is None or not math.isfinite(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def decimal(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.2f}"


def plural(count: int, word: str) -> str:
    return f"{number(count)} {word}" if count == 1 else f"{number(count)} {word}s"


def duration(value: float | None) -> str:
    """0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if value is None:
        return MISSING
    if value < 10:
        return f"{value:.1f}\u00a0s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
    return f"{minutes // 60:,}\u00a0h {minutes % 60}\u00a0min"


def moment(text: str) -> str:
    """A stored time as people write it: 1 March 2026, 10:01 UTC."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return text
    return f"{time.day} {time:%B %Y, %H:%M} UTC"


def budget(limits: Mapping[str, Any]) -> str:
    """The limits of a campaign in words, or nothing if it had none."""
    known = {name: value for name, value in limits.items() if value is not None}
    said = []
    for name, word in (("queries", "query|queries"), ("gradients", "gradient|gradients")):
        one, many = word.split("|")
        for key, scope in ((name, "per seed"), (f"total_{name}", "in total")):
            if key in known:
                said.append(f"{number(known[key])} {one if known[key] == 1 else many} {scope}")
    if "findings" in known:
        said.append(f"{plural(known['findings'], 'finding')}")
    if "time" in known:
        said.append(duration(seconds(known["time"])))
    return " and ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else "".join(said)


def lines(value: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Nested facts (a card) as lines of name and text."""
    said = []
    for name, inner in value.items():
        full = f"{above}{name}".replace("_", " ")
        if isinstance(inner, Mapping):
            said += lines(inner, f"{full} · ")
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            said.append((full, number(inner)))
        elif inner is not None:
            said.append((full, _plainly(inner)))
    return said


def _plainly(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
