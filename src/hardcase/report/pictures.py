"""What the page draws: images as data URIs, and charts as inline SVG.

Only what is shown is ever decoded, no larger than the page allows. Sizes of charts are in their own
units; the page stretches them to the width there is.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from PIL import Image, ImageDraw

from hardcase.analysis.conditions import shown_samples
from hardcase.campaign.claims import CLAIM_KINDS
from hardcase.runs.results import Run, finding_claims, seed_claims
from hardcase.tensors import remade

LARGE = 1_500_000
SMALL = 2_000_000
MAPPED = 400_000
"""Characters that the large pairs, the thumbnails and the cells of maps may take: a page then stays
under 5 MB.
"""

SIDES = (224, 160, 112, 80, 56, 40, 28)
"""Widths to which images are reduced, one after the other, until they fit."""

CLAIMED = (255, 64, 64)
"""The colour of the box or mask of a claim."""

Key = tuple[str, int, int]
Files = dict[Key, bytes]
Facts = Mapping[str, Any]
Shown = tuple[int, Facts]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Data URIs by kind (seed, test, unmodified, sample), run, and row in its table.

    `width` is what they were reduced to, if they were."""

    uris: dict[Key, str]
    width: int | None


def pairs(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """Both images of the failures shown large."""
    shown = [(run, fact) for run, section in enumerate(sections) for fact in section["pairs"]]
    return _fitted(_with_claims(runs, _files(runs, _used(shown))), _used(shown), LARGE)


def thumbnails(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """Both images of the failures in the gallery."""
    shown = [
        (run, fact)
        for run, section in enumerate(sections)
        for fact in section["gallery"]["failures"]
    ]
    return _fitted(_with_claims(runs, _files(runs, _used(shown))), _used(shown), SMALL)


def map_cells(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """The examples in the cells of maps."""
    shown = [
        (run, cell)
        for run, section in enumerate(sections)
        for cell in (section.get("map") or {"cells": ()})["cells"]
        if cell["row"] is not None
    ]
    files = _files(runs, [("test", run, cell["row"]) for run, cell in shown])
    return _fitted(files, list(files), MAPPED)


def _fitted(files: Files, used: Sequence[Key], allowed: int) -> Pictures:
    """The files as data URIs, reduced as little as keeps every use of them within what is allowed.

    How much they must be reduced is told from a few of them: an odd stride meets seeds and findings
    alike."""
    sampled = used[:: max(1, len(used) // 24) | 1]
    each = allowed / max(len(used), 1) * 3 / 4  # bytes before they are written as text
    for width in (None, *SIDES):
        if sum(len(reduced(files[key], width)) for key in sampled) <= each * len(sampled):
            break
    return Pictures({key: uri(reduced(data, width)) for key, data in files.items()}, width)


def _with_claims(runs: Sequence[Run], files: Files) -> Files:
    """The images with the boxes and masks that are claimed of them."""
    for number, run in enumerate(runs):
        if run.record.get("claims"):
            draw = ClaimPictures(run)
            files = {
                key: draw.drawn(key[0], key[2], data) if key[1] == number else data
                for key, data in files.items()
            }
    return files


class ClaimPictures:
    """Draws the boxes and masks of a run's seeds and failures onto their images."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.claims = {"seed": seed_claims(run), "test": None}
        if self.claims["seed"] is not None:
            self.claims["test"] = finding_claims(run)

    def seeds(self, rows: Sequence[int]) -> list[bytes]:
        """Seeds of the run with what is claimed of them."""
        return [self.drawn("seed", *pair) for pair in zip(rows, self.run.stored_seed_images(rows))]

    def findings(self, rows: Sequence[int]) -> list[bytes]:
        """Findings of the run with what is claimed of them."""
        return [self.drawn("test", *pair) for pair in zip(rows, self.run.stored_images(rows))]

    def drawn(self, kind: str, row: int, data: bytes) -> bytes:
        """An image with what is claimed of it; as it was where nothing has a place."""
        claims = self.claims.get(kind)
        if claims is None:
            return data
        word = CLAIM_KINDS[int(claims.kind[row])]
        if word not in ("at", "covers"):
            return data
        with Image.open(io.BytesIO(data)) as picture:
            image = picture.convert("RGB")
        if word == "at":
            left, top, right, bottom = (round(side) for side in claims.box[row].tolist())
            width = max(1, min(image.size) // 120)
            box = (left, top, max(left, right - 1), max(top, bottom - 1))
            ImageDraw.Draw(image).rectangle(box, outline=CLAIMED, width=width)
        else:
            mask = Image.fromarray((claims.mask[row] > 0).numpy().astype(np.uint8) * 96)
            image.paste(Image.new("RGB", image.size, CLAIMED), mask=mask)
        return _encoded(image, "PNG")


def _used(shown: Sequence[Shown]) -> list[Key]:
    """Where the images of failures lie: their kind, their run, and their row or place in it."""
    return [
        (fact[side][0], run, fact[side][1]) for run, fact in shown for side in ("before", "after")
    ]


def _files(runs: Sequence[Run], used: Sequence[Key]) -> Files:
    """The images as they are stored, each made anew: whoever wrote them, they are images."""
    files: Files = {}
    for number, run in enumerate(runs):
        rows: dict[str, list[int]] = {}
        for kind, of, row in sorted({*used}):
            if of == number:
                rows.setdefault(kind, []).append(row)
        for kind, chosen in rows.items():
            images = _stored(run, kind, chosen)
            files |= {(kind, number, row): remade(image) for row, image in zip(chosen, images)}
    return files


def _stored(run: Run, kind: str, rows: Sequence[int]) -> list[bytes]:
    """Images of one kind by their rows: of failures, of searched images, or of kept samples."""
    if kind == "test":
        return run.stored_images(rows)
    if kind == "seed":
        return run.stored_seed_images(rows)
    samples = shown_samples(run)
    name = "image" if kind == "sample" else "unmodified"
    return [samples[row][name] for row in rows]


def reduced(data: bytes, width: int | None) -> bytes:
    """An image at most `width` pixels wide and high; as JPEG, for it is no longer exact, unless it
    is partly clear."""
    if width is None:
        return data
    with Image.open(io.BytesIO(data)) as picture:
        if max(picture.size) <= width:
            return data
        small = picture.copy()
    small.thumbnail((width, width), Image.Resampling.BOX)
    return _encoded(small, "PNG" if small.mode == "RGBA" else "JPEG")


def uri(data: bytes) -> str:
    kind = "jpeg" if data.startswith(b"\xff\xd8") else "png"
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _encoded(picture: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=85)
    return buffer.getvalue()


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


def _svg(parts: Sequence[str], width: float, height: float, label: str) -> Markup:
    return Markup(  # every text inside is escaped
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img"'
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


ROW = 46
"""Pixels of a line of the plot: its words above, its whisker below."""


def whiskers(
    rows: Sequence[Mapping[str, Any]],
    *,
    limit: float | None = None,
    limit_text: str | None = None,
    unit: str = "%",
    label: str,
) -> Markup:
    """Rates as dots with whiskers on one axis, a limit as a dashed line across all.

    Lengths across are shares of the width that there is, so that words keep their size.
    """
    ends = [row[end] for row in rows for end in ("value", "low", "high") if row[end] is not None]
    above = ticks(max([*ends, limit or 0, 1e-4]))
    stride = above[1]
    below = math.ceil(max(0.0, -min(ends)) / stride)
    marks = [*(-stride * i for i in range(below, 0, -1)), *above]
    width = marks[-1] - marks[0]

    def to_x(value: float) -> float:
        return 100 * (value - marks[0]) / width

    bottom = ROW * len(rows) + 6
    parts = []
    for mark in marks:
        parts.append(_upright("grid", to_x(mark), 0, bottom))
        anchor = {marks[0]: "start", marks[-1]: "end"}.get(mark, "middle")
        parts.append(_words(to_x(mark), bottom + 14, f"{100 * mark:g} {unit}", anchor, "tick"))
    if limit is not None:
        parts.append(_upright("limit", to_x(limit), 0, bottom))
        anchor = "end" if to_x(limit) > 50 else "start"
        parts.append(_words(to_x(limit), bottom + 30, limit_text or "limit", anchor, "limit-text"))
    for place, row in enumerate(rows):
        parts += _whisker(row, ROW * place, to_x)
    height = bottom + (34 if limit is not None else 18)
    return Markup(  # every text inside is escaped
        f'<svg class="whiskers" width="100%" height="{height}" role="img"'
        f' aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _whisker(row: Mapping[str, Any], top: float, to_x: Callable[[float], float]) -> list[str]:
    """One rate: its words, and its dot between the ends of its interval."""
    y = top + 32
    value = to_x(row["value"])
    low = value if row["low"] is None else to_x(row["low"])
    high = value if row["high"] is None else to_x(row["high"])
    parts = [
        _words(0, top + 16, row["name"], "start", "row-name"),
        _words(100, top + 16, row["text"], "end", "row-text"),
        f'<line class="whisker" x1="{low:.2f}%" x2="{high:.2f}%" y1="{y}" y2="{y}"/>',
    ]
    if row["low"] is not None:
        parts.append(_upright("whisker", low, y - 5, y + 5))
    if row["high"] is not None:
        parts.append(_upright("whisker", high, y - 5, y + 5))
    return [*parts, f'<circle class="dot" cx="{value:.2f}%" cy="{y}" r="5"/>']


def _words(x: float, y: float, text: str, anchor: str, kind: str) -> str:
    place = f'class="{kind}" x="{x:.2f}%" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _upright(kind: str, x: float, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top}" y2="{bottom}"/>'


def bar(row: Mapping[str, Any], most: float) -> Markup:
    """A rate as a bar from 0 to `most`, with the interval of the rate where it has one."""
    to_x = _scale(most or 1, 0, 100)
    parts = ['<rect class="track" width="100%" height="100%" rx="3"/>']
    parts.append(f'<rect class="fill" width="{to_x(row["value"]):.2f}%" height="100%" rx="3"/>')
    if row.get("low") is not None:
        low, high = to_x(row["low"]), to_x(row["high"])
        parts.append(f'<line class="interval" x1="{low:.2f}%" x2="{high:.2f}%" y1="50%" y2="50%"/>')
    return Markup(f'<svg class="bar" aria-hidden="true">{"".join(parts)}</svg>')


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
