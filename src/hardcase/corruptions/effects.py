"""What each corruption does to a batch, given its constants for every row.

Every function takes images, a column of constants for each row, the draws of the rows, and `unit`:
the pixels of this image that stand for one pixel of the 224 for which lengths were published. All
are continuous in their constants wherever the published form is, and the identity at the constants
of severity 0 (see `table`).

After D. Hendrycks, T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261; elastic as in C. Michaelis et al.,
"Benchmarking Robustness in Object Detection: Autonomous Driving when Winter is Coming", 2019,
https://arxiv.org/abs/1907.07484. Differences from the reference: glass blur moves pixels
independently instead of swapping them one after the other; the drops of spatter are shaded by the
slope of the liquid instead of a chain of edge detection and histogram equalisation; shot noise
above a mean of 6 counts uses a Cornish-Fisher quantile; radii and zooms need not be whole pixels;
JPEG's quantisation steps are not rounded.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from hardcase.corruptions import filters
from hardcase.corruptions.draws import Draws
from hardcase.tensors import per_row

TINY = 1e-6
GREY = (0.299, 0.587, 0.114)

Batch = Float[Tensor, "m c h w"]
Constants = Float[Tensor, "m p"]


def gaussian_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Normal noise of one strength everywhere."""
    return x + per_row(c[:, 0], x) * draws.normal("noise", *x.shape[1:])


def shot_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Light that comes in grains: counts are Poisson, `c` the reciprocal of the grains of white."""
    grain = per_row(c[:, 0].clamp_min(TINY), x)
    return _poisson(x / grain, draws.uniform("noise", *x.shape[1:])) * grain


def _poisson(mean: Batch, u: Batch, *, few: float = 6.0, most: int = 22) -> Batch:
    """The quantile `u` of a Poisson count: exact below a mean of `few`, else by the Cornish-Fisher
    expansion."""
    small = mean.clamp_max(few)
    chance = (-small).exp()
    reached = chance.clone()
    count = torch.zeros_like(mean)
    for k in range(1, most):
        count += u > reached
        chance = chance * small / k
        reached += chance
    z = (2 * u - 1).erfinv() * math.sqrt(2)
    root = mean.clamp_min(few).sqrt()
    wide = mean + root * z + (z.square() - 1) / 6 + (z - z**3) / (72 * root)
    return torch.where(mean < few, count, wide.round().clamp_min(0))


def impulse_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Values replaced by black or white, with one chance everywhere."""
    u = draws.uniform("noise", *x.shape[1:])
    chance = per_row(c[:, 0], x)
    return torch.where(u < chance / 2, 0.0, torch.where(u > 1 - chance / 2, 1.0, x))


def speckle_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Normal noise in proportion to the light."""
    return x + x * per_row(c[:, 0], x) * draws.normal("noise", *x.shape[1:])


def gaussian_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    return filters.blur(x, c[:, 0] * unit, reach=6 * unit)


def defocus_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """A disk for every point, as through a lens out of focus."""
    radius, soft = c.unbind(1)
    return filters.convolve(x, filters.disk(radius * unit, soft, reach=10 * unit), "reflect")


def glass_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Blurred, pixels moved at random, and blurred again, as through frosted glass."""
    sigma, reach, times, least = c.unbind(1)
    m, _, h, w = x.shape
    hazy = filters.blur(x, sigma * unit, reach=1.5 * unit)
    far = torch.maximum(reach * unit, least)
    rows = torch.arange(h, device=x.device)[:, None].expand(m, h, w)
    columns = torch.arange(w, device=x.device).expand(m, h, w)
    moves = times.square() + times.clamp_max(
        1
    )  # what moves ahead of a sweep of swaps is moved again by it
    for step in range(10):
        now = (moves - step).clamp(0, 1) * far
        here = (rows * w + columns).flatten(1)
        move = [
            (per_row(now, rows) * (2 * draws.uniform(f"{way}{step}", h, w) - 1)).round().long()
            for way in ("down", "right")
        ]
        down, right = (part.flatten(1).gather(1, here).reshape(m, h, w) for part in move)
        rows = (rows + down).clamp(0, h - 1)
        columns = (columns + right).clamp(0, w - 1)
    index = (rows * w + columns).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    moved = hazy.flatten(2).gather(2, index).reshape(x.shape)
    return filters.blur(moved, sigma * unit, reach=1.5 * unit)


