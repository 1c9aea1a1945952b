"""Where pixels come from: a smooth warp of the scene and the pose of the camera, as one resampling.

Sampling is written out as four gathers, so that the gradient by the code passes through the weights
alone: the same bytes on every run and device, where `grid_sample` would add in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
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
from hardcase.tensors import constant

SMALL = 64
"""Images with a shorter side of up to this many pixels have other natural ranges than photographs.
"""


def shorter(shape: Shape) -> int:
    """The side that shares of the side refer to: the shorter one."""
    return min(shape[1:])


def either(given: float | None, shape: Shape, *, small: float, large: float) -> float:
    """What was given, or else what is natural for images of this shape."""
    if given is not None:
        return given
    return small if shorter(shape) <= SMALL else large


@dataclass(frozen=True, slots=True, kw_only=True)
class Warp:
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
        check_options(self)
        if self.reach == 0:
            raise Problem("warp has reach=0: nothing can move.", fix="reach=0.05")

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        points = int(either(self.points, shape, small=7, large=6))
        reach = 100 * either(self.reach, shape, small=0.06, large=0.05)
        field = tuple(
            Coordinate(
                name=f"bend {axis} {row + 1},{column + 1}",
                unit="% of the side",
                reach=reach,
                plus="bent by up to {}",
                digits=1,
            )
            for axis in ("down", "right")
            for row in range(points)
            for column in range(points)
        )
        return (CoordinateGroup(name="bend", coordinates=field, axes=2),)

    def move(
        self, places: Float[Tensor, "m 2 h w"], values: Values, shape: Shape
    ) -> Float[Tensor, "m 2 h w"]:
        _, height, width = shape
        side = shorter(shape)
        points = int(either(self.points, shape, small=7, large=6))
        limit = either(self.reach, shape, small=0.06, large=0.05) * side
        coarse = values["bend"].reshape(-1, 2, points, points) * (side / 100)
        field = spread(coarse, height, width)
        excess = (field.square().sum(1, keepdim=True) / limit**2).clamp_min(1)
        return places - field * excess.rsqrt()


@dataclass(frozen=True, slots=True, kw_only=True)
class Camera:
    """The image taken from elsewhere.

    Args:
        rotation: about the line of sight, in degrees.
        scale: closer or farther, as a share.
        shift: along each axis, as a share of the shorter side.
        shear: sideways for each pixel down, as a share.
        view: perspective tilt: how far the camera stands to the side or above, in degrees; the
            scene is a plane one side away.
    """

    rotation: float = 11.0
    scale: float = 0.15
    shift: float = 0.06
    shear: float = 0.1
    view: float = 15.0
    name: ClassVar[str] = "camera"
    stage: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_options(self)

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        turn = Coordinate(
            name="rotation",
            unit="°",
            reach=self.rotation,
            plus="tilted {} clockwise",
            minus="tilted {} anticlockwise",
        )
        scale = Coordinate(
            name="scale", unit="%", reach=100 * self.scale, plus="{} larger", minus="{} smaller"
        )
        shear = Coordinate(
            name="shear",
            unit="%",
            reach=100 * self.shear,
            plus="slanted {} to the right",
            minus="slanted {} to the left",
        )
        shift = tuple(
            Coordinate(
                name=f"shift {plus}",
                unit="% of the side",
                reach=100 * self.shift,
                plus=f"moved {plus} by {{}}",
                minus=f"moved {minus} by {{}}",
                digits=1,
            )
            for plus, minus in (("right", "left"), ("down", "up"))
        )
        view = tuple(
            Coordinate(
                name=f"view from {plus}",
                unit="°",
                reach=self.view,
                plus=f"seen {{}} from {plus}",
                minus=f"seen {{}} from {minus}",
            )
            for plus, minus in (("the left", "the right"), ("above", "below"))
        )
        return (
            alone(turn),
            alone(scale),
            CoordinateGroup(name="shift", coordinates=shift),
            alone(shear),
            CoordinateGroup(name="view", coordinates=view),
        )

    def move(
        self, places: Float[Tensor, "m 2 h w"], values: Values, shape: Shape
    ) -> Float[Tensor, "m 2 h w"]:
        side = shorter(shape)
        value = {name: v[:, None, None] for name, v in values.items()}
        down = places[:, 0] - value["shift down"] * (side / 100)
        right = places[:, 1] - value["shift right"] * (side / 100)
        right, down = _seen_aside(right, down, value["view from the left"].deg2rad(), side)
        down, right = _seen_aside(down, right, value["view from above"].deg2rad(), side)
        zoom = 1 + value["scale"] / 100
        right = right / zoom
        down = down / zoom
        cosine = value["rotation"].deg2rad().cos()
        sine = value["rotation"].deg2rad().sin()
        turned_right = right * cosine + down * sine
        turned_down = down * cosine - right * sine
        return torch.stack([turned_down, turned_right + turned_down * (value["shear"] / 100)], 1)


def _seen_aside(
    along: Tensor, across: Tensor, angle: Tensor, distance: float
) -> tuple[Tensor, Tensor]:
    """Where the rays through a pixel meet a plane that is turned by `angle`, its positive end away
    from the camera.
    """
    met = along / (angle.cos() - along * (angle.sin() / distance))
    return met, across * (1 + met * (angle.sin() / distance))


def centred_places(shape: Shape, like: Tensor) -> Float[Tensor, "1 2 h w"]:
    """The place of every pixel, in pixels from the centre: exact in floating point."""
    _, height, width = shape
    down = torch.arange(height, device=like.device, dtype=like.dtype) - (height - 1) / 2
    right = torch.arange(width, device=like.device, dtype=like.dtype) - (width - 1) / 2
    return torch.stack(torch.meshgrid(down, right, indexing="ij"))[None]


def resample(
    x: Float[Tensor, "m c h w"], places: Float[Tensor, "m 2 h w"]
) -> Float[Tensor, "m c h w"]:
    """Images read at `places` (pixels from the centre), bilinear between pixels and mirrored beyond
    the edges.

    The gradient reaches `places` only; `x` is taken as constant. Places on pixels give these pixels
    exactly.
    """
    count, channels, height, width = x.shape
    flat = x.detach().flatten(2)
    top, below, down = _neighbours(places[:, 0], height)
    left, beside, right = _neighbours(places[:, 1], width)

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = (row * width + column).reshape(count, 1, -1).expand(-1, channels, -1)
        return flat.gather(2, index).reshape(x.shape)

    upper_left = read(top, left)
    lower_left = read(below, left)
    upper = upper_left + (read(top, beside) - upper_left) * right[:, None]
    lower = lower_left + (read(below, beside) - lower_left) * right[:, None]
    return upper + (lower - upper) * down[:, None]


def _neighbours(place: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels before and after a place along one axis, and how far it lies between them."""
    last = size - 1
    inside = (last - (last - (place + last / 2).abs()).abs()).clamp(0, last)
    before = inside.detach().floor()
    index = before.long()
    return index, (index + 1).clamp_max(last), inside - before


