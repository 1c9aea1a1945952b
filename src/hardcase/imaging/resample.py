"""Where pixels come from: warps, the pose of a camera, affine maps, enlargements.

`resample` is written out as four gathers, so that the gradient by the places passes through the
weights alone: the same bytes on every run and device, where `grid_sample` would add in any order.
`affine`, whose parameters nobody differentiates, is torch's own.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.tensors import constant, steady


def centred_places(height: int, width: int, like: Tensor) -> Float[Tensor, "1 2 h w"]:
    """Each pixel's place (rows, columns) from the centre: exact in floating point."""
    down = torch.arange(height, device=like.device, dtype=like.dtype) - (height - 1) / 2
    right = torch.arange(width, device=like.device, dtype=like.dtype) - (width - 1) / 2
    return torch.stack(torch.meshgrid(down, right, indexing="ij"))[None]


def pose(
    places: Float[Tensor, "m 2 h w"],
    *,
    right: Float[Tensor, " m"],
    down: Float[Tensor, " m"],
    left_view: Float[Tensor, " m"],
    top_view: Float[Tensor, " m"],
    zoom: Float[Tensor, " m"],
    rotation: Float[Tensor, " m"],
    shear: Float[Tensor, " m"],
    distance: float,
) -> Float[Tensor, "m 2 h w"]:
    """Places as a camera in another pose sees them: lengths in pixels, angles in degrees.

    The scene, a plane at `distance`, moves right and down and is enlarged by `zoom`; the camera
    stands to the left (`left_view`) and above (`top_view`) and turns clockwise; `shear` is pixels
    sideways for each pixel down.
    """
    if not steady(places.device):
        from hardcase.imaging import fused

        turn = rotation.deg2rad()
        views = (*_aside(left_view, distance), *_aside(top_view, distance))
        rows = (down, right, *views, zoom, turn.cos(), turn.sin(), shear)
        if fused.usable(places, *rows):
            return fused.pose(places, rows)
    # Each use of an angle has its own cosine and sine: the order in which gradients add up is part
    # of what a search finds.
    y = places[:, 0] - _wide(down)
    x = places[:, 1] - _wide(right)
    x, y = _turned_aside(x, y, _wide(left_view), distance)
    y, x = _turned_aside(y, x, _wide(top_view), distance)
    x = x / _wide(zoom)
    y = y / _wide(zoom)
    cosine = _wide(rotation).deg2rad().cos()
    sine = _wide(rotation).deg2rad().sin()
    turned_x = x * cosine + y * sine
    turned_y = y * cosine - x * sine
    return torch.stack([turned_y, turned_x + turned_y * _wide(shear)], 1)


def _wide(values: Float[Tensor, " m"]) -> Float[Tensor, "m 1 1"]:
    return values[:, None, None]