def motion_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Movement along a line within 45 degrees of the horizontal."""
    return _moved(x, c[:, 0], c[:, 1], 90 * draws.uniform("angle") - 45, unit)


def _moved(x: Batch, radius: Tensor, sigma: Tensor, angle: Tensor, unit: float) -> Batch:
    kernel = filters.streak((2 * radius + 1) * unit, sigma * unit, angle, reach=41 * unit)
    return filters.convolve(x, kernel)


def zoom_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """The mean of the image and enlargements of it; `c`: the largest of them, and how many were
    published."""
    most, count = c.unbind(1)
    layers = 15
    total = torch.zeros_like(x)
    for layer in range(1, layers + 1):
        factor = 1 + most * layer / layers
        total += filters.along(x, *(filters.zoom_matrix(size, factor) for size in x.shape[2:]))
    sharp = per_row(2 / (count + 1), x)  # the image itself counts twice
    return sharp * x + (1 - sharp) * total / layers


def snow(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Flakes that fall, before a whitened image."""
    level, spread, zoom, least, radius, sigma, keep, fade = c.unbind(1)
    h, w = x.shape[2:]
    flakes = per_row(level, x) + per_row(spread, x) * draws.normal("flakes", 1, h, w)
    flakes = filters.along(
        flakes, *(filters.zoom_matrix(s, (zoom * unit).clamp_min(1)) for s in (h, w))
    )
    flakes = torch.where(flakes < per_row(least, x), 0.0, flakes).clamp(0, 1)
    flakes = per_row(fade, x) * _moved(
        flakes, radius, sigma, -135 + 90 * draws.uniform("angle"), unit
    )
    pale = torch.maximum(x, _grey(x) * 1.5 + 0.5)
    return x.lerp(pale, per_row(1 - keep, x)) + flakes + flakes.flip(2, 3)


def _grey(x: Batch) -> Float[Tensor, "m 1 h w"]:
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * torch.tensor(GREY, device=x.device, dtype=x.dtype)[:, None, None]).sum(
        1, keepdim=True
    )


