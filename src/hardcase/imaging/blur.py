"""What a pixel takes from its neighbours: blur (a lens out of focus, a moving hand, wide pixels;
Gaussian, median, bilateral), and figures drawn by another pen, thicker, thinner, fainter.

Kernels that differ by row are applied through the Fourier transform, whose cost does not grow with
the kernel; a Gaussian is a matrix per row and axis. Sizes of transforms and matrices follow from
the image and a stated reach alone, never from the other rows of the batch.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.imaging.resample import along
from hardcase.tensors import constant, per_row, steady, total

Batch = Float[Tensor, "m c h w"]
Ground = Float[Tensor, "m c 1 1"]
"""The colour of a plain ground behind figures."""

BINOMIAL = tuple(tuple(a * b / 256 for a in (1, 4, 6, 4, 1)) for b in (1, 4, 6, 4, 1))


def convolve(
    x: Batch, kernel: Float[Tensor, "m k k"], *, border: Literal["mirror", "repeat"] = "mirror"
) -> Batch:
    """Every image convolved with its own kernel, of odd side, whose weights add to 1.

    What is computed is the *change*, exactly 0 for a kernel of one point. Beyond its edges the
    image is mirrored about its outermost pixels, or they repeat.
    """
    from scipy.fft import next_fast_len  # a third of a command's start, which few commands use

    radius = kernel.shape[-1] // 2
    size = [int(next_fast_len(side + 2 * radius, real=True)) for side in x.shape[2:]]
    if border == "mirror":
        padded = _mirrored_to(x, radius, size)
    else:
        padded = functional.pad(x, (radius,) * 4, mode="replicate")
    missing = (0, size[1] - kernel.shape[2], 0, size[0] - kernel.shape[1])
    centred = functional.pad(kernel, missing).roll((-radius, -radius), (1, 2))
    response = torch.fft.rfft2(centred) - 1
    spectrum = torch.fft.rfft2(padded, s=size) * response[:, None]
    change: Tensor = torch.fft.irfft2(spectrum, s=size)
    return x + change[:, :, radius : radius + x.shape[2], radius : radius + x.shape[3]]


def _mirrored_to(x: Batch, margin: int, size: list[int]) -> Float[Tensor, "m c h2 w2"]:
    """Images reflected at all edges; on a device with the zeros that a transform would add."""
    if not steady(x.device):
        from hardcase.imaging import fused

        if fused.usable(x):
            return fused.mirrored(x, margin, size)
    return mirrored(mirrored(x, margin, 3), margin, 2)


def mirrored(x: Tensor, margin: int, dim: int) -> Tensor:
    """`x` reflected at both ends of an axis, by operations whose gradients add in a fixed order.

    A margin wider than the image is reflected again and again.
    """
    size = x.shape[dim]
    if size == 1:
        return torch.cat([x] * (2 * margin + 1), dim)
    step = min(margin, size - 1)
    before = x.narrow(dim, 1, step).flip(dim)
    after = x.narrow(dim, size - 1 - step, step).flip(dim)
    extended = torch.cat([before, x, after], dim)
    if step < margin:
        return mirrored(extended, margin - step, dim)
    return extended


def disc(
    radius: Float[Tensor, " m"],
    length: Float[Tensor, " m"],
    angle: Float[Tensor, " m"],
    *,
    reach: int,
) -> Float[Tensor, "m k k"]:
    """The kernel of a lens out of focus in a hand that moved: an even disc drawn along a line.

    Lengths are in pixels, the angle is in degrees; the disc's edge is one pixel wide, and the
    kernel ends `reach` pixels from its middle.
    """
    offset = torch.arange(-reach, reach + 1, device=radius.device, dtype=radius.dtype)
    down, right = torch.meshgrid(offset, offset, indexing="ij")
    turn = per_row(angle.deg2rad(), down[None])
    half = per_row(length / 2, down[None])
    projected = right * turn.cos() + down * turn.sin()
    on_line = torch.minimum(torch.maximum(projected, -half), half)
    from_line = torch.stack([right - on_line * turn.cos(), down - on_line * turn.sin()])
    distance: Tensor = torch.linalg.vector_norm(from_line, dim=0)
    kernel: Tensor = (1 + per_row(radius, down[None]) - distance).clamp(0, 1)
    return kernel / kernel.sum((1, 2), keepdim=True)


def tent(width: Float[Tensor, " m"], reach: int) -> Float[Tensor, "m k k"]:
    """The kernel of pixels `width` wide, linear between them, averaged over their phase."""
    offset = torch.arange(-reach, reach + 1, device=width.device, dtype=width.dtype)
    side = (1 - offset.abs() / width[:, None]).clamp_min(0)
    kernel = side[:, :, None] * side[:, None, :]
    return kernel / kernel.sum((1, 2), keepdim=True)


def streak(
    length: Float[Tensor, " m"],
    sigma: Float[Tensor, " m"],
    angle: Float[Tensor, " m"],
    *,
    reach: float,
) -> Float[Tensor, "m k k"]:
    """The kernel of a motion: half a normal curve along a line from the middle.

    The line ends after `length` pixels, of which none exceeds `reach`; `sigma` is the deviation of
    the weights in pixels, 0 no motion; angles are in degrees, 0 to the left, 90 upwards.
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


