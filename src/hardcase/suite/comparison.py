"""The page of a comparison, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from hardcase.cache import write_atomically
from hardcase.report import HERE as REPORT
from hardcase.report import charts, words
from hardcase.report.content import plain

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 260, 46, 120, 14, 42


def write(table: Mapping[str, Any], page: Path) -> Path:
    """Write `page` and, beside it, its JSON twin."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {name: getattr(words, name) for name in ("share", "number", "decimal")}
    environment.filters |= {"limits": words.budget, "middle": _middle, "effect": _effect, "small": _small}
    style = Markup((REPORT / "style.css").read_text(encoding="utf-8"))  # ours, not input
    html = environment.get_template("comparison.html").render(
        table=plain(table), style=style, curves=curves(table["runs"])
    )
    write_atomically(page.with_suffix(".json"), json.dumps(plain(table), indent=1, allow_nan=False).encode())
    return write_atomically(page, html.encode())


def curves(runs: Sequence[Mapping[str, Any]]) -> Markup:
    """A falling staircase for every run, named at its end."""
    marks = charts.ticks(max((point["queries"] for run in runs for point in run["survival"]), default=1))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [_level(bottom - (bottom - TOP) * value, f"{value:.0%}") for value in (0, 0.25, 0.5, 0.75, 1)]
    parts += [
        f'<text class="tick" x="{LEFT + (right - LEFT) * value / marks[-1]:.1f}" y="{bottom + 16}" text-anchor="middle">'
        f"{value:,g}</text>"
        for value in marks
    ]
    for number, run in enumerate(runs):
        points = [
            (LEFT + (right - LEFT) * point["queries"] / marks[-1], bottom - (bottom - TOP) * point["alive"])
            for point in run["survival"]
        ]
        line = f"M{points[0][0]:.1f} {points[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in points[1:])
        parts.append(f'<path class="line c{number % 4}" d="{line}"/>')
        x, y = points[-1]
        parts.append(
            f'<text class="name" x="{x + 5:.1f}" y="{y + 4 - 12 * (number % 2):.1f}">{escape(run["name"])}</text>'
        )
    parts.append(
        f'<text class="axis" x="{(LEFT + right) / 2}" y="{HEIGHT - 4}" text-anchor="middle">queries of a seed</text>'
    )
    label = "Share of attempted seeds without a failing test over queries, a line for each run"
    return Markup(  # every text above is escaped
        f'<svg class="chart curves" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


def _level(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'
    )


def _middle(side: Mapping[str, Any] | None) -> str:
    """A median with its interval."""
    if side is None:
        return words.MISSING
    ends = f" ({side['low']:.4g} to {side['high']:.4g})" if "low" in side else ""
    return f"median {side['median']:.4g}{ends} of {side['count']}"


def _effect(test: Mapping[str, Any]) -> str:
    if "a12" in test:
        return f"A12 {test['a12']:.2f}, Cliff’s delta {test['cliffs_delta']:+.2f} ({test['magnitude']})"
    gap = test["difference"]
    only = f"only first {test['only'][0]}, only second {test['only'][1]}"
    if gap is None:
        return only
    return f"difference {gap['value']:+.1%} ({gap['low']:+.1%} to {gap['high']:+.1%}); {only}"


def _small(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
