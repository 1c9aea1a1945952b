"""What a model must go on saying of an image, row by row, while the image changes.

A seed is an image and a claim about it: *this is a 7* (classification), *there is a dog*, *there
is none*, *there is a dog here*, *these pixels are road*. Claims are row-aligned tensors in the
context of images and seeds, so that whoever cuts, shuffles, stores or sends rows takes them along.

A network that makes claims answers in logits: a column per class and a column for each way to lose
a claim (`WAYS`). The column of the claim's class holds its *support*, the column of the answer
instead holds 0, and all others are `ABSENT`. So the network makes the claim where the class leads,
the logit margin is minus the support, and all that reads logits reads claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.types import WAYS, Answer, Images, Model, Seeds, Space

CLAIM_KINDS = ("is", "has", "has-not", "at", "covers")
"""What is claimed; `claim_kind` holds positions here."""
PREFIX = "claim_"
"""How the names of a claim's columns begin."""
CLAIMED = f"{PREFIX}kind"
"""Context of rows that make a claim; rows without it are classified."""
OUTSIDE = 0.1
"""Share of a claim's box or mask that may leave the frame; beyond it nothing is claimed."""


@dataclass(frozen=True, slots=True)
class Claims:
    """A claim per row.

    Args:
        kind: Position in `CLAIM_KINDS`.
        label: The class that is claimed.
        box: Where, as x0, y0, x1, y1 in pixels; only kind ``at`` reads it.
        mask: Which pixels; no pixels where no row claims any.
        inside: Whether enough of box or mask lies in the frame; elsewhere every claim counts as
            kept.
    """

    kind: Int[Tensor, " m"]
    label: Int[Tensor, " m"]
    box: Float[Tensor, "m 4"]
    mask: UInt8[Tensor, "m h w"]
    inside: Bool[Tensor, " m"]

    def __len__(self) -> int:
        return len(self.kind)

    @staticmethod
    def of(rows: Images | Seeds, device: torch.device | None = None) -> Claims | None:
        """The claims of images or originals; None where they are classified."""
        context = rows.context
        if CLAIMED not in context:
            return None
        kind = context[CLAIMED].to(device)
        none = torch.zeros(len(kind), 0, 0, dtype=torch.uint8, device=kind.device)
        return Claims(
            kind,
            rows.y.to(device),
            context[f"{PREFIX}box"].to(device),
            context.get(f"{PREFIX}mask", none).to(device),
            torch.ones_like(kind, dtype=torch.bool),
        )

    def context(self) -> dict[str, Tensor]:
        """What images or originals keep of claims."""
        context = {CLAIMED: self.kind, f"{PREFIX}box": self.box}
        if self.mask.shape[1]:
            context[f"{PREFIX}mask"] = self.mask
        return context

    def take(self, rows: Tensor | slice) -> Claims:
        return Claims(
            self.kind[rows], self.label[rows], self.box[rows], self.mask[rows], self.inside[rows]
        )

    def to(self, device: torch.device) -> Claims:
        parts = (self.kind, self.label, self.box, self.mask, self.inside)
        return Claims(*(part.to(device) for part in parts))

    def places(self) -> dict[str, Float[Tensor, " m"]]:
        """Size (side of a square of the same area) and middle of what has a place, in pixels, by
        name; nothing where a claim has none.
        """
        kinds = {CLAIM_KINDS[kind] for kind in set(self.kind.tolist())}
        if kinds == {"at"}:
            width, height = (self.box[:, 2:] - self.box[:, :2]).clamp_min(0).unbind(1)
            x, y = ((self.box[:, 2:] + self.box[:, :2]) / 2).unbind(1)
            area = width * height
        elif kinds == {"covers"}:
            mask = self.mask.float()
            area = mask.sum((1, 2)).clamp_min(1e-6)
            down, right = (torch.arange(size) + 0.5 for size in mask.shape[1:])
            x = (mask.sum(1) * right).sum(1) / area
            y = (mask.sum(2) * down).sum(1) / area
        else:
            return {}
        return {"claimed size": area.sqrt(), "claimed x": x, "claimed y": y}

    @torch.no_grad()
    def moved(self, places: Float[Tensor, "m 2 h w"]) -> Claims:
        """The same claims about images that are read at other places."""
        from hardcase.claims.boxes import moved_boxes, moved_masks

        box, visible = moved_boxes(self.box, places)
        held = self.kind != CLAIM_KINDS.index("at")
        inside = held | (visible >= 1 - OUTSIDE)
        mask = self.mask
        if mask.shape[1]:
            mask, visible = moved_masks(mask, places)
            held = self.kind != CLAIM_KINDS.index("covers")
            inside = inside & (held | (visible >= 1 - OUTSIDE))
        return replace(self, box=box, mask=mask, inside=self.inside & inside)


def claim_context(context: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part of the rows' context that describes their claims."""
    return {name: value for name, value in context.items() if name.startswith(PREFIX)}


def image_of(name: str) -> str:
    """The image of a claim's seed: claims of one image stand and fall together."""
    return name.rpartition("#")[0] or name


def moved_claims(space: Space, z: Tensor, origin: Seeds) -> Claims | None:
    """What is claimed of the images that codes stand for; None where they are classified."""
    claims = Claims.of(origin)
    places = getattr(space, "places", None)
    if claims is None or places is None:
        return claims
    with torch.no_grad():
        at = places(z.detach())
    return claims if at is None else claims.moved(at)


def asking(model: Model, claims: Claims | None) -> Callable[..., Answer]:
    """Whom to ask about images, and about what to keep of layers: the model itself, or the model
    about a claim for each image.
    """
    if claims is None:
        return model
    about: Any = model
    return partial(about.about, claims=claims)


def stored_label(label: Int[Tensor, " m"], outputs: int, claims: object) -> Int[Tensor, " m"]:
    """Answers as they are stored: a class, or below 0 the way in which a claim is lost."""
    if not claims:
        return label
    classes = outputs - len(WAYS)
    return torch.where(label < classes, label, classes - 1 - label)
