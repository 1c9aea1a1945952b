"""What a search was, and what it found, as people write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.environment import duration
from hardcase.types import KINDS

__all__ = ["forecast_in_words", "kinds_in_words", "settings_in_words"]

WORTH_TELLING = 10.0
"""Seconds that a run takes from which on it says beforehand how long."""

_KIND_WORDS = {
    "label": ("failing", "failing"),
    "disagreement": ("disagreement", "disagreements"),
    "non_finite": ("answer that is not a number", "answers that are not numbers"),
    "surprise": ("surprise", "surprises"),
}


def settings_in_words(options: Mapping[str, Any]) -> str:
    """The options of a method as people write them; grey levels as parts of 255.

    Example:
        >>> settings_in_words({"epsilon": 8 / 255, "norm": "linf", "step_size": None})
        'epsilon 8/255, norm linf'
    """
    shown = {name: value for name, value in options.items() if value not in (None, "")}
    return ", ".join(f"{name.replace('_', ' ')} {_setting(value)}" for name, value in shown.items())


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and 0 < value < 1:
        levels = value * 255
        near = abs(levels - round(levels)) < 1e-6
        return f"{round(levels)}/255" if near and value * 100 % 1 > 1e-6 else f"{value:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def kinds_in_words(kinds: Mapping[str, int]) -> str:
    """How many findings there are of each kind; only what leaves its seed's label is failing.

    Example:
        >>> kinds_in_words({"label": 3, "disagreement": 5})
        '8 findings: 3 failing, 5 disagreements'
    """
    total = sum(kinds.values())
    head = f"{total:,} finding{'' if total == 1 else 's'}"
    present = [(name, number) for name in KINDS if (number := kinds.get(name, 0))]
    kinds_text = [f"{number:,} {_KIND_WORDS[name][number != 1]}" for name, number in present]
    return f"{head}: {', '.join(kinds_text)}" if kinds_text else head


def forecast_in_words(measuring: float, searching: tuple[float, float] | None) -> str:
    """How long a run takes, phase by phase; nothing where that is not worth a line.

    Args:
        measuring: Seconds that measuring takes.
        searching: Seconds that the search takes usually, and at most; None: networks are trained
            for it first.

    Example:
        >>> forecast_in_words(20.0, (40.0, 100.0)).partition(";")[0]
        'in all about 1 min 0 s: measuring 20 s, the search 40 s (at most 1 min 40 s)'
        >>> forecast_in_words(2.0, (0.0, 0.0))
        ''
    """
    usual, most = searching or (0.0, 0.0)
    seconds = measuring + usual
    if seconds < WORTH_TELLING:
        return ""
    first = f"measuring {duration(measuring)}"
    if searching is None:
        return f"{first}; then networks are trained for the search, which says how long that takes"
    if not most:
        return f"{first} in all"
    search = f"the search {duration(usual)} (at most {duration(most)})"
    return f"in all about {duration(seconds)}: {first}, {search}; the label check comes on top"
