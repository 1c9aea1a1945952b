"""Pixel space: the code is the image itself, inside a norm ball or under a physical constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError
from hardcase.randomness import Rng
from hardcase.registry import space
from hardcase.tensors import flat, per_row, total
from hardcase.types import Encoded, Seeds

# The domain constraints of Pei, Cao, Yang, Jana, "DeepXplore", SOSP 2017, as spaces, so
# that any method can move in them: a step in any direction is pulled back to the nearest picture
# that the constraint allows.


class _PixelCode:
    """What spaces of pixels share: the code is the image itself."""

    __slots__ = ()
    keeps_code: ClassVar[bool] = False

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        return x.clone(), {}

    def decode(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return z

    def distance(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, " m"]:
        return total(flat(z.clamp(0, 1) - origin.x).square()).sqrt()


@space("unclipped", needs="nothing", paper="Pei, Cao, Yang and Jana, SOSP 2017")
@dataclass(frozen=True, slots=True)
class Unclipped(_PixelCode):
    """Pixels whose walk may leave [0, 1]; every queried image is clipped."""

    name: ClassVar[str] = "unclipped pixels"

    def project(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return z


@space("light", needs="nothing", paper="Pei, Cao, Yang and Jana, SOSP 2017")
@dataclass(frozen=True, slots=True)
class Brightness(_PixelCode):
    """The whole image evenly brighter or darker.

    The code may leave [0, 1]; images are clipped.

    Args:
        most: Largest change of brightness, in units of [0, 1].
    """

    most: float = 1.0
    name: ClassVar[str] = "light"

    def project(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        shift = (total(flat(z - origin.z)) / z[0].numel()).clamp(-self.most, self.most)
        return origin.z + per_row(shift, z)

    def distance(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, " m"]:
        return (total(flat(z.clamp(0, 1) - origin.x)) / z[0].numel()).abs()


@space("occlusion", needs="nothing", paper="Pei, Cao, Yang and Jana, SOSP 2017")
@dataclass(frozen=True, slots=True)
class Occlusion(_PixelCode):
    """One rectangle with free content, at a given or a random place.

    Args:
        size: Height and width in pixels.
        place: Top and left; by default drawn per seed.
        clip: Keep the content in [0, 1].
    """

    size: tuple[int, int] = (10, 10)
    place: tuple[int, int] | None = None
    clip: bool = True
    name: ClassVar[str] = "occlusion"

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        _fits(self.size, self.place, x)
        if self.place is None:
            corner = _corners(x, self.size, 1, rng)[:, 0]
        else:
            corner = torch.tensor(self.place, device=x.device).expand(len(x), 2)
        size = torch.tensor(self.size, device=x.device).expand(len(x), 2)
        return x.clone(), {"box": torch.cat([corner, size], 1)}

    def project(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        box = origin.context["box"]
        inside = _inside(box[:, None, :2], box[:, None, 2:], z)
        if self.clip:
            z = z.clamp(0, 1)
        return torch.where(inside, z, origin.z)


@space("blackout", needs="nothing", paper="Pei, Cao, Yang and Jana, SOSP 2017")
@dataclass(frozen=True, slots=True)
class Blackout(_PixelCode):
    """Small squares inside which pixels may only grow darker.

    Args:
        size: Side of a square in pixels.
        count: Number of squares, placed at random for each seed.
    """

    size: int = 6
    count: int = 8
    name: ClassVar[str] = "blackout"

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        _fits((self.size, self.size), None, x)
        return x.clone(), {"squares": _corners(x, (self.size, self.size), self.count, rng)}

    def project(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        squares = origin.context["squares"]
        inside = _inside(squares, torch.full_like(squares, self.size), z)
        return torch.where(inside, torch.minimum(z, origin.z).clamp(0, 1), origin.z)


def _corners(x: Tensor, size: tuple[int, int], count: int, rng: Rng) -> Int[Tensor, "n k 2"]:
    """Top left corners of `count` random rectangles that lie inside the picture."""
    room = (x.shape[2] - size[0] + 1, x.shape[3] - size[1] + 1)
    rows = torch.arange(len(x), device=x.device)
    return torch.stack([rng.integers(rows, side, (count,)) for side in room], 2)


def _inside(
    corner: Int[Tensor, "m k 2"], size: Int[Tensor, "m k 2"], like: Tensor
) -> Bool[Tensor, "m 1 h w"]:
    """Which pixels lie in one of the rectangles."""
    down, right = (torch.arange(side, device=like.device) for side in like.shape[2:])
    rows, columns = (
        (axis >= corner[..., i, None]) & (axis < (corner + size)[..., i, None])
        for i, axis in enumerate((down, right))
    )
    return (rows[..., :, None] & columns[..., None, :]).any(1)[:, None]


def _fits(size: tuple[int, int], place: tuple[int, int] | None, x: Tensor) -> None:
    height, width = x.shape[2:]
    top, left = place or (0, 0)
    if min(size) < 1 or min(top, left) < 0 or top + size[0] > height or left + size[1] > width:
        raise HardcaseError(
            f"a rectangle of {size[0]}x{size[1]} pixels at {top}, {left} does not fit into images"
            f" of {height}x{width}.",
            fix="a smaller size",
        )


# Pixel space: the code is the image itself, kept inside a norm ball around its seed.


@dataclass(frozen=True, slots=True)
class Linf:
    """No pixel moves by more than `radius`, rounded down to whole grey levels so that the 8-bit
    image obeys it too.

    Args:
        radius: Largest change of a pixel, in units of [0, 1].
    """

    radius: float

    def pull(self, z: Tensor, centre: Tensor) -> Tensor:
        radius = math.floor(self.radius * 255 + 1e-6) / 255
        low = centre - radius
        return torch.clamp(z, low, centre + radius, out=low)

    def size(self, change: Tensor) -> Float[Tensor, " m"]:
        return flat(change).abs().amax(1)


@dataclass(frozen=True, slots=True)
class L2:
    """The Euclidean length of the change stays within `radius` (rounding to 8 bits may add at most
    half a level a pixel).

    Args:
        radius: Largest Euclidean length, in units of [0, 1].
    """

    radius: float

    def pull(self, z: Tensor, centre: Tensor) -> Tensor:
        if math.isinf(self.radius):
            return z
        change = z - centre
        length = per_row(self.size(change), change)
        return torch.where(
            length > self.radius, centre + change * (self.radius / length.clamp_min(1e-12)), z
        )

    def size(self, change: Tensor) -> Float[Tensor, " m"]:
        return total(flat(change).square()).sqrt()


@space("pixels", needs="nothing")
@dataclass(frozen=True, slots=True)
class Pixels(_PixelCode):
    """The image itself, kept in [0, 1] and in an L∞ or L2 ball around the original.

    Args:
        ball: `Linf` or `L2` ball around the original; by default one without a bound.
    """

    ball: Linf | L2 = L2(math.inf)
    name: ClassVar[str] = "pixels"

    def project(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return self.ball.pull(z, origin.z).clamp(0, 1)

    def distance(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, " m"]:
        return self.ball.size(z - origin.z)