def spread(
    coarse: Float[Tensor, "m k p q"], height: int, width: int
) -> Float[Tensor, "m k height width"]:
    """A coarse field over the whole image: bicubic (Catmull-Rom) between control points, the outer
    ones on the edges.
    """
    across = constant(_cubic(coarse.shape[3], width), coarse.dtype, coarse.device)
    down = constant(_cubic(coarse.shape[2], height), coarse.dtype, coarse.device)
    return combine(combine(coarse, across, 3), down, 2)


def combine(x: Tensor, weights: Float[Tensor, "out in"], dim: int) -> Tensor:
    """``weights @ x`` along one axis, added in a fixed order so that a row's bits do not depend on
    the others.
    """
    shape = [1] * x.ndim
    shape[dim] = len(weights)
    total = x.narrow(dim, 0, 1) * weights[:, 0].reshape(shape)
    for i in range(1, x.shape[dim]):
        total = total + x.narrow(dim, i, 1) * weights[:, i].reshape(shape)
    return total


@lru_cache(maxsize=64)
def _cubic(points: int, size: int) -> tuple[tuple[float, ...], ...]:
    """Weights of `points` control points at each of `size` pixels; the field goes on evenly beyond
    the outer ones.
    """
    place = np.linspace(0, points - 1, size)
    before = np.minimum(np.floor(place), points - 2).astype(int)
    t = place - before
    near = np.stack(
        [
            (-t + 2 * t**2 - t**3) / 2,
            (2 - 5 * t**2 + 3 * t**3) / 2,
            (t + 4 * t**2 - 3 * t**3) / 2,
            (-(t**2) + t**3) / 2,
        ],
        1,
    )
    weights = np.zeros((size, points))
    for offset in range(4):
        np.add.at(
            weights, (np.arange(size), np.clip(before + offset - 1, 0, points - 1)), near[:, offset]
        )
    return tuple(map(tuple, weights.tolist()))
