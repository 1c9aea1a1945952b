"""Where boxes and masks are in images whose pixels are read at other places."""

from __future__ import annotations

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hardcase.tensors import total

__all__ = ["moved_boxes", "moved_masks"]


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
    corners = torch.stack([left_edge, top_edge, right_edge, bottom_edge], 1)
    within = _covered(right, x0, x1) * _covered(down, y0, y1)
    area = ((box[:, 2] - box[:, 0]) * (box[:, 3] - box[:, 1])).clamp_min(1e-6)
    visible = total((within * _area(places)).flatten(1)) / area
    return torch.where((depth > 0).flatten(1).any(1)[:, None], corners, 0.0), visible


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


def moved_masks(
    mask: UInt8[Tensor, "m h w"], places: Float[Tensor, "m 2 h w"]
) -> tuple[UInt8[Tensor, "m h w"], Float[Tensor, " m"]]:
    """Masks of images that are read at `places`, nearest pixels, and which share is seen."""
    height, width = mask.shape[1:]
    down = (places[:, 0] + (height - 1) / 2).round().long()
    right = (places[:, 1] + (width - 1) / 2).round().long()
    inside = (down >= 0) & (down < height) & (right >= 0) & (right < width)
    index = down.clamp(0, height - 1) * width + right.clamp(0, width - 1)
    moved = mask.flatten(1).gather(1, index.flatten(1)).reshape(mask.shape) * inside
    before = mask.flatten(1).float().sum(1).clamp_min(1e-6)
    return moved.to(mask.dtype), total((moved * _area(places)).flatten(1)) / before
