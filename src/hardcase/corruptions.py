"""Standard corruptions of images: batched, of any severity from 0 (the image itself) to 5, drawn
from a key per row.

After D. Hendrycks, T. Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", ICLR 2019, https://arxiv.org/abs/1903.12261; elastic as in C. Michaelis et al.,
"Benchmarking Robustness in Object Detection: Autonomous Driving when Winter is Coming", 2019,
https://arxiv.org/abs/1907.07484. Differences from the reference: glass blur moves pixels
independently instead of swapping them in sequence; the drops of spatter are shaded by the
slope of the liquid instead of a chain of edge detection and histogram equalisation; shot noise
above a mean of 6 counts uses a Cornish-Fisher quantile; radii and zooms need not be whole pixels;
elastic mirrors images about their outermost pixels; JPEG is that of `hardcase.imaging.colour`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError, choice
from hardcase.imaging import blur, colour, noise, resample
from hardcase.imaging.noise import WORD, Draws
from hardcase.spaces.coordinates import CoordinateGroup, Shape, Values, alone
from hardcase.tensors import constant, per_row

SIDE = 224
"""The side in pixels of the images for which lengths were published."""
MOST = 5.0
TINY = 1e-6

Batch = Float[Tensor, "m c h w"]
Constants = Float[Tensor, "m p"]
Effect = Callable[[Tensor, Tensor, Draws, float], Tensor]
"""Images, a column of constants for each row, draws, and the pixels of this image that stand for
one of the 224: continuous in the constants wherever the published form is, and the identity at
those of severity 0."""
Lengths = Literal["relative", "pixels"]


@dataclass(frozen=True, slots=True)
class Corruption:
    """A corruption, named as in ImageNet-C. `nodes` are its constants at severity 0, at which
    nothing changes, and at the published severities 1 to 5; `extra`: whether it is among the four
    outside the fifteen of the mean corruption error.
    """

    name: str
    kind: str
    nodes: tuple[tuple[float, ...], ...]
    effect: Effect
    extra: bool = False

    def constants(self, severity: Float[Tensor, " m"]) -> Constants:
        """The constants of any severity, linear between the published ones."""
        table = constant(self.nodes, severity.dtype, severity.device)
        below = severity.floor().clamp(0, len(table) - 2)
        start = below.long()
        return table[start].lerp(table[start + 1], (severity - below)[:, None])


CORRUPTIONS: dict[str, Corruption] = {}
"""The nineteen of ImageNet-C less frost, which pastes photographs. `saturate` first pales and then
deepens: it passes the image itself between severities 2 and 3."""


def _row(
    kind: str, *nodes: float | tuple[float, ...], extra: bool = False
) -> Callable[[Effect], Effect]:
    """Enter an effect under its name, with its constants at the severities 0 to 5."""
    columns = tuple(node if isinstance(node, tuple) else (node,) for node in nodes)

    def enter(effect: Effect) -> Effect:
        name = effect.__name__
        CORRUPTIONS[name] = Corruption(name, kind, columns, effect, extra)
        return effect

    return enter


@_row("noise", 0, 0.08, 0.12, 0.18, 0.26, 0.38)
def gaussian_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Normal noise of equal strength everywhere."""
    return x + per_row(c[:, 0], x) * draws.normal("noise", *x.shape[1:])


@_row("noise", 0, 1 / 60, 1 / 25, 1 / 12, 1 / 5, 1 / 3)
def shot_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Light that comes in grains: counts are Poisson, `c` the reciprocal of the grains of white."""
    grain = per_row(c[:, 0].clamp_min(TINY), x)
    return noise.poisson(x / grain, draws.uniform("noise", *x.shape[1:])) * grain


@_row("noise", 0, 0.03, 0.06, 0.09, 0.17, 0.27)
def impulse_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Values replaced by black or white, with equal probability everywhere."""
    u = draws.uniform("noise", *x.shape[1:])
    chance = per_row(c[:, 0], x)
    return torch.where(u < chance / 2, 0.0, torch.where(u > 1 - chance / 2, 1.0, x))