def fog(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """A cloud of fractal density in front of the image; `c`: how dense, and how fast its detail
    fades."""
    dense, decay = c.unbind(1)
    cloud = _plasma(draws, decay, max(x.shape[2:]))[:, None, : x.shape[2], : x.shape[3]]
    most = x.amax((1, 2, 3), keepdim=True)
    dense = per_row(dense, x)
    return (x + dense * cloud) * most / (most + dense).clamp_min(TINY)


def _plasma(draws: Draws, decay: Float[Tensor, " m"], size: int) -> Float[Tensor, "m s s"]:
    """A fractal cloud between 0 and 1 by the diamond-square method, on a torus whose side is a
    power of two."""
    grid = decay.new_zeros(len(decay), 1, 1)
    strength = torch.ones_like(decay)
    for level in range(max(1, (size - 1).bit_length())):
        n = grid.shape[1]
        noise = per_row(strength, grid) * (2 * draws.uniform(f"cloud{level}", 3 * n, n) - 1)
        middle, above, left = torch.split(noise, n, 1)
        below = grid + grid.roll(-1, 1)
        middle = middle + (below + below.roll(-1, 2)) / 4
        above = above + (middle + middle.roll(1, 1) + grid + grid.roll(-1, 2)) / 4
        left = left + (middle + middle.roll(1, 2) + grid + grid.roll(-1, 1)) / 4
        upper = torch.stack([grid, above], 3).flatten(2)
        lower = torch.stack([left, middle], 3).flatten(2)
        grid = torch.stack([upper, lower], 2).flatten(1, 2)
        strength = (
            strength / decay.square()
        )  # the published form scales the noise by its strength twice
    low = grid.amin((1, 2), keepdim=True)
    high = grid.amax((1, 2), keepdim=True)
    return (grid - low) / (high - low).clamp_min(TINY)


def spatter(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Drops of water, turning into stains of mud between severities 3 and 4."""
    level, spread, sigma, least, strength, mud, shine = c.unbind(1)
    h, w = x.shape[2:]
    raw = draws.normal("liquid", 1, h, w)
    down, across = (filters.gaussian_matrix(size, sigma * unit, reach=4 * unit) for size in (h, w))
    left = down[:, h // 2].norm(dim=1) * across[:, w // 2].norm(
        dim=1
    )  # of the spread, after smoothing
    wanted = spread / (2 * math.sqrt(math.pi) * sigma)  # what smoothing leaves at 224 pixels
    liquid = per_row(level, x) + per_row(wanted / left, x) * filters.along(raw, down, across)
    water = x + per_row(strength * shine, x) * _drops(liquid, per_row(least, x)) * _coloured(
        x, (175, 238, 238)
    )
    stain = filters.blur(
        (liquid > per_row(least, x)).to(x.dtype), strength * unit, reach=1.5 * unit
    )
    stain = torch.where(stain < 0.8, 0.0, stain)
    dirty = x * (1 - stain) + stain * _coloured(x, (63, 42, 20))
    return water.clamp(0, 1).lerp(dirty, per_row(mud, x))


def _drops(liquid: Float[Tensor, "m 1 h w"], least: Tensor) -> Float[Tensor, "m 1 h w"]:
    """How strongly drops shine, lit from the upper left: 1 where the liquid is level."""
    wet = (liquid >= least).to(liquid.dtype)
    edged = functional.pad(liquid, (1, 1, 1, 1), mode="replicate")
    slope = edged[:, :, 2:, 2:] - edged[:, :, :-2, :-2]
    scale = (slope.square() * wet).sum((2, 3), keepdim=True) / wet.sum(
        (2, 3), keepdim=True
    ).clamp_min(1)
    return wet * (1 + slope / scale.sqrt().clamp_min(TINY)).clamp(0, 3)


def _coloured(x: Batch, colour: tuple[int, int, int]) -> Float[Tensor, "c 1 1"]:
    value = torch.tensor(colour, device=x.device, dtype=x.dtype) / 255
    if x.shape[1] != 3:
        value = (value * torch.tensor(GREY, device=x.device, dtype=x.dtype)).sum()[None]
    return value[:, None, None]


def brightness(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """The value (largest channel) raised, hue and saturation kept."""
    value = x.amax(1, keepdim=True)
    raised = (value + per_row(c[:, 0], x)).clamp(0, 1)
    return torch.where(value > TINY, x * raised / value.clamp_min(TINY), raised)


def saturate(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """The saturation scaled and raised, hue and value kept; grey counts as the palest red. One
    channel stays as it is."""
    if x.shape[1] != 3:
        return x
    value = x.amax(1, keepdim=True)
    missing = value - x
    chroma = missing.amax(1, keepdim=True)
    saturation = chroma / value.clamp_min(TINY)
    wanted = (saturation * per_row(c[:, 0], x) + per_row(c[:, 1], x)).clamp(0, 1)
    red = torch.tensor((0.0, 1.0, 1.0), device=x.device, dtype=x.dtype)[:, None, None]
    way = torch.where(chroma > TINY, missing / chroma.clamp_min(TINY), red)
    return value - value * wanted * way


def contrast(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Every channel drawn towards its mean."""
    return x.mean((2, 3), keepdim=True).lerp(x, per_row(c[:, 0], x))


def elastic(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Places moved by a smooth random field."""
    h, w = x.shape[2:]
    field = 0.005 * h * (2 * draws.uniform("field", 2, h, w) - 1)
    down, across = (
        filters.gaussian_matrix(
            size,
            torch.full_like(c[:, 0], 0.01 * size),
            reach=0.01 * size,
            border="symmetric",
            truncate=3.0,
        )
        for size in (h, w)
    )
    moved = per_row(c[:, 0], field) * filters.along(field, down, across)
    return filters.resample(x, moved[:, 0], moved[:, 1])


def pixelate(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Cells of one colour each; `c`: cells for each pixel of a side."""
    down, across = (
        filters.cell_matrix(size, (size * c[:, 0] + TINY).floor().clamp_min(1))
        for size in x.shape[2:]
    )
    return filters.along(x, down, across)


LUMA = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip
CHROMA = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
    *(99,) * 32,
)  # fmt: skip
"""Steps of the example tables of the JPEG standard (ITU-T T.81, annex K), row by row."""


def jpeg(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Blocks of cosines with rounded strengths; `c`: the scale of the rounding steps, and how far
    colour is halved."""
    scale, halved = c.unbind(1)
    channels, h, w = x.shape[1:]
    whole = functional.pad(255 * x, (0, -w % 16, 0, -h % 16), mode="replicate")
    if channels != 3:
        return _quantised(whole - 128, scale, LUMA)[:, :, :h, :w].add(128) / 255
    turn = torch.tensor(
        [GREY, (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312)],
        device=x.device,
        dtype=x.dtype,
    )
    turned = torch.einsum("dc,mchw->mdhw", turn, whole)
    light = _quantised(turned[:, :1] - 128, scale, LUMA) + 128
    colour = turned[:, 1:]
    half = _quantised(functional.avg_pool2d(colour, 2), scale, CHROMA)
    fine = functional.interpolate(half, scale_factor=2, mode="bilinear", align_corners=False)
    colour = _quantised(colour, scale, CHROMA).lerp(fine, per_row(halved, x))
    back = torch.einsum("dc,mchw->mdhw", torch.linalg.inv(turn), torch.cat([light, colour], 1))
    return back[:, :, :h, :w] / 255


def _quantised(x: Batch, scale: Float[Tensor, " m"], steps: tuple[int, ...]) -> Batch:
    """`x` (sides multiples of 8) with the cosines of its blocks rounded to multiples of `steps`
    times `scale`."""
    m, c, h, w = x.shape
    number = torch.arange(8, device=x.device, dtype=x.dtype)
    basis = torch.cos(torch.pi * (2 * number + 1) * number[:, None] / 16) / 2
    basis[0] = math.sqrt(1 / 8)
    table = torch.tensor(steps, device=x.device, dtype=x.dtype).reshape(8, 8)
    step = (scale[:, None, None] * table).clamp(TINY, 255)[:, None, None]  # m 1 1 8 8
    blocks = x.reshape(m, c, h // 8, 8, w // 8, 8).transpose(3, 4).reshape(m, c, -1, 8, 8)
    strengths = basis @ blocks @ basis.T
    kept = torch.where(step > 1e-3, (strengths / step).round() * step, strengths)
    return (
        (basis.T @ kept @ basis)
        .reshape(m, c, h // 8, w // 8, 8, 8)
        .transpose(3, 4)
        .reshape(x.shape)
    )
