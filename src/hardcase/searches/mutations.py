"""Changes to pictures that leave their meaning alone: shifts, turns, light, blur, noise. Each works on a batch at once.

An operator draws a level for every row and applies it; pictures go in and come out in [0, 1], on the 8-bit grid. Ranges are
those of DeepHunter's code (X. Xie et al., ISSTA 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.tensors import per_row, to_grid

Level = Float[Tensor, " m"]
Picture = Float[Tensor, "m c h w"]


@dataclass(frozen=True, slots=True)
class Operator:
    """`levels` are what it may draw from; `apply` changes pictures by one level each (`rng` is for noise)."""

    name: str
    levels: tuple[float, ...]
    apply: Callable[[Tensor, Tensor, torch.Generator], Tensor]

    def draw(self, count: int, rng: torch.Generator) -> Float[Tensor, " m"]:
        number = torch.randint(len(self.levels), (count,), generator=rng, device=rng.device)
        return torch.tensor(self.levels, device=rng.device)[number]


def mutate(
    x: Picture, operator: Int[Tensor, " m"], level: Level, operators: Sequence[Operator], rng: torch.Generator
) -> Picture:
    """Each picture changed by its operator at its level."""
    changed = x.clone()
    for number, one in enumerate(operators):
        rows = (operator == number).nonzero().squeeze(1)
        if len(rows):
            changed[rows] = to_grid(one.apply(x[rows], level[rows], rng))
    return changed


def translate(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Down and to the right by the same number of pixels, black filling in."""
    height, width = x.shape[2:]
    return _warp(x, [1 + 0 * level, 0 * level, -2 * level / width, 0 * level, 1 + 0 * level, -2 * level / height])


def scale(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Larger or smaller about the centre."""
    return _warp(x, [1 / level, 0 * level, 0 * level, 0 * level, 1 / level, 0 * level], mode="bicubic")


def shear(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Rows shifted in proportion to their height in the picture."""
    return _warp(x, [1 + 0 * level, level, 0 * level, 0 * level, 1 + 0 * level, 0 * level])


def rotate(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Turned about the centre, by degrees."""
    angle, stretch = level * (math.pi / 180), x.shape[2] / x.shape[3]
    cos, sin = angle.cos(), angle.sin()
    return _warp(x, [cos, -sin * stretch, 0 * level, sin / stretch, cos, 0 * level])


def contrast(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    return x * per_row(level, x)


def brightness(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Every pixel up or down by so many grey levels."""
    return x + per_row(level / 255, x)


def blur(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Nine kinds: box 3, 4, 5; Gaussian 3, 5, 7; median 3, 5; bilateral."""
    kinds = (_box(3), _box(4), _box(5), _gauss(3), _gauss(5), _gauss(7), _median(3), _median(5), _bilateral)
    changed = x.clone()
    for number, kind in enumerate(kinds):
        rows = (level == number).nonzero().squeeze(1)
        if len(rows):
            changed[rows] = kind(x[rows])
    return changed


def pixels(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """So many values, drawn at random (one may be drawn twice), get any new value."""
    values, most = x.flatten(1), int(level.max())
    place = torch.randint(values.shape[1], (len(x), most), generator=rng, device=rng.device).to(x.device)
    new = torch.randint(256, place.shape, generator=rng, device=rng.device).to(x.device) / 255
    asked = torch.arange(most, device=x.device) < level[:, None]
    place = torch.where(asked, place, place[:, :1])
    return values.scatter(1, place, torch.where(asked, new, new[:, :1])).reshape(x.shape)


def noise(x: Picture, level: Level, rng: torch.Generator) -> Picture:
    """Gaussian (5 % of the range), salt and pepper (0.4 % of the values), or speckle (10 % of each value)."""
    normal = torch.randn(x.shape, generator=rng, device=rng.device).to(x.device)
    place = torch.rand(x.shape, generator=rng, device=rng.device).to(x.device)
    salted = torch.where(place < 0.002, 1.0, torch.where(place > 0.998, 0.0, x))
    kind = per_row(level, x)
    return torch.where(kind == 0, x + 0.05 * normal, torch.where(kind == 1, salted, x * (1 + 0.1 * normal)))


def _tenths(first: int, last: int) -> tuple[float, ...]:
    return tuple(i / 10 for i in range(first, last + 1))


AFFINE = (
    Operator("translate", tuple(map(float, range(-3, 3))), translate),
    Operator("scale", _tenths(7, 11), scale),
    Operator("shear", _tenths(-6, 5), shear),
    Operator("rotate", tuple(map(float, range(-50, 50))), rotate),
)
LIGHT = (
    Operator("contrast", _tenths(5, 12), contrast),
    Operator("brightness", tuple(map(float, range(-20, 20))), brightness),
    Operator("blur", tuple(map(float, range(9))), blur),
)
PIXELS = Operator("pixels", tuple(map(float, range(1, 10))), pixels)
NOISE = Operator("noise", (0.0, 1.0, 2.0), noise)


def _warp(x: Picture, theta: Sequence[Tensor], mode: str = "bilinear") -> Picture:
    """The picture seen through a 2x3 matrix for each row, in coordinates from -1 to 1; outside is black."""
    matrix = torch.stack(list(theta), 1).reshape(-1, 2, 3).to(x.dtype)
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, mode=mode, padding_mode="zeros", align_corners=False)


def _filtered(x: Picture, kernel: Float[Tensor, "k k"]) -> Picture:
    size = len(kernel)
    before, after = (size - 1) // 2, size // 2
    padded = functional.pad(x, (before, after, before, after), mode="replicate")
    weight = kernel.to(x)[None, None].expand(x.shape[1], 1, size, size)
    return functional.conv2d(padded, weight, groups=x.shape[1])


def _box(size: int) -> Callable[[Picture], Picture]:
    return lambda x: _filtered(x, torch.full((size, size), 1 / size**2))


def _gauss(size: int) -> Callable[[Picture], Picture]:
    """With the width that image libraries take for a kernel of this size."""
    sigma = 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    line = torch.exp(-((torch.arange(size) - (size - 1) / 2) ** 2) / (2 * sigma**2))
    return lambda x: _filtered(x, (line / line.sum()).outer(line / line.sum()))


def _windows(x: Picture, size: int) -> Float[Tensor, "m c s h w"]:
    """The neighbourhood of every pixel, the border repeated."""
    half = size // 2
    padded = functional.pad(x, (half, half, half, half), mode="replicate")
    return padded.unfold(2, size, 1).unfold(3, size, 1).flatten(4).movedim(4, 2)


def _median(size: int) -> Callable[[Picture], Picture]:
    return lambda x: _windows(x, size).median(dim=2).values


def _bilateral(x: Picture) -> Picture:
    """A mean over 7x7 pixels in which near and alike ones (within 50 pixels and 50 grey levels) weigh more."""
    around, axis = _windows(x, 7), torch.arange(-3, 4, device=x.device)
    far = (axis[:, None] ** 2 + axis[None] ** 2).flatten()
    alike = (around - x[:, :, None]).square().sum(1, keepdim=True)
    weight = torch.exp(-far / (2 * 50**2))[:, None, None] * torch.exp(-alike / (2 * (50 / 255) ** 2))
    weight = weight * (far <= 9)[:, None, None]
    return (around * weight).sum(2) / weight.sum(2)