def gaussian_matrix(
    size: int, sigma: Float[Tensor, " m"], *, reach: float, truncate: float = 4.0
) -> Float[Tensor, "m size size"]:
    """The matrix that blurs an axis of `size` pixels, its outermost pixels repeated beyond it.

    `sigma` is in pixels, one per row, at most `reach`; 0 is the identity. The kernel ends after
    `truncate` standard deviations.
    """
    radius = int(truncate * reach + 0.5)
    inside = torch.arange(size, device=sigma.device)
    outside = torch.arange(-radius, size + radius, device=sigma.device)
    gap = (outside[None] - inside[:, None]).to(sigma.dtype)
    deviation = sigma.clamp_min(1e-3)[:, None, None]
    near = gap.abs() <= (truncate * deviation + 0.5).floor()
    weight = (-0.5 * (gap / deviation).square()).exp() * near
    weight = weight / weight.sum(2, keepdim=True)
    empty = weight.new_zeros(*weight.shape[:2], size)
    return empty.index_add(2, outside.clamp(0, size - 1), weight)


def gaussian(x: Batch, sigma: Float[Tensor, " m"], *, reach: float) -> Batch:
    """Blur by a normal kernel of `sigma` pixels, one per row; see `gaussian_matrix`."""
    return along(x, *(gaussian_matrix(size, sigma, reach=reach) for size in x.shape[2:]))


def filtered(x: Batch, kernel: Float[Tensor, "k k"]) -> Batch:
    """All images convolved with one small kernel, the border repeated."""
    size = len(kernel)
    before = (size - 1) // 2
    after = size // 2
    padded = functional.pad(x, (before, after, before, after), mode="replicate")
    weight = kernel.to(x)[None, None].expand(x.shape[1], 1, size, size)
    return functional.conv2d(padded, weight, groups=x.shape[1])


def binomial(x: Batch) -> Batch:
    """A 5x5 binomial blur."""
    return filtered(x, constant(BINOMIAL, x.dtype, x.device))


def box(x: Batch, size: int) -> Batch:
    """The mean of `size` x `size` pixels."""
    return filtered(x, torch.full((size, size), 1 / size**2))


def gaussian_window(x: Batch, size: int) -> Batch:
    """A normal kernel of `size` x `size` pixels, as wide as image libraries make it."""
    sigma = 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    line = torch.exp(-((torch.arange(size) - (size - 1) / 2) ** 2) / (2 * sigma**2))
    line = line / line.sum()
    return filtered(x, line.outer(line))


