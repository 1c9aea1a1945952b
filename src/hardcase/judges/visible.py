"""How visible a change is: plain numbers, measured of an image and its original. No verdict.

A label may be kept and the image may still look wrong: grainy, flat or clipped. Nobody but a reader
can say whether that matters, so these numbers sort and filter what is shown and decide nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

from hardcase.imaging.blur import binomial
from hardcase.tensors import chunks, from_bytes
from hardcase.types import ImagePairs

NEAR = 3
"""Pixels around an edge in which a change may be a part of the shape."""
STEEP = 0.1
"""Change of brightness from a pixel to the next, after smoothing, that is an edge."""
BATCH = 1024


def visible_change(pairs: ImagePairs) -> dict[str, list[float]]:
    """Return the measured numbers of each image by their names.

    ``noise``: root mean square of the change, in grey levels of 1, more than `NEAR` pixels away
    from every edge of the original or of the image (or anywhere, if edges are everywhere).
    ``saturated``: share of values that are black or white now and were not before.
    ``root_mean_square``: of the change over all pixels.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> from hardcase.judges.visible import visible_change
        >>> blank = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
        >>> pairs = hc.ImagePairs(torch.full_like(blank, 51), blank, torch.tensor([0]))
        >>> round(visible_change(pairs)["noise"][0], 3)
        0.2
    """
    measures: dict[str, list[float]] = {"noise": [], "saturated": [], "root_mean_square": []}
    for rows in chunks(len(pairs), BATCH):
        x, original = pairs.x[rows], pairs.original[rows]
        change = from_bytes(x) - from_bytes(original)
        measures["noise"] += _noise(from_bytes(x), from_bytes(original)).tolist()
        measures["saturated"] += (
            (_clipped(x) & ~_clipped(original)).flatten(1).double().mean(1).tolist()
        )
        measures["root_mean_square"] += change.flatten(1).square().mean(1).sqrt().tolist()
    return measures


def _noise(x: Float[Tensor, "m c h w"], original: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
    """Return the root mean square of the change where neither image has a shape."""
    flat = ~(_near_edges(original) | _near_edges(x))
    flat = flat | ~flat.flatten(1).any(1)[:, None, None, None]
    power = (x - original).square().mean(1, keepdim=True) * flat
    return (power.flatten(1).sum(1) / flat.flatten(1).sum(1)).sqrt()


def _near_edges(x: Float[Tensor, "m c h w"]) -> Bool[Tensor, "m 1 h w"]:
    """Return which pixels are at most `NEAR` pixels from an edge of the smoothed image."""
    smooth = binomial(binomial(x.mean(1, keepdim=True)))
    down = functional.pad(smooth.diff(dim=2).abs(), (0, 0, 0, 1))
    right = functional.pad(smooth.diff(dim=3).abs(), (0, 1, 0, 0))
    edge = (torch.maximum(down, right) > STEEP).float()
    return functional.max_pool2d(edge, 2 * NEAR + 1, stride=1, padding=NEAR) > 0


def _clipped(x: UInt8[Tensor, "m c h w"]) -> Bool[Tensor, "m c h w"]:
    return (x == 0) | (x == 255)
