"""Charts as inline SVG. Sizes are in the chart's own units; the page stretches it to the width
there is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

WIDTH = 420
HEIGHT = 230
_LEFT = 46
_RIGHT = 20
_TOP = 14
_BOTTOM = 42


def steps(
    rows: Sequence[Mapping[str, float]],
    across: str,
    up: str,
    *,
    x: str,
    y: str,
    label: str,
    top: float = 0,
) -> Markup:
    """A count that grows: a staircase from (0, 0) through the columns `across` and `up`; `top` is
    the most there can be."""
    if not rows:
        return Markup("")
    marks = ticks(max(row[across] for row in rows))
    levels = ticks(max(top, max(row[up] for row in rows)), whole=True)
    to_x = _scale(marks[-1], _LEFT, WIDTH - _RIGHT)
    to_y = _scale(levels[-1], HEIGHT - _BOTTOM, _TOP)
    line = f"M{to_x(0):.1f} {to_y(0):.1f}" + "".join(
        f"H{to_x(row[across]):.1f}V{to_y(row[up]):.1f}" for row in rows
    )
    last = rows[-1]
    end = f'cx="{to_x(last[across]):.1f}" cy="{to_y(last[up]):.1f}"'
    parts = [
        *(_line("grid", to_y(value), WIDTH - _RIGHT) for value in levels),
        *(_text(_LEFT - 6, to_y(value) + 3.5, f"{value:,g}", "end") for value in levels),
        *(_text(to_x(value), HEIGHT - _BOTTOM + 16, f"{value:,g}") for value in marks),
        f'<path class="area" d="{line}V{to_y(0):.1f}H{to_x(0):.1f}Z"/>',
        f'<path class="line" d="{line}"/><circle class="end" {end} r="3"/>',
        _text((WIDTH + _LEFT - _RIGHT) / 2, HEIGHT - 4, x, kind="axis"),
        '<g transform="rotate(-90)">',
        _text(-(HEIGHT - _BOTTOM + _TOP) / 2, 11, y, kind="axis"),
        "</g>",
    ]
    if top:
        parts.append(_line("ceiling", to_y(top), WIDTH - _RIGHT))
    return _svg(parts, WIDTH, HEIGHT, label)


def _svg(parts: Sequence[str], width: float, height: float, label: str, kind: str = "") -> Markup:
    return Markup(  # every text inside is escaped
        f'<svg class="chart{kind}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    place = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _line(kind: str, y: float, right: float, left: float = _LEFT) -> str:
    return f'<line class="{kind}" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'


def severity(rows: Sequence[Mapping[str, float]], most: float, *, label: str) -> Markup:
    """The share failing (0 to 100 %) against severity (0 to `most`) with its interval; small."""
    width, height, left, bottom, top = 200, 120, 36, 18, 8
    to_x = _scale(most, left, width - 6)
    to_y = _scale(1.0, height - bottom, top)
    points = [(to_x(row["severity"]), row) for row in rows]
    line = "L".join(f"{x:.1f} {to_y(row['share']):.1f}" for x, row in points)
    there = [f"{x:.1f} {to_y(row['high']):.1f}" for x, row in points]
    back = [f"{x:.1f} {to_y(row['low']):.1f}" for x, row in reversed(points)]
    parts = []
    for y in (0, 0.5, 1):
        number = _text(left - 4, to_y(y) + 3.5, f"{y:.0%}", "end", "")
        parts += [_line("grid", to_y(y), width - 6, left), number]
    parts += [_text(to_x(at), height - 4, f"{at:g}", kind="") for at in (0, most / 2, most)]
    parts.append(f'<path class="area" d="M{"L".join([*there, *back])}Z"/>')
    parts.append(f'<path class="line" d="M{to_x(0):.1f} {to_y(0):.1f}L{line}"/>')
    return _svg(parts, width, height, label)


def bar(rate: Mapping[str, Any] | None, share: float | None) -> Markup:
    """One bar of the funnel: `share` of the whole width, with the interval of its rate; open where
    nothing was counted."""
    if share is None:
        return Markup(
            '<svg class="bar" aria-hidden="true"><rect class="open" width="100%" height="100%"'
            ' rx="3"/></svg>'
        )
    parts = ['<rect class="track" width="100%" height="100%" rx="3"/>']
    parts.append(f'<rect class="fill" width="{100 * share:.2f}%" height="100%" rx="3"/>')
    if rate and rate["share"]:
        low, high = (100 * share * rate[end] / rate["share"] for end in ("low", "high"))
        parts.append(f'<line class="interval" x1="{low:.2f}%" x2="{high:.2f}%" y1="50%" y2="50%"/>')
        parts += [
            f'<line class="interval" x1="{x:.2f}%" x2="{x:.2f}%" y1="28%" y2="72%"/>'
            for x in (low, high)
        ]
    return Markup(f'<svg class="bar" aria-hidden="true">{"".join(parts)}</svg>')


def box(values: Mapping[str, float], longest: float) -> Markup:
    """A distribution on a line from 0 to `longest`: 5 to 95 %, the middle half, the median."""
    at = {
        name: f"{100 * values[name] / (longest or 1):.2f}"
        for name in ("q5", "q25", "q50", "q75", "q95")
    }
    half = max(100 * (values["q75"] - values["q25"]) / (longest or 1), 0.4)
    return Markup(
        '<svg class="bar box" aria-hidden="true"><rect class="track" width="100%" height="100%"'
        f' rx="3"/><line class="whisker" x1="{at["q5"]}%" x2="{at["q95"]}%" y1="50%"'
        f' y2="50%"/><rect class="fill" x="{at["q25"]}%" width="{half:.2f}%" y="22%" height="56%"'
        f' rx="2"/><line class="median" x1="{at["q50"]}%" x2="{at["q50"]}%" y1="8%"'
        ' y2="92%"/></svg>'
    )


def ticks(largest: float, *, whole: bool = False, count: int = 4) -> list[float]:
    """Round numbers from 0 to at least `largest`."""
    rough = (largest or 1) / count
    power = 10.0 ** math.floor(math.log10(rough))
    stride = next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999
    )
    stride = max(1.0, math.ceil(stride)) if whole else stride
    return [stride * i for i in range(math.ceil((largest or 1) / stride * 0.999) + 1)]


def _scale(largest: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (end - start) * value / largest
