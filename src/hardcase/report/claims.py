"""What a report says of claims: how they are lost, of which objects, and where they are."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from hardcase.campaign.claims import CLAIM_KINDS, Claims
from hardcase.report.words import Sheet, Told
from hardcase.runs.results import Run, finding_claims, seed_claims
from hardcase.types import WAYS

OTHER = "taken for another class"
COLOUR = (255, 64, 64)
"""Of a box or a mask."""
PARTS = ("smallest third", "middle third", "largest third")
MEANINGS = {
    "seeds": "claims about images",
    "usable": "the model makes the claim about the unchanged image",
    "failing": "a changed image of which the model no longer makes the claim",
    "witnessed": "a failing input on which every witness still makes it",
    "label_kept": "a failing input still shows what is claimed",
    "confirmed": "one finding is failing, valid and still shows what is claimed",
}
"""Steps of the funnel, where they mean something else than for classes."""


def claims_section(run: Run, sheet: Sheet, told: Told) -> dict[str, Any] | None:
    """How claims were lost, and how often by the size of the object; None for a classifier."""
    claims = seed_claims(run)
    if claims is None:
        return None
    known = run.record["claims"]
    failing = {name for name, label in zip(sheet.seed, sheet.label.tolist()) if label}
    first = dict(zip(reversed(sheet.seed), reversed(sheet.predicted.tolist())))
    ways = Counter(OTHER if first[name] >= 0 else WAYS[-1 - first[name]] for name in failing)
    rows = [i for i, seed in enumerate(sheet.seeds.values()) if seed["status"] == "done"]
    names = list(sheet.seeds)
    return {
        **known,
        "ways": {way: ways[way] for way in (*WAYS, OTHER) if ways[way]},
        "sizes": _sizes(claims, [(row, names[row] in failing) for row in rows], told),
    }


def _sizes(claims: Claims, rows: list[tuple[int, bool]], told: Told) -> list[dict[str, Any]]:
    """Claims with a place by the side of a square of the object's area, in thirds."""
    sides = claims.places().get("claimed size")
    if sides is None or len(rows) < len(PARTS):
        return []
    order = sorted((float(sides[row]), fails) for row, fails in rows)
    found = list[dict[str, Any]]()
    for name, part in zip(PARTS, np.array_split(np.arange(len(order)), len(PARTS))):
        own = [order[i] for i in part]
        hits = sum(fails for _, fails in own)
        found.append(
            {"size": name, "from": own[0][0], "to": own[-1][0], "failing": told(hits, len(own))}
        )
    return found


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
            corners = [round(side) for side in claims.box[row].tolist()]
            left, top, right, bottom = corners
            width = max(1, min(image.size) // 120)
            box = (left, top, max(left, right - 1), max(top, bottom - 1))
            ImageDraw.Draw(image).rectangle(box, outline=COLOUR, width=width)
        else:
            mask = Image.fromarray((claims.mask[row] > 0).numpy().astype(np.uint8) * 96)
            image.paste(Image.new("RGB", image.size, COLOUR), mask=mask)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()
