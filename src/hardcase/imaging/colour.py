"""What a camera makes of light: exposure, mid-tones, contrast, white balance, saturation, JPEG.

Light is counted in stops of *linear* light. Pixels hold its power 1/2.2, so one stop multiplies a
pixel by ``2 ** (1 / 2.2)`` and no conversion there and back disturbs the unchanged image.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.imaging.blur import mirrored
from hardcase.imaging.resample import combine, spread, spread_across
from hardcase.tensors import constant, per_row, steady

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


def lit(
    x: Batch,
    *,
    exposure: Float[Tensor, " m"],
    shade: Float[Tensor, "m 1 p q"],
    limit: float,
    balance: Float[Tensor, "m 3 1 1"] | None,
    gamma: Float[Tensor, " m"],
    contrast: Float[Tensor, " m"],
) -> Batch:
    """Images in another light: exposure and shade (at control points) of together `limit` stops at
    most, a white balance where there are colours, mid-tones and contrast; see `relit`.
    """
    if not steady(x.device):
        from hardcase.imaging import fused

        colours = () if balance is None else (balance,)
        if fused.usable(x, exposure, shade, *colours, gamma, contrast):
            wide, down = spread_across(shade, *x.shape[2:])
            rows = (exposure, gamma - 1, contrast)
            return fused.light(x, rows, balance, wide, down, limit, ENCODING)
    stops = (per_row(exposure, x) + spread(shade, *x.shape[2:])).clamp(-limit, limit)
    if balance is not None:
        stops = stops + balance
    return relit(x, stops, gamma, contrast)


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


# JPEG, batched and differentiable. It is our own because no library has all that is needed: a
# quality per row, a slope by quality for a gradient search, an image that stays untouched at
# quality 100, and a row's bits that do not depend on the rest of the batch or on the device.
#
# ITU-T T.81 (1992) with the example tables of annex K. Differences from a file: steps are neither
# rounded nor limited to 255, and what a block lacks is mirrored instead of repeated.

Table = tuple[tuple[int, ...], ...]

LUMA_STEPS: Table = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Steps of luma at quality 50: table K.1."""

CHROMA_STEPS: Table = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
"""Steps of chroma at quality 50: table K.2."""

TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))

WINDOW = 5.0
"""The slope by quality is that of the secant over so much less and so much more quality."""


def compressed(
    x: Batch, quality: Float[Tensor, " m"], *, halved: Float[Tensor, " m"] | None = None
) -> Batch:
    """JPEG at each row's quality; 100 leaves the image untouched.

    Rounding has no useful slope. By quality it is that of the secant over `WINDOW`: what a little
    less quality does. By `x` it is straight-through, that of no compression. `halved` is how far
    colour is stored at half the resolution, from 0 (not at all) to 1 (as most files do).
    """
    colours = x.shape[1] == 3
    tables = (LUMA_STEPS, CHROMA_STEPS, CHROMA_STEPS) if colours else (LUMA_STEPS,)
    if halved is None and not steady(x.device):
        from hardcase.imaging import fused

        if x.shape[1] in (1, 3) and fused.usable(x, quality):
            matrices = (constant(matrix, x.dtype, x.device) for matrix in (TO_YCC, TO_RGB))
            steps = constant(tables, x.dtype, x.device)
            return fused.compress(x, steps, _cosines(x), _scale(quality), *matrices)
    planes = x.detach() * 255 - 128
    if not colours:
        return (x + _losses(planes, tables, quality) / 255).clamp(0, 1)
    planes = combine(planes, constant(TO_YCC, x.dtype, x.device), 1)
    change = _losses(planes, tables, quality)
    if halved is not None:
        chroma = planes[:, 1:]
        half = functional.avg_pool2d(chroma, 2, ceil_mode=True, count_include_pad=False)
        half = half + _losses(half, (CHROMA_STEPS, CHROMA_STEPS), quality)
        coarse = functional.interpolate(half, scale_factor=2, mode="bilinear")
        coarse = coarse[:, :, : x.shape[2], : x.shape[3]]
        colour = change[:, 1:].lerp(coarse - chroma, per_row(halved, x))
        change = torch.cat([change[:, :1], colour], 1)
    change = combine(change, constant(TO_RGB, x.dtype, x.device), 1)
    return (x + change / 255).clamp(0, 1)


def _losses(planes: Batch, tables: tuple[Table, ...], quality: Float[Tensor, " m"]) -> Batch:
    """What rounding the cosines of each 8x8 block adds to planes, one table of steps for each."""
    steps = constant(tables, planes.dtype, planes.device)[None, :, None, :, None, :]
    cosine = _cosines(planes)
    waves = combine(combine(_blocks(planes), cosine, 5), cosine, 3)
    errors = _rounding(waves, steps, quality.detach())
    if quality.requires_grad:
        more = (quality.detach() + WINDOW).clamp_max(100)
        less = (quality.detach() - WINDOW).clamp_min(1)
        rise = _rounding(waves, steps, more) - _rounding(waves, steps, less)
        slope = rise / per_row(more - less, rise)
        errors = errors + per_row(quality - quality.detach(), slope) * slope
    change = combine(combine(errors, cosine.T, 5), cosine.T, 3)
    change = change.reshape(len(planes), len(tables), 8 * change.shape[2], -1)
    return change[:, :, : planes.shape[2], : planes.shape[3]]


def _rounding(
    waves: Float[Tensor, "m c r 8 s 8"],
    steps: Float[Tensor, "1 c 1 8 1 8"],
    quality: Float[Tensor, " m"],
) -> Float[Tensor, "m c r 8 s 8"]:
    """What rounding to multiples of the steps adds to each coefficient at each row's quality."""
    scaled = steps * per_row(_scale(quality), waves)
    units = waves / scaled.clamp_min(1e-6)
    return scaled * (units.round() - units)


def _scale(quality: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """By how much the steps of quality 50 are multiplied."""
    return torch.where(quality < 50, 50 / quality, 2 - quality / 50)


def _blocks(planes: Batch) -> Float[Tensor, "m c r 8 s 8"]:
    """Blocks of 8 by 8; what is missing to whole blocks is mirrored."""
    down = -planes.shape[2] % 8
    right = -planes.shape[3] % 8
    padded = mirrored(mirrored(planes, down, 2)[:, :, down:], right, 3)[:, :, :, right:]
    return padded.reshape(*planes.shape[:2], padded.shape[2] // 8, 8, padded.shape[3] // 8, 8)


def _cosines(like: Tensor) -> Float[Tensor, "8 8"]:
    """The orthonormal cosine transform of eight numbers: frequencies by places."""
    place = torch.arange(8, device=like.device, dtype=like.dtype)
    waves = torch.cos(torch.pi / 8 * (place[None, :] + 0.5) * place[:, None]) / 2
    return torch.cat([waves[:1] / math.sqrt(2), waves[1:]])
