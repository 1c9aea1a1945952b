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
from jaxtyping import Float
from markupsafe import Markup, escape
from PIL import Image, ImageDraw

from hardcase.analysis.conditions import shown_samples
from hardcase.campaign.claims import CLAIM_KINDS
from hardcase.runs.results import Run, finding_claims, seed_claims
from hardcase.tensors import remade

LARGE = 1_500_000
SMALL = 2_000_000
MAPPED = 400_000
DRAWN = 300_000
"""Characters that the triples, the thumbnails, the cells of maps and the draws of conditions on a
page may take: the page then stays under 5 MB.
"""

SIDES = (224, 160, 112, 80, 56, 40, 28)
"""Widths to which images are reduced, one after the other, until they fit."""

BRIGHTER = (24, 146, 160)
DARKER = (216, 104, 42)
CLAIMED = (255, 64, 64)
"""Colours of what changed, and of the box or mask of a claim."""

Key = tuple[str, int, int]
Files = dict[Key, bytes]
Facts = Mapping[str, Any]
Shown = tuple[int, Facts]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Data URIs by kind (seed, test, difference), run and row in its table.

    `width` is what they were reduced to, if they were."""

    uris: dict[Key, str]
    width: int | None


def triples(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """Seeds, findings and differences of the findings shown large."""
    shown = [(run, fact) for run, section in enumerate(sections) for fact in section["triples"]]
    files = _files(runs, shown)
    changes = {
        ("difference", run, fact["row"]): difference(
            files["seed", run, fact["seed_row"]], files["test", run, fact["row"]]
        )
        for run, fact in shown
    }
    return _fitted(_with_claims(runs, files) | changes, [*_used(shown), *changes], LARGE)


def thumbnails(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """Seeds and findings of the gallery."""
    shown = [
        (run, fact) for run, section in enumerate(sections) for fact in section["gallery"]["tests"]
    ]
    return _fitted(_with_claims(runs, _files(runs, shown)), _used(shown), SMALL)


def map_cells(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """The examples in the cells of maps."""
    shown = [
        (run, cell)
        for run, section in enumerate(sections)
        for cell in (section.get("map") or {"cells": ()})["cells"]
        if cell["row"] is not None
    ]
    files = _files(runs, shown, ("test",))
    return _fitted(files, list(files), MAPPED)


def condition_draws(runs: Sequence[Run], sections: Sequence[Facts]) -> Pictures:
    """The failing draws of the conditions that cost most, beside their seeds."""
    shown = [
        (number, row["example"])
        for number, section in enumerate(sections)
        for row in section["decision"]["conditions"]
        if row["example"]
    ]
    files = _files(runs, shown, ("seed",))
    for number, run in enumerate(runs):
        places = [fact["place"] for own, fact in shown if own == number]
        images = shown_samples(run) if places else []
        files |= {("drawn", number, place): images[place]["image"] for place in places}
    return _fitted(files, list(files), DRAWN)


def _fitted(files: Files, used: Sequence[Key], allowed: int) -> Pictures:
    """The files as data URIs, reduced as little as keeps every use of them within what is allowed.

    How much they must be reduced is told from a few of them: an odd stride meets seeds and findings
    alike."""
    few = used[:: max(1, len(used) // 24) | 1]
    each = allowed / max(len(used), 1) * 3 / 4  # bytes before they are written as text
    for width in (None, *SIDES):
        if sum(len(reduced(files[key], width)) for key in few) <= each * len(few):
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
    """Draws the boxes and masks of a run's seeds and findings onto their images."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.claims = {"seed": seed_claims(run), "test": None}
        if self.claims["seed"] is not None:
            self.claims["test"] = finding_claims(run)

    def seeds(self, rows: Sequence[int]) -> list[bytes]:
        """Seeds of the run with what is claimed of them."""
        return [self.drawn("seed", *one) for one in zip(rows, self.run.stored_seed_images(rows))]

    def findings(self, rows: Sequence[int]) -> list[bytes]:
        """Findings of the run with what is claimed of them."""
        return [self.drawn("test", *one) for one in zip(rows, self.run.stored_images(rows))]

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
    return [
        key
        for run, fact in shown
        for key in (("seed", run, fact["seed_row"]), ("test", run, fact["row"]))
    ]


def _files(
    runs: Sequence[Run], shown: Sequence[Shown], kinds: Sequence[str] = ("test", "seed")
) -> Files:
    files: Files = {}
    for number, run in enumerate(runs):
        facts = [fact for own, fact in shown if own == number]
        sources = {"test": ("row", run.stored_images), "seed": ("seed_row", run.stored_seed_images)}
        for kind in kinds:
            column, stored = sources[kind]
            rows = sorted({fact[column] for fact in facts})
            files |= {(kind, number, row): remade(one) for row, one in zip(rows, stored(rows))}
    return files


def difference(seed: bytes, test: bytes) -> bytes:
    """What changed, as an image that is clear where nothing did: one tint for brighter, one for
    darker, the largest change opaque. Of a colour image the channel that changed most is shown."""
    change = _values(test) - _values(seed)
    most = np.take_along_axis(change, np.abs(change).argmax(2)[..., None], 2)[..., 0]
    strength = np.abs(most) / max(float(np.abs(most).max()), 1e-9)
    tint = np.where(most[..., None] > 0, np.array(BRIGHTER), np.array(DARKER))
    alpha = np.rint(255 * strength**0.8)[..., None]
    return _encoded(Image.fromarray(np.concatenate([tint, alpha], 2).astype(np.uint8)), "PNG")


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


def _values(data: bytes) -> Float[np.ndarray, "h w c"]:
    with Image.open(io.BytesIO(data)) as picture:
        values = np.asarray(
            picture if picture.mode in ("L", "RGB") else picture.convert("RGB"), dtype=np.float32
        )
    return values.reshape(*values.shape[:2], -1)


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
