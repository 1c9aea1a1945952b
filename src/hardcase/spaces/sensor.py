"""What the sensor and the file do to an image: fewer pixels, noise, JPEG compression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem
from hardcase.spaces.coordinates import (
    Coordinate,
    CoordinateGroup,
    Shape,
    Values,
    alone,
    check_options,
)
from hardcase.spaces.geometry import combine, either
from hardcase.spaces.optics import content_key, convolved, lattice, mirrored
from hardcase.tensors import constant, per_row

LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
"""Steps of luma at quality 50: ITU-T T.81 (1992), table K.1."""

CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)
"""Steps of chroma at quality 50: ITU-T T.81 (1992), table K.2."""

TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136, -0.714136), (1.0, 1.772, 0.0))

WINDOW = 5.0
"""The slope by quality is that of the secant over so much less and so much more quality."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor:
    """A cheaper camera.

    Args:
        resolution: how much wider a pixel may get: the image averaged over such pixels and drawn
            linearly between them; by default 0.5 for images of up to 64 pixels (half as wide
            again), 1.5 above.
        noise: the greatest standard deviation in bright parts, in grey levels of 255. Its pattern
            is fixed: it follows from the seed's own pixels.
        quality: the lowest JPEG quality (full resolution of colour, steps not rounded).
    """

    resolution: float | None = None
    noise: float = 16.0
    quality: float = 20.0
    name: ClassVar[str] = "sensor"
    stage: ClassVar[int] = 5

    def __post_init__(self) -> None:
        check_options(self)
        if not 1 <= self.quality <= 100:
            raise Problem(
                f"sensor has quality={self.quality}; JPEG has 1 to 100.", fix="quality=20"
            )

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        resolution = Coordinate(
            name="resolution",
            unit="times",
            rest=1.0,
            reach=either(self.resolution, shape, small=0.5, large=1.5),
            signed=False,
            plus="pixels {} as wide",
            digits=1,
        )
        noise = Coordinate(
            name="noise", unit="levels", reach=self.noise, signed=False, plus="noise of {}"
        )
        compression = Coordinate(
            name="JPEG quality",
            unit="",
            rest=100.0,
            reach=self.quality - 100.0,
            signed=False,
            plus="JPEG quality {}",
        )
        return alone(resolution), alone(noise), alone(compression)

    def render(
        self, x: Float[Tensor, "m c h w"], values: Values, seed: Float[Tensor, "m c h w"]
    ) -> Float[Tensor, "m c h w"]:
        channels, height, width = x.shape[1:]
        widest = 1 + either(self.resolution, (channels, height, width), small=0.5, large=1.5)
        x = convolved(x, _tent(values["resolution"], math.ceil(widest) - 1))
        x = x + per_row(values["noise"] / 255, x) * grain(seed) * (0.4 + 0.6 * x.clamp(0, 1)).sqrt()
        return compressed(x.clamp(0, 1), values["JPEG quality"])


def _tent(width: Float[Tensor, " m"], radius: int) -> Float[Tensor, "m k k"]:
    """The kernel of pixels `width` wide, read linearly between them and averaged over where they
    may begin.
    """
    offset = torch.arange(-radius, radius + 1, device=width.device, dtype=width.dtype)
    side = (1 - offset.abs() / width[:, None]).clamp_min(0)
    kernel = side[:, :, None] * side[:, None, :]
    return kernel / kernel.sum((1, 2), keepdim=True)


def grain(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Noise of unit variance that follows from each image's bytes, mostly of luminance as in a
    processed photograph.

    Sums of uniform integers rather than logarithms: the same numbers on every device.
    """
    count, channels, height, width = x.shape
    layers = channels + 1 if channels > 1 else 1
    key = content_key(x)
    one = lattice(key, layers * height * width, salt=1)
    two = lattice(key, layers * height * width, salt=2)
    total = (one & 0xFFFF) + (one >> 16) + (two & 0xFFFF) + (two >> 16)
    normal = ((total - 2 * 0xFFFF).to(x.dtype) / (0xFFFF * math.sqrt(4 / 12))).reshape(
        count, layers, height, width
    )
    return normal if layers == 1 else 0.8 * normal[:, :1] + 0.6 * normal[:, 1:]


def compressed(
    x: Float[Tensor, "m c h w"], quality: Float[Tensor, " m"]
) -> Float[Tensor, "m c h w"]:
    """JPEG at each row's quality; 100 leaves the image untouched.

    Rounding has no useful slope. By quality it is that of the secant over `WINDOW`: what a little
    less quality does. By `x` it is straight-through, that of no compression.
    """
    height, width = x.shape[2:]
    colour = x.shape[1] == 3
    tables = (LUMA, CHROMA, CHROMA) if colour else (LUMA,)
    steps = constant(tables, x.dtype, x.device)[None, :, None, :, None, :]
    planes = x.detach() * 255 - 128
    if colour:
        planes = combine(planes, constant(TO_YCC, x.dtype, x.device), 1)
    cosine = _cosines(x)
    waves = combine(combine(_blocks(planes), cosine, 5), cosine, 3)
    errors = _rounding(waves, steps, quality.detach())
    if quality.requires_grad:
        more = (quality.detach() + WINDOW).clamp_max(100)
        less = (quality.detach() - WINDOW).clamp_min(1)
        rise = _rounding(waves, steps, more) - _rounding(waves, steps, less)
        slope = rise / per_row(more - less, rise)
        errors = errors + per_row(quality - quality.detach(), slope) * slope
    change = combine(combine(errors, cosine.T, 5), cosine.T, 3)
    change = change.reshape(len(x), len(tables), 8 * change.shape[2], -1)[:, :, :height, :width]
    if colour:
        change = combine(change, constant(TO_RGB, x.dtype, x.device), 1)
    return (x + change / 255).clamp(0, 1)


def _rounding(
    waves: Float[Tensor, "m c r 8 s 8"],
    steps: Float[Tensor, "1 c 1 8 1 8"],
    quality: Float[Tensor, " m"],
) -> Float[Tensor, "m c r 8 s 8"]:
    """What rounding to multiples of the steps adds to each coefficient at each row's quality."""
    scale = torch.where(quality < 50, 50 / quality, 2 - quality / 50)
    own = steps * per_row(scale, waves)
    units = waves / own.clamp_min(1e-6)
    return own * (units.round() - units)


def _blocks(planes: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c r 8 s 8"]:
    """Blocks of 8 by 8; what is missing to whole blocks is mirrored."""
    down = -planes.shape[2] % 8
    right = -planes.shape[3] % 8
    whole = mirrored(mirrored(planes, down, 2)[:, :, down:], right, 3)[:, :, :, right:]
    return whole.reshape(
        len(planes), planes.shape[1], whole.shape[2] // 8, 8, whole.shape[3] // 8, 8
    )


def _cosines(like: Tensor) -> Float[Tensor, "8 8"]:
    """The orthonormal cosine transform of eight numbers: frequencies by places."""
    place = torch.arange(8, device=like.device, dtype=like.dtype)
    waves = torch.cos(torch.pi / 8 * (place[None, :] + 0.5) * place[:, None]) / 2
    return torch.cat([waves[:1] / math.sqrt(2), waves[1:]])