def median(x: Batch, size: int) -> Batch:
    """The median of the `size` x `size` pixels around each."""
    return _windows(x, size).median(dim=2).values


def bilateral(x: Batch, *, size: int = 7, far: float = 50.0, unlike: float = 50 / 255) -> Batch:
    """A mean over `size` pixels across in which near and alike ones weigh more: `far` and `unlike`
    are the deviations of nearness, in pixels, and of likeness, in units of [0, 1].
    """
    half = size // 2
    around = _windows(x, size)
    axis = torch.arange(-half, half + 1, device=x.device)
    distance = (axis[:, None] ** 2 + axis[None] ** 2).flatten()
    difference = total((around - x[:, :, None]).square())[:, None]
    weight = torch.exp(-distance / (2 * far**2))[:, None, None] * torch.exp(
        -difference / (2 * unlike**2)
    )
    # The window is a disc, not a square: the same reach in all directions.
    weight = weight * (distance <= half**2)[:, None, None]
    return total(around * weight, 2) / total(weight, 2)


def _windows(x: Batch, size: int) -> Float[Tensor, "m c s h w"]:
    """The neighbourhood of every pixel, the border repeated."""
    padded = functional.pad(x, (size // 2,) * 4, mode="replicate")
    return padded.unfold(2, size, 1).unfold(3, size, 1).flatten(4).movedim(4, 2)


def stroke_width(
    x: Batch, *, thicker: Float[Tensor, "m 1 1 1"], thinner: Float[Tensor, "m 1 1 1"]
) -> Batch:
    """Bright strokes thicker or thinner by up to a pixel on each side, as a share of that; never
    thinner by more than 0.7 of it, so that the finest stay.
    """
    thick = functional.max_pool2d(x, 3, 1, 1)
    thin = -functional.max_pool2d(-x, 3, 1, 1)
    return x + (thick - x) * thicker + 0.7 * (thin - x) * thinner


def widened(x: Batch, ground: Ground, amount: Float[Tensor, " m"], *, most: int) -> Batch:
    """Figures whose strokes grow by `amount` pixels on each side, or shrink below 0.

    A stroke grows where a neighbour belongs to it; parts of a pixel are parts of that change. No
    amount is larger than `most`.
    """
    bright = (ground.mean((1, 2, 3)) > 0.5).to(x.dtype)
    sign = per_row(1 - 2 * bright, x)
    start = sign * x  # strokes are what is largest, on a dark and on a bright ground
    figure = start
    for step in range(most):
        more = per_row((amount - step).clamp(0, 1), x)
        less = per_row((-amount - step).clamp(0, 1), x)
        grown = _largest_nearby(figure)
        shrunk = -_largest_nearby(-figure)
        figure = figure + more * (grown - figure) + less * (shrunk - figure)
    return x + sign * (figure - start)


def faded(x: Batch, ground: Ground, share: Float[Tensor, " m"]) -> Batch:
    """Figures that lose a share of their difference from the ground."""
    return x + per_row(share, x) * (ground - x)


def plain_ground(x: Batch) -> Ground:
    """The colour of the ground: the median of the border."""
    x = x.detach()
    border = torch.cat([x[:, :, 0], x[:, :, -1], x[:, :, 1:-1, 0], x[:, :, 1:-1, -1]], 2)
    return border.sort(2).values[:, :, border.shape[2] // 2, None, None]


def _largest_nearby(x: Batch) -> Batch:
    """The largest of each pixel and its eight neighbours.

    By `torch.maximum`, whose gradient is added in a fixed order; that of `max_pool2d` is not.
    """
    for dim in (2, 3):
        size = x.shape[dim]
        before = torch.cat([x.narrow(dim, 0, 1), x.narrow(dim, 0, size - 1)], dim)
        after = torch.cat([x.narrow(dim, 1, size - 1), x.narrow(dim, size - 1, 1)], dim)
        x = torch.maximum(torch.maximum(x, before), after)
    return x
