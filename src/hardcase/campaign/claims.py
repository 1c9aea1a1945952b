"""What a subject must go on saying of an image, row by row, while the image changes.

A seed is an image and a claim about it: *this is a 7* (classification), *there is a dog*, *there
is none*, *there is a dog here*, *these pixels are road*. Claims are row-aligned tensors in the
context of images and seeds, so that whoever cuts, shuffles, stores or sends rows takes them along.

A network that makes claims answers in logits: one column per class and one for each way to lose a
claim (`WAYS`). The column of the claim's class holds its *support*, the column of what is said
instead holds 0, and all others are `ABSENT`. So the claim is made where the class leads, the logit
margin is minus the support, and all that reads logits reads claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from hardcase.tensors import total
from hardcase.types import WAYS, Answer, Images, Model, Seeds, Space

CLAIM_KINDS = ("is", "has", "has-not", "at", "covers")
"""What is claimed; `claim_kind` holds positions here."""
PREFIX = "claim_"
"""How the names of a claim's columns begin."""
CLAIMED = f"{PREFIX}kind"
"""What is known of rows that make a claim; rows without it are classified."""
OUTSIDE = 0.1
"""Share of a claim's box or mask that may leave the frame; beyond it nothing is claimed."""


@dataclass(frozen=True, slots=True)
class Claims:
    """One claim per row.

    Args:
        kind: Position in `CLAIM_KINDS`.
        label: The class that is claimed.
        box: Where, as x0, y0, x1, y1 in pixels; only kind ``at`` reads it.
        mask: Which pixels; no pixels where no row claims any.
        inside: Whether enough of box or mask lies in the frame; elsewhere every claim is kept.
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
        """The claims of images or seeds; None where they are classified."""
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
        """What images or seeds keep of claims."""
        known = {CLAIMED: self.kind, f"{PREFIX}box": self.box}
        if self.mask.shape[1]:
            known[f"{PREFIX}mask"] = self.mask
        return known

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
        box, seen = moved_boxes(self.box, places)
        held = self.kind != CLAIM_KINDS.index("at")
        inside = held | (seen >= 1 - OUTSIDE)
        mask = self.mask
        if mask.shape[1]:
            mask, seen = _moved_masks(mask, places)
            held = self.kind != CLAIM_KINDS.index("covers")
            inside = inside & (held | (seen >= 1 - OUTSIDE))
        return replace(self, box=box, mask=mask, inside=self.inside & inside)


def claim_context(context: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of what is known of rows, what is about their claims."""
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


def moved_boxes(
    box: Float[Tensor, "m 4"], places: Float[Tensor, "m 2 h w"]
) -> tuple[Float[Tensor, "m 4"], Float[Tensor, " m"]]:
    """Where boxes are in images that are read at `places`, and which share of each is seen.

    A pixel is inside where its place is; the bounds of the inside lie where a straight line between
    neighbours crosses the box's edge, so that an image that stays keeps its box exactly.
    """
    height, width = places.shape[2:]
    down = places[:, 0] + height / 2
    right = places[:, 1] + width / 2
    x0, y0, x1, y1 = (side[:, None, None] for side in box.unbind(1))
    edges = torch.stack([right - x0, x1 - right, down - y0, y1 - down])
    depth = edges.amin(0)  # above 0 inside
    left_edge, right_edge = _bounds(edges)
    top_edge, bottom_edge = _bounds(edges.mT)
    found = torch.stack([left_edge, top_edge, right_edge, bottom_edge], 1)
    within = _covered(right, x0, x1) * _covered(down, y0, y1)
    area = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).clamp_min(1e-6)
    seen = total((within * _area(places)).flatten(1)) / area
    return torch.where((depth > 0).flatten(1).any(1)[:, None], found, 0.0), seen


def _bounds(edges: Float[Tensor, "4 m h w"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """The first and the last place along the last axis where anything is within all edges."""
    width = edges.shape[3]
    ahead = 2 * edges[..., :1] - edges[..., 1:2]  # half a pixel beyond the frame, on a line
    behind = 2 * edges[..., -1:] - edges[..., -2:-1]
    depth = torch.cat([ahead, edges, behind], 3).amin(0)
    before, after = depth[:, :, :-1], depth[:, :, 1:]
    at = torch.arange(width + 1, device=depth.device) - 0.5
    cross = at + before / (before - after).where(before != after, torch.ones_like(before))
    enters = (before <= 0) & (after > 0)
    leaves = (before > 0) & (after <= 0)
    first = cross.where(enters, torch.full_like(cross, width)).amin((1, 2))
    last = cross.where(leaves, torch.zeros_like(cross)).amax((1, 2))
    first = first.where(~(depth[:, :, 0] > 0).any(1), torch.zeros_like(first))
    last = last.where(~(depth[:, :, -1] > 0).any(1), torch.full_like(last, width))
    return first.clamp(0, width), last.clamp(0, width)


def _covered(place: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How much of a pixel around each place lies between two ends."""
    ends = torch.minimum(high, place + 0.5) - torch.maximum(low, place - 0.5)
    return ends.clamp(0, 1)


def _area(places: Float[Tensor, "m 2 h w"]) -> Float[Tensor, "m h w"]:
    """The area of the source that each pixel shows."""
    along = torch.gradient(places, dim=3)[0]
    across = torch.gradient(places, dim=2)[0]
    return (across[:, 0] * along[:, 1] - across[:, 1] * along[:, 0]).abs()


def _moved_masks(
    mask: UInt8[Tensor, "m h w"], places: Float[Tensor, "m 2 h w"]
) -> tuple[UInt8[Tensor, "m h w"], Float[Tensor, " m"]]:
    """Masks of images that are read at `places`, nearest pixels, and which share is seen."""
    height, width = mask.shape[1:]
    down = (places[:, 0] + (height - 1) / 2).round().long()
    right = (places[:, 1] + (width - 1) / 2).round().long()
    inside = (down >= 0) & (down < height) & (right >= 0) & (right < width)
    index = down.clamp(0, height - 1) * width + right.clamp(0, width - 1)
    found = mask.flatten(1).gather(1, index.flatten(1)).reshape(mask.shape) * inside
    before = mask.flatten(1).float().sum(1).clamp_min(1e-6)
    return found.to(mask.dtype), total((found * _area(places)).flatten(1)) / before
