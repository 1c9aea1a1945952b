"""What lies between the scene and the sensor: light, weather and the lens.

Light is counted in stops of *linear* light. Pixels hold its power 1/2.2, so one stop multiplies a
pixel by ``2 ** (1 / 2.2)`` and no conversion there and back disturbs the unchanged image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.spaces.coordinates import (
    Coordinate,
    CoordinateGroup,
    Shape,
    Values,
    alone,
    check_options,
)
from hardcase.spaces.geometry import either, shorter, spread
from hardcase.tensors import per_row, to_bytes

ENCODING = 2.2
"""Pixels are linear light to the power of one over this."""

LUMINANCE = (0.2126, 0.7152, 0.0722)
"""What red, green and blue add to luminance."""

DARKEST = 1 / 512
"""Below half a grey level gamma goes on as a straight line."""

WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """Another exposure, another hour of the day, a soft shadow; luminance only, except for white
    balance.

    Args:
        stops: the range of exposure and of shade, and the limit of both together at any pixel, in
            stops.
        gamma: how far the exponent of mid-tones leaves 1.
        contrast: more or less, as a share, about mid-grey.
        temperature: of white balance, in stops of red against blue (images with colour).
        tint: of white balance, in stops of green against red and blue (images with colour).
        points: control points of the shade along each axis.
    """

    stops: float = 1.0
    gamma: float = 0.25
    contrast: float = 0.25
    temperature: float = 0.6
    tint: float = 0.2
    points: int = 4
    name: ClassVar[str] = "light"
    stage: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_options(self)

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        exposure = Coordinate(
            name="exposure",
            unit="stops",
            reach=self.stops,
            plus="{} brighter",
            minus="{} darker",
            digits=1,
        )
        gamma = Coordinate(
            name="gamma",
            unit="",
            rest=1.0,
            reach=self.gamma,
            plus="darker mid-tones (gamma {})",
            minus="lighter mid-tones (gamma {})",
            digits=2,
        )
        contrast = Coordinate(
            name="contrast",
            unit="%",
            reach=100 * self.contrast,
            plus="{} more contrast",
            minus="{} less contrast",
        )
        shade = tuple(
            Coordinate(
                name=f"shade {row + 1},{column + 1}",
                unit="stops",
                reach=self.stops,
                plus="lit unevenly by up to {}",
                digits=1,
            )
            for row in range(self.points)
            for column in range(self.points)
        )
        balance = self._white_balance() if shape[0] == 3 else ()
        return (
            alone(exposure),
            alone(gamma),
            alone(contrast),
            *balance,
            CoordinateGroup(name="shade", coordinates=shade, axes=1),
        )

    def _white_balance(self) -> tuple[CoordinateGroup, ...]:
        temperature = Coordinate(
            name="temperature",
            unit="stops",
            reach=self.temperature,
            plus="{} warmer",
            minus="{} cooler",
            digits=1,
        )
        tint = Coordinate(
            name="tint",
            unit="stops",
            reach=self.tint,
            plus="{} greener",
            minus="{} more magenta",
            digits=1,
        )
        return (CoordinateGroup(name="white balance", coordinates=(temperature, tint)),)

    def render(
        self, x: Float[Tensor, "m c h w"], values: Values, seed: Float[Tensor, "m c h w"]
    ) -> Float[Tensor, "m c h w"]:
        coarse = values["shade"].reshape(-1, 1, self.points, self.points)
        stops = per_row(values["exposure"], x) + spread(coarse, x.shape[2], x.shape[3])
        stops = stops.clamp(-self.stops, self.stops)
        if x.shape[1] == 3:
            stops = stops + _balance(values["temperature"], values["tint"])
        x = x * torch.exp2(stops / ENCODING)
        x = x * torch.exp(per_row(values["gamma"] - 1, x) * x.clamp_min(DARKEST).log())
        x = x + per_row(values["contrast"] / 100, x) * (x - 0.5)
        return x.clamp(0, 1)


def _balance(
    temperature: Float[Tensor, " m"], tint: Float[Tensor, " m"]
) -> Float[Tensor, "m 3 1 1"]:
    """Stops by channel that leave the luminance of grey nearly as it is."""
    red = temperature / 2 - tint / 2
    green = tint / 2
    blue = -temperature / 2 - tint / 2
    mean = LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue
    return torch.stack([red - mean, green - mean, blue - mean], 1)[:, :, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Fog, rain and snow, without a model of depth. Where drops and flakes fall follows from the
    seed's own pixels.

    Args:
        fog: the greatest share of light that comes from the fog.
        rain: the greatest opacity of the streaks.
        snow: the greatest opacity of the flakes.
    """

    fog: float = 0.6
    rain: float = 0.6
    snow: float = 0.9
    name: ClassVar[str] = "weather"
    stage: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check_options(self)

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        fog = Coordinate(name="fog", unit="%", reach=100 * self.fog, signed=False, plus="{} fog")
        rain = Coordinate(
            name="rain", unit="%", reach=100 * self.rain, signed=False, plus="{} rain"
        )
        snow = Coordinate(
            name="snow", unit="%", reach=100 * self.snow, signed=False, plus="{} snow"
        )
        return alone(fog), alone(rain), alone(snow)

    def render(
        self, x: Float[Tensor, "m c h w"], values: Values, seed: Float[Tensor, "m c h w"]
    ) -> Float[Tensor, "m c h w"]:
        key = content_key(seed)
        fog = per_row(values["fog"] / 100, x) * _mist(key, x)
        x = x + fog * (0.82 - x)
        rain = per_row(values["rain"] / 100, x)
        x = x + rain * _rain(key, x) * (0.88 - x)
        x = x - rain * 0.12 * x
        x = x + per_row(values["snow"] / 100, x) * _snow(key, x) * (0.97 - x)
        return x.clamp(0, 1)