def _aside(degrees: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """The cosine of an angle, and its sine over the distance of the plane."""
    angle = degrees.deg2rad()
    return angle.cos(), angle.sin() / distance


def _turned_aside(
    along: Tensor, across: Tensor, degrees: Tensor, distance: float
) -> tuple[Tensor, Tensor]:
    """Where the rays through pixels meet a plane turned by an angle."""
    # The ray of pixel `along` is at `along · (1 + z / distance)` in depth z. The turned plane has
    # z = met · sin and lies at met · cos across: solved for `met`, the place on the plane.
    angle = degrees.deg2rad()
    met = along / (angle.cos() - along * (angle.sin() / distance))
    return met, across * (1 + met * (angle.sin() / distance))


def resample(
    x: Float[Tensor, "m c h w"], places: Float[Tensor, "m 2 h w"]
) -> Float[Tensor, "m c h w"]:
    """Images read at `places` (pixels from the centre), bilinear, mirrored beyond the edges.

    The gradient reaches `places` only; `x` is taken as constant. Places on pixels give these pixels
    exactly.
    """
    if not steady(x.device):
        from hardcase.imaging import fused

        if fused.usable(x.detach(), places):
            return fused.resample(x.detach(), places)
    return _gathered(x.detach(), places)


def resample_sharply(
    x: Float[Tensor, "m c h w"], places: Float[Tensor, "m 2 h w"]
) -> Float[Tensor, "m c h w"]:
    """Images read at `places` without the blur of bilinear reading, as a camera that moved sees
    them: from an enlargement that has a bicubic pixel between any two.
    """
    height, width = x.shape[2:]
    fine = functional.interpolate(
        x.detach(), (2 * height - 1, 2 * width - 1), mode="bicubic", align_corners=True
    )
    return _gathered(fine, 2 * places).clamp(0, 1)


def _gathered(
    x: Float[Tensor, "m c p q"], places: Float[Tensor, "m 2 h w"]
) -> Float[Tensor, "m c h w"]:
    count, channels, height, width = x.shape
    shape = (count, channels, *places.shape[2:])
    flat = x.flatten(2)
    top, below, down = _neighbours(places[:, 0], height)
    left, neighbour, right = _neighbours(places[:, 1], width)
    top, below = top * width, below * width

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = (row + column).long().reshape(count, 1, -1).expand(-1, channels, -1)
        return flat.gather(2, index).reshape(shape)

    # As differences from the upper left, so that places on pixels give these pixels to the bit.
    upper_left = read(top, left)
    lower_left = read(below, left)
    upper = upper_left + (read(top, neighbour) - upper_left) * right[:, None]
    lower = lower_left + (read(below, neighbour) - lower_left) * right[:, None]
    return upper + (lower - upper) * down[:, None]


def _neighbours(place: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels before and after a place along one axis, and how far it lies between them."""
    # A triangle wave: places beyond an edge come back from it, without a branch. The whole pixel is
    # detached, so the gradient is that of the fraction alone.
    last = size - 1
    inside = (last - (last - (place + last / 2).abs()).abs()).clamp(0, last)
    before = inside.detach().floor()
    index = before.int()
    return index, (index + 1).clamp_max_(last), inside - before


def affine(
    x: Float[Tensor, "m c h w"],
    matrix: Float[Tensor, "m 2 3"],
    *,
    outside: str,
    mode: str = "bilinear",
    waves: Float[Tensor, "m 2 p p"] | None = None,
) -> Float[Tensor, "m c h w"]:
    """Every image seen through a 2x3 matrix of its own: from where (right, down), in coordinates
    from -1 to 1, the pixel at a place is taken. `outside` and `mode` are those of `grid_sample`;
    `waves` are further displacements at control points, interpolated bicubically.
    """
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    if waves is not None:
        fine = functional.interpolate(waves, size=x.shape[2:], mode="bicubic", align_corners=False)
        grid = grid + fine.permute(0, 2, 3, 1)
    return functional.grid_sample(x, grid, mode=mode, padding_mode=outside, align_corners=False)


def spread(
    coarse: Float[Tensor, "m k p q"], height: int, width: int
) -> Float[Tensor, "m k height width"]:
    """A coarse field over the image: Catmull-Rom between control points, outer ones on edges."""
    wide, down = spread_across(coarse, height, width)
    return combine(wide, down, 2)


def spread_across(
    coarse: Float[Tensor, "m k p q"], height: int, width: int
) -> tuple[Float[Tensor, "m k p width"], Float[Tensor, "height p"]]:
    """Half of `spread`: the field at every pixel across, and the weights that are left down."""
    across = constant(_cubic(coarse.shape[3], width), coarse.dtype, coarse.device)
    down = constant(_cubic(coarse.shape[2], height), coarse.dtype, coarse.device)
    return combine(coarse, across, 3), down


def combine(x: Tensor, weights: Float[Tensor, "out in"], dim: int) -> Tensor:
    """``weights @ x`` along one axis, added in a fixed order: rows do not affect each other."""
    shape = [1] * x.ndim
    shape[dim] = len(weights)
    total = x.narrow(dim, 0, 1) * weights[:, 0].reshape(shape)
    # A loop instead of a matrix product: BLAS may sum in an order that depends on the number of
    # rows, and bits would follow.
    for i in range(1, x.shape[dim]):
        total += x.narrow(dim, i, 1) * weights[:, i].reshape(shape)
    return total


@lru_cache(maxsize=64)
def _cubic(points: int, size: int) -> tuple[tuple[float, ...], ...]:
    """Weights of `points` control points at each of `size` pixels, constant beyond the outer."""
    place = np.linspace(0, points - 1, size)
    before = np.minimum(np.floor(place), points - 2).astype(int)
    t = place - before
    # Catmull-Rom weights of the four control points around a place (E. Catmull and R. Rom, 1974):
    # they pass through every control point. Beyond the ends the outer point counts again.
    near = (
        (-t + 2 * t**2 - t**3) / 2,
        (2 - 5 * t**2 + 3 * t**3) / 2,
        (t + 4 * t**2 - 3 * t**3) / 2,
        (-(t**2) + t**3) / 2,
    )
    weights = np.zeros((size, points))
    for offset, weight in enumerate(near, -1):
        np.add.at(weights, (np.arange(size), np.clip(before + offset, 0, points - 1)), weight)
    return tuple(map(tuple, weights.tolist()))


def along(
    x: Float[Tensor, "m c h w"], down: Float[Tensor, "m h2 h"], across: Float[Tensor, "m w2 w"]
) -> Float[Tensor, "m c h2 w2"]:
    """``down @ image @ across.T`` for every channel: what is separable, with exact borders."""
    m, c, h, w = x.shape
    wide = (x.reshape(m, c * h, w) @ across.mT).reshape(m, c, h, -1)
    tall = wide.mT.reshape(m, -1, h) @ down.mT
    return tall.reshape(m, c, across.shape[1], down.shape[1]).mT


def zoom_matrix(size: int, factor: Float[Tensor, " m"]) -> Float[Tensor, "m size size"]:
    """The matrix that enlarges an axis about its middle by `factor`, linear between pixels."""
    middle = (size - 1) / 2
    number = torch.arange(size, device=factor.device, dtype=factor.dtype)
    source = middle + (number - middle)[None] / factor[:, None]  # m size
    return (1 - (source[:, :, None] - number).abs()).clamp_min(0)


def cell_matrix(size: int, cells: Float[Tensor, " m"]) -> Float[Tensor, "m size size"]:
    """The matrix that replaces every pixel of an axis by the mean of its cell, of `cells` cells."""
    number = torch.arange(size, device=cells.device, dtype=cells.dtype) + 0.5
    cell = (number[None] * cells[:, None] / size).floor()
    # A pixel becomes the mean of all pixels with the same cell number.
    same = (cell[:, :, None] == cell[:, None, :]).to(cells.dtype)
    return same / same.sum(2, keepdim=True)
