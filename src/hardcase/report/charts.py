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
    """A count that grows: a staircase from (0, 0) through the columns `across` and `up`;
    `top` is the most there can be.
    """
    if not rows:
        return Markup("")
    marks = ticks(max(row[across] for row in rows))
    levels = ticks(max(top, max(row[up] for row in rows)), whole=True)
    to_x = _scale(marks[-1], _LEFT, WIDTH - _RIGHT)
    to_y = _scale(levels[-1], HEIGHT - _BOTTOM, _TOP)
    line = f"M{to_x(0):.1f} {to_y(0):.1f}" + "".join(
        f"H{to_x(row[across]):.1f}V{to_y(row[up]):.1f}" for row in rows
    )
    end = to_y(rows[-1][up])
    parts = [
        *(_level(to_y(value), f"{value:,g}") for value in levels),
        *(_mark(to_x(value), f"{value:,g}") for value in marks),
        (
            f'<path class="area" d="{line}V{to_y(0):.1f}H{to_x(0):.1f}Z"/><path class="line"'
            f' d="{line}"/>'
        ),
        f'<circle class="end" cx="{to_x(rows[-1][across]):.1f}" cy="{end:.1f}" r="3"/>',
        _ceiling(to_y(top)) if top else "",
        (
            f'<text class="axis" x="{(WIDTH + _LEFT - _RIGHT) / 2}" y="{HEIGHT - 4}"'
            f' text-anchor="middle">{escape(x)}</text>'
        ),
        (
            f'<text class="axis" x="{-(HEIGHT - _BOTTOM + _TOP) / 2}" y="11" text-anchor="middle"'
            f' transform="rotate(-90)">{escape(y)}</text>'
        ),
    ]
    return Markup(  # every text above is escaped
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def staircases(lines: Mapping[str, Sequence[tuple[float, float]]], *, x: str, label: str) -> Markup:
    """Shares that fall: a staircase through the points of each line, with its name at its end."""
    width, height, right = 640, 260, 520
    marks = ticks(max((at for line in lines.values() for at, _ in line), default=1))
    to_x = _scale(marks[-1], _LEFT, right)
    to_y = _scale(1.0, height - _BOTTOM, _TOP)
    parts = [_level(to_y(value), f"{value:.0%}", right) for value in (0, 0.25, 0.5, 0.75, 1)]
    parts += [_mark(to_x(value), f"{value:,g}", height) for value in marks]
    for number, (name, line) in enumerate(lines.items()):
        points = [(to_x(at), to_y(share)) for at, share in line]
        steps = "".join(f"H{a:.1f}V{b:.1f}" for a, b in points[1:])
        start = "M{:.1f} {:.1f}".format(*points[0])
        parts.append(f'<path class="line c{number % 4}" d="{start}{steps}"/>')
        end, last = points[-1]
        parts.append(
            f'<text class="name" x="{end + 5:.1f}"'
            f' y="{last + 4 - 12 * (number % 2):.1f}">{escape(name)}</text>'
        )
    parts.append(
        f'<text class="axis" x="{(_LEFT + right) / 2}" y="{height - 4}" text-anchor="middle">'
        f"{escape(x)}</text>"
    )
    return Markup(  # every text above is escaped
        f'<svg class="chart curves" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def severity(rows: Sequence[Mapping[str, float]], most: float, *, label: str) -> Markup:
    """The share failing (0 to 100 %) against severity (0 to `most`) with its interval; small."""
    width, height, left, bottom, top = 200, 120, 36, 18, 8
    to_x = _scale(most, left, width - 6)
    to_y = _scale(1.0, height - bottom, top)
    points = [(to_x(row["severity"]), row) for row in rows]
    line = "L".join(f"{x:.1f} {to_y(row['share']):.1f}" for x, row in points)
    there = [f"{x:.1f} {to_y(row['high']):.1f}" for x, row in points]
    back = [f"{x:.1f} {to_y(row['low']):.1f}" for x, row in reversed(points)]
    levels = "".join(
        f'<line class="grid" x1="{left}" x2="{width - 6}" y1="{to_y(y):.1f}" y2="{to_y(y):.1f}"/>'
        f'<text x="{left - 4}" y="{to_y(y) + 3.5:.1f}" text-anchor="end">{y:.0%}</text>'
        for y in (0, 0.5, 1)
    )
    marks = "".join(
        f'<text x="{to_x(at):.1f}" y="{height - 4}" text-anchor="middle">{at:g}</text>'
        for at in (0, most / 2, most)
    )
    return Markup(  # numbers only, and a label that is escaped
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(label)}">{levels}{marks}'
        f'<path class="area" d="M{"L".join([*there, *back])}Z"/>'
        f'<path class="line" d="M{to_x(0):.1f} {to_y(0):.1f}L{line}"/></svg>'
    )


def bar(rate: Mapping[str, Any] | None, share: float | None) -> Markup:
    """One bar of the funnel: `share` of the whole width, with the interval of its rate;
    open where nothing was counted.
    """
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


def _ceiling(y: float) -> str:
    return f'<line class="ceiling" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _level(y: float, text: str, right: float = WIDTH - _RIGHT) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/><text'
        f' class="tick" x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _mark(x: float, text: str, height: float = HEIGHT) -> str:
    return (
        f'<text class="tick" x="{x:.1f}" y="{height - _BOTTOM + 16}"'
        f' text-anchor="middle">{escape(text)}</text>'
    )