def _mist(key: Int[Tensor, " m"], x: Tensor) -> Tensor:
    """How dense the fog is everywhere: nearly even, in soft banks."""
    banks = (lattice(key, 20, salt=11) & 0xFFFF).to(x.dtype).reshape(-1, 1, 5, 4) / 0xFFFF
    return 0.72 + 0.28 * spread(banks, x.shape[2], x.shape[3]).clamp(0, 1)


def _rain(key: Int[Tensor, " m"], x: Tensor) -> Tensor:
    side = min(x.shape[2:])
    fine = _specks(
        key,
        x,
        cell=(max(side / 7, 8), max(side / 22, 6)),
        size=(max(side / 18, 1.6), max(side / 420, 0.5)),
        salt=21,
    )
    near = _specks(
        key,
        x,
        cell=(max(side / 4, 12), max(side / 9, 11)),
        size=(max(side / 10, 3), max(side / 300, 0.6)),
        salt=22,
    )
    return torch.maximum(0.6 * fine, near)


def _snow(key: Int[Tensor, " m"], x: Tensor) -> Tensor:
    side = min(x.shape[2:])
    layers = [
        brightness * _specks(key, x, cell=(cell, cell), size=(size, size), salt=salt)
        for brightness, cell, size, salt in (
            (0.6, max(side / 18, 7), side / 190, 31),
            (0.8, max(side / 10, 9), side / 110, 32),
            (1.0, max(side / 5, 14), side / 65, 33),
        )
    ]
    return torch.stack(layers).amax(0)


