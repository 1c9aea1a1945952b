"""Images as data URIs, no larger than the page allows; only what is shown is ever decoded."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from hardcase.analysis.conditions import shown_draws
from hardcase.report.claims import ClaimPictures
from hardcase.runs.results import Run
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
        images = shown_draws(run)["shown"] if places else []
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