@_row("noise", 0, 0.15, 0.2, 0.35, 0.45, 0.6, extra=True)
def speckle_noise(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Normal noise in proportion to the light."""
    return x + x * per_row(c[:, 0], x) * draws.normal("noise", *x.shape[1:])


@_row("blur", (0, 0), (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5))
def defocus_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """A disc with a softened edge for every point, as through a lens out of focus."""
    radius, soft = c.unbind(1)
    still = torch.zeros_like(radius)
    kernel = blur.disc(radius * unit - 0.5, still, still, reach=math.ceil(10 * unit) + 2)
    matrix = blur.gaussian_matrix(kernel.shape[1], soft, reach=1.0, truncate=1.0)
    return blur.convolve(x, resample.along(kernel[:, None], matrix, matrix)[:, 0])


_GLASS = ((0, 0, 0), (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))


@_row("blur", *_GLASS)
def glass_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Blurred, pixels moved at random, and blurred again, as through frosted glass."""
    sigma, reach, times = c.unbind(1)
    m, _, h, w = x.shape
    hazy = blur.gaussian(x, sigma * unit, reach=1.5 * unit)
    far = torch.maximum(reach * unit, reach.clamp_max(1))  # at least one pixel
    rows = torch.arange(h, device=x.device)[:, None].expand(m, h, w)
    columns = torch.arange(w, device=x.device).expand(m, h, w)
    # what moves ahead of a sweep of swaps is moved again by it
    moves = times.square() + times.clamp_max(1)
    for step in range(10):
        now = per_row((moves - step).clamp(0, 1) * far, rows)
        here = (rows * w + columns).flatten(1)
        down, right = (
            (now * (2 * draws.uniform(f"{way}{step}", h, w) - 1)).round().long()
            for way in ("down", "right")
        )
        rows = (rows + down.flatten(1).gather(1, here).reshape(m, h, w)).clamp(0, h - 1)
        columns = (columns + right.flatten(1).gather(1, here).reshape(m, h, w)).clamp(0, w - 1)
    index = (rows * w + columns).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    scattered = hazy.flatten(2).gather(2, index).reshape(x.shape)
    return blur.gaussian(scattered, sigma * unit, reach=1.5 * unit)


@_row("blur", (10, 0), (10, 3), (15, 5), (15, 8), (15, 12), (20, 15))
def motion_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Movement along a line within 45 degrees of the horizontal."""
    return _dragged(x, c[:, 0], c[:, 1], 90 * draws.uniform("angle") - 45, unit)


def _dragged(x: Batch, radius: Tensor, sigma: Tensor, angle: Tensor, unit: float) -> Batch:
    kernel = blur.streak((2 * radius + 1) * unit, sigma * unit, angle, reach=41 * unit)
    return blur.convolve(x, kernel, border="repeat")


@_row("blur", (0, 12), (0.11, 12), (0.15, 16), (0.2, 11), (0.24, 13), (0.3, 11))
def zoom_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """The mean of the image and enlargements of it; `c`: the largest of them, and how many were
    published."""
    most, count = c.unbind(1)
    layers = 15
    total = torch.zeros_like(x)
    for layer in range(1, layers + 1):
        total += _enlarged(x, 1 + most * layer / layers)
    sharp = per_row(2 / (count + 1), x)  # the image itself counts twice
    return sharp * x + (1 - sharp) * total / layers


def _enlarged(x: Batch, factor: Float[Tensor, " m"]) -> Batch:
    return resample.along(x, *(resample.zoom_matrix(size, factor) for size in x.shape[2:]))


@_row("blur", 0, 1, 2, 3, 4, 6, extra=True)
def gaussian_blur(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """A normal kernel for every point."""
    return blur.gaussian(x, c[:, 0] * unit, reach=6 * unit)


@_row(
    "weather",
    (0.1, 0.3, 3, 0.5, 10, 4, 1, 0),
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8, 1),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7, 1),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7, 1),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65, 1),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55, 1),
)
def snow(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Flakes that fall, before a whitened image."""
    level, spread, zoom, least, radius, sigma, keep, fade = c.unbind(1)
    flakes = per_row(level, x) + per_row(spread, x) * draws.normal("flakes", 1, *x.shape[2:])
    flakes = _enlarged(flakes, (zoom * unit).clamp_min(1))
    flakes = torch.where(flakes < per_row(least, x), 0.0, flakes).clamp(0, 1)
    angle = -135 + 90 * draws.uniform("angle")
    flakes = per_row(fade, x) * _dragged(flakes, radius, sigma, angle, unit)
    pale = torch.maximum(x, colour.luma(x) * 1.5 + 0.5)
    return x.lerp(pale, per_row(1 - keep, x)) + flakes + flakes.flip(2, 3)


@_row("weather", (0, 2), (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))
def fog(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """A cloud of fractal density in front of the image; `c`: how dense, and how fast its detail
    fades."""
    dense, decay = c.unbind(1)
    cloud = noise.plasma(draws, decay, max(x.shape[2:]))[:, None, : x.shape[2], : x.shape[3]]
    most = x.amax((1, 2, 3), keepdim=True)
    dense = per_row(dense, x)
    return (x + dense * cloud) * most / (most + dense).clamp_min(TINY)


@_row(
    "weather",
    (0.65, 0.3, 4, 0.69, 0.6, 0, 0),
    (0.65, 0.3, 4, 0.69, 0.6, 0, 0.22),
    (0.65, 0.3, 3, 0.68, 0.6, 0, 0.28),
    (0.65, 0.3, 2, 0.68, 0.5, 0, 0.32),
    (0.65, 0.3, 1, 0.65, 1.5, 1, 0.32),
    (0.67, 0.4, 1, 0.65, 1.5, 1, 0.32),
    extra=True,
)
def spatter(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Drops of water, turning into stains of mud between severities 3 and 4.

    The last constant, how bright a drop is, is ours: it makes the mean effect that of the
    reference.
    """
    level, spread, sigma, least, strength, mud, shine = c.unbind(1)
    h, w = x.shape[2:]
    raw = draws.normal("liquid", 1, h, w)
    down, across = (blur.gaussian_matrix(s, sigma * unit, reach=4 * unit) for s in (h, w))
    left = down[:, h // 2].norm(dim=1) * across[:, w // 2].norm(dim=1)  # of the spread, smoothed
    wanted = spread / (2 * math.sqrt(math.pi) * sigma)  # what smoothing leaves at 224 pixels
    liquid = per_row(level, x) + per_row(wanted / left, x) * resample.along(raw, down, across)
    shining = per_row(strength * shine, x) * noise.drops(liquid, per_row(least, x))
    water = x + shining * _shade(x, (175, 238, 238))
    thick = (liquid > per_row(least, x)).to(x.dtype)
    stain = blur.gaussian(thick, strength * unit, reach=1.5 * unit)
    stain = torch.where(stain < 0.8, 0.0, stain)
    dirty = x * (1 - stain) + stain * _shade(x, (63, 42, 20))
    return water.clamp(0, 1).lerp(dirty, per_row(mud, x))


def _shade(x: Batch, rgb: tuple[int, int, int]) -> Float[Tensor, "c 1 1"]:
    """A colour of 0 to 255, for images with as many channels as `x`."""
    value = constant(rgb, x.dtype, x.device)[:, None, None] / 255
    if x.shape[1] == 3:
        return value
    return colour.luma(value)


@_row("weather", 0, 0.1, 0.2, 0.3, 0.4, 0.5)
def brightness(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """More light in the sense of hue, saturation and value."""
    return colour.raised(x, c[:, 0])


@_row("digital", 1, 0.4, 0.3, 0.2, 0.1, 0.05)
def contrast(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Every channel drawn towards its mean."""
    return x.mean((2, 3), keepdim=True).lerp(x, per_row(c[:, 0], x))


@_row("digital", (1, 0), (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2), extra=True)
def saturate(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Paler, then deeper colours."""
    return colour.saturated(x, c[:, 0], c[:, 1])


@_row("digital", 0, 12.5, 16.25, 21.25, 25, 30)
def elastic_transform(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Places moved by a smooth random field."""
    h, w = x.shape[2:]
    field = 0.005 * h * (2 * draws.uniform("field", 2, h, w) - 1)
    smooth = (
        blur.gaussian_matrix(size, torch.full_like(c[:, 0], 0.01 * size), reach=0.01 * size)
        for size in (h, w)
    )
    moved = per_row(c[:, 0], field) * resample.along(field, *smooth)
    return resample.resample(x, resample.centred_places(h, w, x) + moved)


@_row("digital", 1, 0.6, 0.5, 0.4, 0.3, 0.25)
def pixelate(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """Cells of uniform colour; `c`: cells for each pixel of a side."""
    cells = ((size, (size * c[:, 0] + TINY).floor().clamp_min(1)) for size in x.shape[2:])
    return resample.along(x, *(resample.cell_matrix(size, count) for size, count in cells))


@_row("digital", (0, 0), *((50 / quality, 1) for quality in (25, 18, 15, 10, 7)))
def jpeg_compression(x: Batch, c: Constants, draws: Draws, unit: float) -> Batch:
    """A JPEG file; `c`: the scale of its rounding steps, and how far colour is halved."""
    scale, halved = c.unbind(1)
    quality = torch.where(scale > 1, 50 / scale.clamp_min(1), 100 - 50 * scale)
    return colour.compressed(x, quality, halved=halved)


def corruption(name: str) -> Corruption:
    """The corruption of that name."""
    if name not in CORRUPTIONS:
        raise choice("corruption", name, tuple(CORRUPTIONS))
    return CORRUPTIONS[name]


def corrupt(
    x: Batch,
    name: str,
    severity: Float[Tensor, " m"],
    keys: Int[Tensor, " m"],
    *,
    lengths: Lengths = "relative",
) -> Batch:
    """Corrupt a batch.

    Args:
        x: Images in [0, 1] of 1 or 3 channels.
        name: A name in `CORRUPTIONS`.
        severity: From 0 (nothing changes) to 5, a value per row; integers are the published
            severities.
        keys: What a row's random numbers are hashed from, such as the number of its seed: equal
            keys, equal noise.
        lengths: ``relative``: the lengths published for 224 pixels scale with the shorter side.
            ``pixels``: they do not.

    Returns:
        Images in [0, 1], not rounded to 8 bits.

    Example:
        >>> x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> y = corrupt(x, "fog", torch.tensor([0.0, 2.5]), torch.tensor([7, 7]))
        >>> bool((y[0] == x[0]).all()), bool((y[1] == x[1]).all())
        (True, False)
    """
    chosen = corruption(name)
    if x.shape[1] not in (1, 3) or min(x.shape[2:]) < 8:
        raise HardcaseError(
            f"images of shape {tuple(x.shape[1:])} cannot be corrupted.",
            fix="one or three channels and at least 8 pixels a side",
        )
    if not bool(((severity >= 0) & (severity <= MOST)).all()):
        low = float(severity.min())
        high = float(severity.max())
        raise HardcaseError(
            f"severities lie between 0 and 5; given are {low:g} to {high:g}.",
            fix="severity.clamp(0, 5)",
        )
    if not len(x):
        return x
    unit = 1.0
    if lengths == "relative":
        unit = min(x.shape[2:]) / SIDE
    constants = chosen.constants(severity.to(x))
    changed = chosen.effect(x, constants, Draws(keys.to(x.device)), unit).clamp(0, 1)
    same = x
    if changed.requires_grad:  # the image itself, from which gradients still lead away
        same = x + (changed - changed.detach())
    return torch.where((severity.to(x.device) == 0)[:, None, None, None], same, changed)


@dataclass(frozen=True, slots=True)
class CorruptionPart:
    """Corruptions as a part of a space of appearance: of the finished image, in sequence.

    Their random numbers follow from the original's pixels, and from a sample.

    Args:
        severities: Each corruption with the greatest severity that it may have.

    Example:
        >>> part = CorruptionPart((("fog", 3.0),))
        >>> [(c.name, c.high) for group in part.groups((3, 32, 32)) for c in group.coordinates]
        [('fog', 3.0)]
    """

    severities: tuple[tuple[str, float], ...]
    name: ClassVar[str] = "corruption"
    stage: ClassVar[int] = 6
    patterned: ClassVar[bool] = True

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        return tuple(
            alone(
                name,
                "",
                most,
                signed=False,
                digits=1,
                plus=f"{name.replace('_', ' ')} of severity {{}}",
            )
            for name, most in self.severities
        )

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        for number, (name, _) in enumerate(self.severities):
            salted = (key + number * 0x9E3779B1) & WORD  # two kinds of noise are not the same noise
            x = corrupt(x.clamp(0, 1), name, values[name].clamp(0, MOST), salted)
        return x
