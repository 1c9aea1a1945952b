"""Light and colour: exposure, mid-tones, contrast, white balance, saturation.

Light is counted in stops of *linear* light. Pixels hold its power 1/2.2, so one stop multiplies a
pixel by ``2 ** (1 / 2.2)`` and no conversion there and back disturbs the unchanged image.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.tensors import constant, per_row

Batch = Float[Tensor, "m c h w"]

ENCODING = 2.2
"""Pixels are linear light to the power of one over this."""

LUMINANCE = (0.2126, 0.7152, 0.0722)
"""What red, green and blue add to luminance (ITU-R BT.709)."""

LUMA = (0.299, 0.587, 0.114)
"""What they add to the luma of JPEG and most image libraries (ITU-R BT.601)."""

DARKEST = 1 / 512
"""Below half a grey level gamma goes on as a straight line."""

TINY = 1e-6


def relit(
    x: Batch,
    stops: Float[Tensor, "m c h w"],
    gamma: Float[Tensor, " m"],
    contrast: Float[Tensor, " m"],
) -> Batch:
    """Images in another light: `stops` of exposure (of any shape that broadcasts), the exponent
    `gamma` of mid-tones (1 changes nothing), and more or less contrast about mid-grey, as a share.
    """
    x = x * torch.exp2(stops / ENCODING)
    x = x * torch.exp(per_row(gamma - 1, x) * x.clamp_min(DARKEST).log())
    x = x + per_row(contrast, x) * (x - 0.5)
    return x.clamp(0, 1)


def white_balance(
    temperature: Float[Tensor, " m"], tint: Float[Tensor, " m"]
) -> Float[Tensor, "m 3 1 1"]:
    """Stops by channel that leave the luminance of grey nearly as it is: temperature is red against
    blue, tint green against both.
    """
    red = temperature / 2 - tint / 2
    green = tint / 2
    blue = -temperature / 2 - tint / 2
    mean = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    return torch.stack([red - mean, green - mean, blue - mean], 1)[:, :, None, None]


def luma(x: Float[Tensor, "*m c h w"]) -> Float[Tensor, "*m 1 h w"]:
    """Brightness as the eye weighs colours; the mean channel where there are not three."""
    if x.shape[-3] != 3:
        return x.mean(-3, keepdim=True)
    weights = constant(LUMA, x.dtype, x.device)[:, None, None]
    return (x * weights).sum(-3, keepdim=True)


def raised(x: Batch, amount: Float[Tensor, " m"]) -> Batch:
    """The value (largest channel) raised, hue and saturation kept."""
    value = x.amax(1, keepdim=True)
    wanted = (value + per_row(amount, x)).clamp(0, 1)
    return torch.where(value > TINY, x * wanted / value.clamp_min(TINY), wanted)


def saturated(x: Batch, factor: Float[Tensor, " m"], amount: Float[Tensor, " m"]) -> Batch:
    """The saturation scaled and raised, hue and value kept; grey counts as the palest red.

    One channel stays as it is.
    """
    if x.shape[1] != 3:
        return x
    value = x.amax(1, keepdim=True)
    missing = value - x
    chroma = missing.amax(1, keepdim=True)
    saturation = chroma / value.clamp_min(TINY)
    wanted = (saturation * per_row(factor, x) + per_row(amount, x)).clamp(0, 1)
    red = constant((0.0, 1.0, 1.0), x.dtype, x.device)[:, None, None]
    hue = torch.where(chroma > TINY, missing / chroma.clamp_min(TINY), red)
    return value - value * wanted * hue
