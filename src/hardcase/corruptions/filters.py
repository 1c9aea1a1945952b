"""Linear operators on batches of images with parameters of their own for every row.

What is separable is a matrix per row and axis, so that borders are exact and a batch is two matrix
products; what is not is a kernel per row, applied through the Fourier transform. Sizes of matrices
and transforms follow from the image alone, never from the other rows of the batch.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

Border = Literal["replicate", "reflect", "symmetric"]
"""What lies outside: the edge pixel; the image mirrored without its edge pixel; the image mirrored
with it."""


def along(
    x: Float[Tensor, "m c h w"], down: Float[Tensor, "m h2 h"], across: Float[Tensor, "m w2 w"]
) -> Float[Tensor, "m c h2 w2"]:
    """``down @ image @ across.T`` for every channel."""
    m, c, h, w = x.shape
    wide = (x.reshape(m, c * h, w) @ across.mT).reshape(m, c, h, -1)
    tall = wide.mT.reshape(m, -1, h) @ down.mT
    return tall.reshape(m, c, across.shape[1], down.shape[1]).mT


def gaussian_matrix(
    size: int,
    sigma: Float[Tensor, " m"],
    *,
    reach: float,
    border: Border = "replicate",
    truncate: float = 4.0,
) -> Float[Tensor, "m size size"]:
    """The matrix that blurs an axis of `size` pixels.

    Args:
        size: Pixels of the axis.
        sigma: Standard deviation in pixels, one a row; 0 is the identity.
        reach: The largest sigma that may come, in pixels (it fixes the width of the computation for
            every batch).
        border: What lies outside.
        truncate: The kernel ends after so many standard deviations.
    """
    radius = int(truncate * reach + 0.5)
    inside = torch.arange(size, device=sigma.device)
    outside = torch.arange(-radius, size + radius, device=sigma.device)
    gap = (outside[None] - inside[:, None]).to(sigma.dtype)
    spread = sigma.clamp_min(1e-3)[:, None, None]
    weight = (-0.5 * (gap / spread).square()).exp() * (
        gap.abs() <= (truncate * spread + 0.5).floor()
    )
    weight = weight / weight.sum(2, keepdim=True)
    return _folded(weight, outside, size, border)


def _folded(
    weight: Float[Tensor, "m o p"], place: Tensor, size: int, border: Border
) -> Float[Tensor, "m o size"]:
    """Give the weights of places outside an axis to the pixels that stand there."""
    if border == "replicate":
        target = place.clamp(0, size - 1)
    elif border == "symmetric":
        turn = place % (2 * size)
        target = torch.minimum(turn, 2 * size - 1 - turn)
    else:
        period = max(1, 2 * size - 2)
        turn = place % period
        target = torch.minimum(turn, period - turn)
    empty = weight.new_zeros(*weight.shape[:2], size)
    return empty.index_add(2, target, weight)


def blur(
    x: Float[Tensor, "m c h w"],
    sigma: Float[Tensor, " m"],
    *,
    reach: float,
    border: Border = "replicate",
    truncate: float = 4.0,
) -> Float[Tensor, "m c h w"]:
    """Blur by a normal kernel of `sigma` pixels, one a row; see `gaussian_matrix`."""
    down, across = (
        gaussian_matrix(size, sigma, reach=reach, border=border, truncate=truncate)
        for size in x.shape[2:]
    )
    return along(x, down, across)


def zoom_matrix(size: int, factor: Float[Tensor, " m"]) -> Float[Tensor, "m size size"]:
    """The matrix that enlarges an axis about its middle by `factor` (1 or more), linearly between
    pixels."""
    middle = (size - 1) / 2
    number = torch.arange(size, device=factor.device, dtype=factor.dtype)
    source = middle + (number - middle)[None] / factor[:, None]  # m size
    return (1 - (source[:, :, None] - number).abs()).clamp_min(0)


def cell_matrix(size: int, cells: Float[Tensor, " m"]) -> Float[Tensor, "m size size"]:
    """The matrix that replaces every pixel of an axis by the mean of its cell, of `cells` cells."""
    number = torch.arange(size, device=cells.device, dtype=cells.dtype) + 0.5
    cell = (number[None] * cells[:, None] / size).floor()
    same = (cell[:, :, None] == cell[:, None, :]).to(cells.dtype)
    return same / same.sum(2, keepdim=True)


def convolve(
    x: Float[Tensor, "m c h w"], kernel: Float[Tensor, "m k k"], border: Border = "replicate"
) -> Float[Tensor, "m c h w"]:
    """Convolve every row with a kernel of its own (odd side, the middle at its centre)."""
    h, w = x.shape[2:]
    radius = kernel.shape[1] // 2
    padded = _padded(x, radius, border)
    size = [_fast(side) for side in padded.shape[2:]]
    spectrum = torch.fft.rfft2(padded, s=size) * torch.fft.rfft2(kernel, s=size)[:, None]
    whole: Tensor = torch.fft.irfft2(spectrum, s=size)
    return whole[:, :, 2 * radius : 2 * radius + h, 2 * radius : 2 * radius + w]


def _padded(x: Float[Tensor, "m c h w"], radius: int, border: Border) -> Float[Tensor, "m c h2 w2"]:
    if border == "replicate":
        return functional.pad(x, (radius,) * 4, mode="replicate")
    for axis in (2, 3):
        size = x.shape[axis]
        place = torch.arange(-radius, size + radius, device=x.device)
        row = _folded(torch.eye(len(place), device=x.device)[None], place, size, border)[0].argmax(
            1
        )
        x = x.index_select(axis, row)
    return x


def _fast(size: int) -> int:
    """The next length without prime factors above 5."""
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


def disk(
    radius: Float[Tensor, " m"], soft: Float[Tensor, " m"], *, reach: float
) -> Float[Tensor, "m k k"]:
    """An out-of-focus lens: a disk of `radius` pixels with an edge one pixel wide, blurred by
    `soft` pixels."""
    half = math.ceil(reach) + 2
    place = torch.arange(-half, half + 1, device=radius.device, dtype=radius.dtype)
    distance = (place[:, None].square() + place.square()).sqrt()
    flat = (radius[:, None, None] + 0.5 - distance).clamp(0, 1)
    flat = flat / flat.sum((1, 2), keepdim=True)
    matrix = gaussian_matrix(len(place), soft, reach=1.0, truncate=1.0)
    return along(flat[:, None], matrix, matrix)[:, 0]


def streak(
    length: Float[Tensor, " m"],
    sigma: Float[Tensor, " m"],
    angle: Float[Tensor, " m"],
    *,
    reach: float,
) -> Float[Tensor, "m k k"]:
    """A motion: weights that fall like half a normal curve along a line from the middle.

    Args:
        length: Pixels after which the line ends.
        sigma: Standard deviation of the weights in pixels; 0 is no motion.
        angle: Direction in degrees, 0 to the left, 90 upwards.
        reach: The greatest length that may come, in pixels.
    """
    half = math.ceil(reach)
    tap = torch.arange(half + 1, device=length.device, dtype=length.dtype)
    weight = (-0.5 * (tap / sigma.clamp_min(1e-3)[:, None]).square()).exp()
    weight = weight * (length[:, None] - tap).clamp(0, 1)
    weight[:, 0] = 1
    weight = weight / weight.sum(1, keepdim=True)
    turn = torch.deg2rad(angle)[:, None]
    down, right = ((half - tap * f(turn)).round().long() for f in (torch.sin, torch.cos))
    side = 2 * half + 1
    flat = weight.new_zeros(len(weight), side * side).scatter_add(1, down * side + right, weight)
    return flat.reshape(-1, side, side)


def resample(
    x: Float[Tensor, "m c h w"], down: Float[Tensor, "m h w"], right: Float[Tensor, "m h w"]
) -> Float[Tensor, "m c h w"]:
    """Every pixel from a place moved `down` and `right` pixels, linearly between pixels, mirrored
    at the edges."""
    h, w = x.shape[2:]
    rows = torch.arange(h, device=x.device, dtype=x.dtype)[:, None] + down
    columns = torch.arange(w, device=x.device, dtype=x.dtype) + right
    grid = torch.stack([(2 * columns + 1) / w - 1, (2 * rows + 1) / h - 1], 3)
    return functional.grid_sample(
        x, grid, mode="bilinear", padding_mode="reflection", align_corners=False
    )
