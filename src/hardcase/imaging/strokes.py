"""Figures on a plain ground, drawn by another pen: thicker, thinner, fainter."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.tensors import per_row

__all__ = ["faded", "plain_ground", "widened"]

Batch = Float[Tensor, "m c h w"]
Ground = Float[Tensor, "m c 1 1"]


def widened(x: Batch, ground: Ground, amount: Float[Tensor, " m"], *, most: int) -> Batch:
    """Return figures whose strokes grow by `amount` pixels on each side, or shrink below 0.

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
    """Return figures that lose a share of their difference from the ground."""
    return x + per_row(share, x) * (ground - x)


def plain_ground(x: Batch) -> Ground:
    """Return the colour of the ground: the median of the border."""
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