def _specks(
    key: Int[Tensor, " m"],
    x: Tensor,
    *,
    cell: tuple[float, float],
    size: tuple[float, float],
    salt: int,
) -> Float[Tensor, "m 1 h w"]:
    """Soft ellipses, in three of four cells of a slightly slanted lattice one, each at its own
    place in its cell.

    Args:
        key: what the places follow from.
        x: images, for their size, device and type.
        cell: height and width of a cell in pixels.
        size: half height and half width of an ellipse.
        salt: tells layers apart.
    """
    height, width = x.shape[2:]
    down = torch.arange(height, device=x.device, dtype=torch.float32)[:, None]
    right = torch.arange(width, device=x.device, dtype=torch.float32)[None, :] + 0.18 * down
    row = (down / cell[0]).floor()
    column = (right / cell[1]).floor()
    across = int((width + 0.18 * height) // cell[1]) + 1
    count = (int(height // cell[0]) + 1) * across
    index = (row * across + column).long().flatten()
    drawn = lattice(key, count, salt=salt)[:, index].reshape(len(key), height, width)
    place_down = ((drawn & 0xFF).to(x.dtype) / 255 - 0.5) * max(cell[0] - 2 * size[0], 0)
    place_right = ((drawn >> 8 & 0xFF).to(x.dtype) / 255 - 0.5) * max(cell[1] - 2 * size[1], 0)
    grown = 0.6 + 0.4 * (drawn >> 16 & 0xFF).to(x.dtype) / 255
    present = (drawn >> 24 & 0x3).to(x.dtype).clamp_max(1)
    away_down = (down - (row + 0.5) * cell[0]) - place_down
    away_right = (right - (column + 0.5) * cell[1]) - place_right
    away = ((away_down / (size[0] + 0.5)).square() + (away_right / (size[1] + 0.5)).square()).sqrt()
    return (present * ((grown - away) * 2).clamp(0, 1))[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus:
    """A lens out of focus and a hand that moved while the shutter was open: one kernel, an even
    disc drawn along a line.

    Args:
        defocus: the greatest radius of the disc, as a share of the shorter side; by default 0.03
            for images of up to 64 pixels, 0.012 above.
        motion: the greatest length of the line, likewise; by default 0.08 and 0.035.
    """

    defocus: float | None = None
    motion: float | None = None
    name: ClassVar[str] = "focus"
    stage: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_options(self)

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        defocus, motion = self._reach(shape)
        disc = Coordinate(
            name="defocus",
            unit="px",
            reach=defocus,
            signed=False,
            plus="out of focus by {}",
            digits=1,
        )
        line = Coordinate(
            name="motion",
            unit="px",
            reach=motion,
            signed=False,
            plus="blurred by a motion of {} at {angle}",
            digits=1,
        )
        angle = Coordinate(name="angle", unit="°", reach=90.0, counts=False)
        return alone(disc), CoordinateGroup(name="motion", coordinates=(line, angle))

    def _reach(self, shape: Shape) -> tuple[float, float]:
        side = shorter(shape)
        defocus = either(self.defocus, shape, small=0.03, large=0.012) * side
        motion = either(self.motion, shape, small=0.08, large=0.035) * side
        return defocus, motion

    def render(
        self, x: Float[Tensor, "m c h w"], values: Values, seed: Float[Tensor, "m c h w"]
    ) -> Float[Tensor, "m c h w"]:
        channels, height, width = x.shape[1:]
        defocus, motion = self._reach((channels, height, width))
        radius = math.ceil(defocus + motion / 2)
        offset = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
        down, right = torch.meshgrid(offset, offset, indexing="ij")
        angle = per_row(values["angle"].deg2rad(), down[None])
        half = per_row(values["motion"] / 2, down[None])
        along = right * angle.cos() + down * angle.sin()
        on_line = torch.minimum(torch.maximum(along, -half), half)
        beside = torch.stack([right - on_line * angle.cos(), down - on_line * angle.sin()])
        distance = torch.linalg.vector_norm(beside, dim=0)
        kernel = (1 + per_row(values["defocus"], down[None]) - distance).clamp(0, 1)
        return convolved(x, kernel / kernel.sum((1, 2), keepdim=True))


def convolved(
    x: Float[Tensor, "m c h w"], kernel: Float[Tensor, "m k k"]
) -> Float[Tensor, "m c h w"]:
    """Every image with its own kernel of odd size, mirrored at the edges; a kernel of one point
    leaves it untouched.

    By Fourier transform: the cost does not grow with the kernel. What is computed is the *change*,
    exactly 0 for that kernel.
    """
    radius = kernel.shape[-1] // 2
    top = min(radius, x.shape[2] - 1)
    left = min(radius, x.shape[3] - 1)
    padded = mirrored(mirrored(x, left, 3), top, 2)
    height = _fast(max(padded.shape[2], kernel.shape[1]))
    width = _fast(max(padded.shape[3], kernel.shape[2]))
    missing = (0, width - kernel.shape[2], 0, height - kernel.shape[1])
    centred = torch.nn.functional.pad(kernel, missing).roll((-radius, -radius), (1, 2))
    response = torch.fft.rfft2(centred) - 1
    spectrum = torch.fft.rfft2(padded, s=(height, width)) * response[:, None]
    change: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return x + change[:, :, top : top + x.shape[2], left : left + x.shape[3]]


def mirrored(x: Tensor, margin: int, dim: int) -> Tensor:
    """`x` reflected at both ends of an axis, by operations whose gradients add in a fixed order."""
    before = x.narrow(dim, 1, margin).flip(dim)
    after = x.narrow(dim, x.shape[dim] - 1 - margin, margin).flip(dim)
    return torch.cat([before, x, after], dim)


def _fast(size: int) -> int:
    """The next size that has no prime factor above 5."""
    while True:
        rest = size
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return size
        size += 1


def content_key(x: Float[Tensor, "m c h w"]) -> Int[Tensor, " m"]:
    """A 32-bit hash of each image's bytes: equal for equal images, on every device and beside any
    others.
    """
    values = to_bytes(x).flatten(1).long()
    weights = _mixed(torch.arange(1, values.shape[1] + 1, device=x.device)) | 1
    return _mixed((values * weights).sum(1) & WORD)


def lattice(key: Int[Tensor, " m"], count: int, *, salt: int) -> Int[Tensor, "m count"]:
    """`count` random 32-bit numbers for each key: a function of key, salt and position alone."""
    own = _mixed((key + salt * 0x9E3779B1) & WORD)
    return _mixed((own[:, None] + torch.arange(count, device=key.device) * 0x85EBCA6B) & WORD)


def _mixed(numbers: Int[Tensor, " *shape"]) -> Int[Tensor, " *shape"]:
    """Every bit of the result depends on every bit of a 32-bit number; products stay in 59 bits."""
    numbers = ((numbers >> 16) ^ numbers) * 0x045D9F3B & WORD
    numbers = ((numbers >> 16) ^ numbers) * 0x045D9F3B & WORD
    return (numbers >> 16) ^ numbers
