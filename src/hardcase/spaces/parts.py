"""The parts of a space of appearance: their coordinates, and what of `hardcase.imaging` they do.

Images pass through them as light does: a warp of the scene and the pose of the camera (together a
single resampling), light, weather, the lens, the sensor. Natural ranges of lengths differ between
small images (up to 64 pixels) and photographs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from jaxtyping import Int
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.imaging import blur, colour, noise, resample
from hardcase.spaces.coordinates import (
    OF_THE_SIDE,
    Batch,
    Coordinate,
    CoordinateGroup,
    Places,
    Shape,
    Values,
    alone,
    control_points,
)

SMALL = 64
"""Images with a shorter side of up to this many pixels have other natural ranges than photographs.
"""


def _natural(option: float | None, shape: Shape, *, small: float, large: float) -> float:
    """An option, or else what is natural for images of this shape."""
    if option is not None:
        return option
    if min(shape[1:]) <= SMALL:
        return small
    return large


class CheckedPart:
    """A part whose options are sizes: finite, not negative, two control points or more."""

    __slots__ = ()
    name: ClassVar[str]
    patterned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        part: Any = self
        for option in fields(part):
            value = getattr(part, option.name)
            if value is None:
                continue
            if not (math.isfinite(value) and value >= 0):
                raise HardcaseError(
                    f"{part.name} has {option.name}={value}; ranges are finite and not negative."
                )
            if option.name == "points" and value < 2:
                raise HardcaseError(
                    f"{part.name} has points={value}; a field needs 2 or more along each axis.",
                    fix=f"{part.name}(points=5)",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Warp(CheckedPart):
    """The scene bends like rubber: displacements at control points, interpolated bicubically.

    Args:
        points: control points along each axis; by default 7 for images of up to 64 pixels, 6 above.
        reach: how far any pixel may move, as a share of the shorter side; by default 0.06 for
            images of up to 64 pixels (12 % of half the side), 0.05 above.
    """

    points: int | None = None
    reach: float | None = None
    name: ClassVar[str] = "warp"
    stage: ClassVar[int] = 0

    def __post_init__(self) -> None:
        CheckedPart.__post_init__(self)
        if self.reach == 0:
            raise HardcaseError("warp has reach=0: nothing can move.", fix="reach=0.05")

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        points, reach = self._range(shape)
        axes = ("down", "right")
        words = "bent by up to {}"
        return (
            control_points("bend", OF_THE_SIDE, 100 * reach, points=points, axes=axes, plus=words),
        )

    def _range(self, shape: Shape) -> tuple[int, float]:
        """Control points along each axis, and how far they move as a share of the side."""
        points = _natural(self.points, shape, small=7, large=6)
        return int(points), _natural(self.reach, shape, small=0.06, large=0.05)

    def move(self, places: Places, values: Values, shape: Shape) -> Places:
        points, reach = self._range(shape)
        side = min(shape[1:])
        coarse = values["bend"].reshape(-1, 2, points, points) * (side / 100)
        field = resample.spread(coarse, places.shape[2], places.shape[3])
        excess = (field.square().sum(1, keepdim=True) / (reach * side) ** 2).clamp_min(1)
        return places - field * excess.rsqrt()  # none farther than `reach`


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera(CheckedPart):
    """The image from another viewpoint.

    Args:
        rotation: about the line of sight, in degrees.
        scale: closer or farther, as a share.
        shift: along each axis, as a share of the shorter side.
        shear: sideways for each pixel down, as a share.
        view: perspective tilt: how far the camera stands to the side or above, in degrees; the
            scene is a plane at a distance of 1 side.
    """

    rotation: float = 11.0
    scale: float = 0.15
    shift: float = 0.06
    shear: float = 0.1
    view: float = 15.0
    name: ClassVar[str] = "camera"
    stage: ClassVar[int] = 1

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        shift = tuple(
            Coordinate(
                f"shift {plus}",
                OF_THE_SIDE,
                100 * self.shift,
                plus=f"moved {plus} by {{}}",
                minus=f"moved {minus} by {{}}",
                digits=1,
            )
            for plus, minus in (("right", "left"), ("down", "up"))
        )
        view = tuple(
            Coordinate(
                f"view from {plus}",
                "°",
                self.view,
                plus=f"seen {{}} from {plus}",
                minus=f"seen {{}} from {minus}",
            )
            for plus, minus in (("the left", "the right"), ("above", "below"))
        )
        turned = {"plus": "tilted {} clockwise", "minus": "tilted {} anticlockwise"}
        slanted = {"plus": "slanted {} to the right", "minus": "slanted {} to the left"}
        return (
            alone("rotation", "°", self.rotation, **turned),
            alone("scale", "%", 100 * self.scale, plus="{} larger", minus="{} smaller"),
            CoordinateGroup(name="shift", coordinates=shift),
            alone("shear", "%", 100 * self.shear, **slanted),
            CoordinateGroup(name="view", coordinates=view),
        )

    def move(self, places: Places, values: Values, shape: Shape) -> Places:
        side = min(shape[1:])
        return resample.pose(
            places,
            right=values["shift right"] * (side / 100),
            down=values["shift down"] * (side / 100),
            left_view=values["view from the left"],
            top_view=values["view from above"],
            zoom=1 + values["scale"] / 100,
            rotation=values["rotation"],
            shear=values["shear"] / 100,
            distance=side,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke(CheckedPart):
    """Another pen: figures on a plain ground drawn thicker, thinner or fainter.

    Args:
        width: how much wider or narrower a stroke may get, as a share of the shorter side.
        fading: the greatest share of its difference from the ground that a figure loses.
    """

    width: float = 0.04
    fading: float = 0.5
    name: ClassVar[str] = "stroke"
    stage: ClassVar[int] = 1

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        words = {"plus": "strokes thicker by {}", "minus": "strokes thinner by {}"}
        return (
            alone("stroke", OF_THE_SIDE, 100 * self.width, digits=1, **words),
            alone("fading", "%", 100 * self.fading, signed=False, plus="faded by {}"),
        )

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        side = min(x.shape[2:])
        most = math.ceil(self.width * side / 2)
        ground = blur.plain_ground(x)
        x = blur.widened(x, ground, values["stroke"] * (side / 200), most=most)
        return blur.faded(x, ground, values["fading"] / 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Light(CheckedPart):
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

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        tones = {
            "plus": "darker mid-tones (gamma {})",
            "minus": "lighter mid-tones (gamma {})",
        }
        contrast = {"plus": "{} more contrast", "minus": "{} less contrast"}
        groups = [
            alone("exposure", "stops", self.stops, plus="{} brighter", minus="{} darker", digits=1),
            alone("gamma", "", self.gamma, neutral=1.0, digits=2, **tones),
            alone("contrast", "%", 100 * self.contrast, **contrast),
        ]
        if shape[0] == 3:
            warm: dict[str, Any] = {"plus": "{} warmer", "minus": "{} cooler"}
            green: dict[str, Any] = {"plus": "{} greener", "minus": "{} more magenta"}
            balance = (
                Coordinate("temperature", "stops", self.temperature, digits=1, **warm),
                Coordinate("tint", "stops", self.tint, digits=1, **green),
            )
            groups.append(CoordinateGroup(name="white balance", coordinates=balance))
        words = "lit unevenly by up to {}"
        shade = control_points(
            "shade", "stops", self.stops, points=self.points, axes=("",), plus=words
        )
        return (*groups, shade)

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        coarse = values["shade"].reshape(-1, 1, self.points, self.points)
        balance = None
        if x.shape[1] == 3:
            balance = colour.white_balance(values["temperature"], values["tint"])
        return colour.lit(
            x,
            exposure=values["exposure"],
            shade=coarse,
            limit=self.stops,
            balance=balance,
            gamma=values["gamma"],
            contrast=values["contrast"] / 100,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather(CheckedPart):
    """Fog, rain and snow, without a model of depth. In a search, where drops and flakes fall
    follows from the seed's own pixels.

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
    patterned: ClassVar[bool] = True

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        reaches = {"fog": self.fog, "rain": self.rain, "snow": self.snow}
        return tuple(
            alone(name, "%", 100 * reach, signed=False, plus=f"{{}} {name}")
            for name, reach in reaches.items()
        )

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        shares = {name: values[name] / 100 for name in ("fog", "rain", "snow")}
        return noise.weathered(x, key, **shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Focus(CheckedPart):
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

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        defocus, motion = self._range(shape)
        length: dict[str, Any] = {"signed": False, "side": min(shape[1:]), "digits": 1}
        words = "blurred by a motion of {} at {angle}"
        line = (
            Coordinate("motion", "px", motion, plus=words, **length),
            Coordinate("angle", "°", 90.0, counts=False),
        )
        return (
            alone("defocus", "px", defocus, plus="out of focus by {}", **length),
            CoordinateGroup(name="motion", coordinates=line),
        )

    def _range(self, shape: Shape) -> tuple[float, float]:
        """The greatest radius and the greatest length, in pixels."""
        side = min(shape[1:])
        defocus = _natural(self.defocus, shape, small=0.03, large=0.012) * side
        motion = _natural(self.motion, shape, small=0.08, large=0.035) * side
        return defocus, motion

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        channels, height, width = x.shape[1:]
        defocus, motion = self._range((channels, height, width))
        reach = math.ceil(defocus + motion / 2)
        kernel = blur.disc(values["defocus"], values["motion"], values["angle"], reach=reach)
        return blur.convolve(x, kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensor(CheckedPart):
    """A cheaper camera.

    Args:
        resolution: how much wider a pixel may get: the image averaged over such pixels and drawn
            linearly between them; by default 0.5 for images of up to 64 pixels (half as wide
            again), 1.5 above.
        noise: the greatest standard deviation in bright parts, in grey levels of 255. In a search
            its pattern is fixed: it follows from the seed's own pixels.
        quality: the lowest JPEG quality (full resolution of colour, steps not rounded).
    """

    resolution: float | None = None
    noise: float = 16.0
    quality: float = 20.0
    name: ClassVar[str] = "sensor"
    stage: ClassVar[int] = 5
    patterned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        CheckedPart.__post_init__(self)
        if not 1 <= self.quality <= 100:
            raise HardcaseError(
                f"sensor has quality={self.quality}; JPEG has 1 to 100.", fix="quality=20"
            )

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        wider = _natural(self.resolution, shape, small=0.5, large=1.5)
        worse = self.quality - 100.0
        factor: dict[str, Any] = {"neutral": 1.0, "signed": False, "digits": 1}
        best: dict[str, Any] = {"neutral": 100.0, "signed": False}
        return (
            alone("resolution", "times", wider, plus="pixels {} as wide", **factor),
            alone("noise", "levels", self.noise, signed=False, plus="noise of {}"),
            alone("JPEG quality", "", worse, plus="JPEG quality {}", **best),
        )

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        channels, height, width = x.shape[1:]
        widest = 1 + _natural(self.resolution, (channels, height, width), small=0.5, large=1.5)
        if widest > 1:
            x = blur.convolve(x, blur.tent(values["resolution"], math.ceil(widest) - 1))
        x = noise.grainy(x, key, values["noise"] / 255) if self.noise > 0 else x.clamp(0, 1)
        if self.quality < 100:
            x = colour.compressed(x, values["JPEG quality"])
        return x
