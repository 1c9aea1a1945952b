"""How numbers are written: shares in per cent, differences in percentage points, each with its
interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["difference", "percent", "points", "rate", "span"]


def percent(share: float) -> str:
    """Return a share in per cent, with another digit below one tenth.

    Example:
        >>> percent(0.0243), percent(0.0004), percent(0.0)
        ('2.4 %', '0.04 %', '0.0 %')
    """
    return f"{_digits(100 * share)} %"


def _digits(value: float) -> str:
    small = 0 < abs(value) < 0.1
    return f"{value:.2f}" if small else f"{value:.1f}"


def span(low: float, high: float) -> str:
    """Return an interval of shares in per cent: ``1.7 to 3.3``."""
    return f"{_digits(100 * low)} to {_digits(100 * high)}"


def rate(record: Mapping[str, Any]) -> str:
    """Return a rate with its interval.

    Example:
        >>> rate({"value": 0.024, "low": 0.017, "high": 0.033})
        '2.4 % (1.7 to 3.3)'
    """
    return f"{percent(record['value'])} ({span(record['low'], record['high'])})"


def points(share: float) -> str:
    """Return a difference of shares in percentage points: ``-1.4 pp``."""
    return f"{100 * share:+.1f} pp"


def difference(record: Mapping[str, Any]) -> str:
    """Return a difference of rates with its interval.

    Example:
        >>> difference({"value": -0.0135, "low": -0.0219, "high": -0.0056})
        '-1.4 pp (-2.2 to -0.6)'
    """
    return f"{points(record['value'])} ({100 * record['low']:+.1f} to {100 * record['high']:+.1f})"
