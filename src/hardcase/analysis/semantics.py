"""Measurable features of images, in batches: light, colour, strokes, place and detail.

An image is a background (the median of its border) and a figure (whatever differs from it, dark or
light, weighted by how much). Lengths are shares of the image's side; hue is a share of a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.tensors import per_row

EMPTY = 1e-6
FIVE_DEGREES = 0.087
PIXEL = 1 / 28
"""A pixel of the images by whose size a length is seen; larger ones are seen at the same size."""


class Feature(NamedTuple):
    """A number of an image, what moves and the words for its rise and fall, and the least change
    that a person can be expected to see. `turns`: it lies on a circle of length 1."""

    name: str
    what: str
    ways: tuple[str, str]
    noticeable: float
    measure: Callable[[_Parts], Tensor]
    turns: bool = False

    @property
    def up(self) -> str:
        return f"{self.what} {self.ways[0]}"

    @property
    def down(self) -> str:
        return f"{self.what} {self.ways[1]}"


class _Parts(NamedTuple):
    """What several features share."""

    x: Float[Tensor, "m c h w"]
    grey: Float[Tensor, "m h w"]
    background: Float[Tensor, " m"]
    ink: Float[Tensor, "m h w"]

    @staticmethod
    def of(x: Float[Tensor, "m c h w"]) -> _Parts:
        grey = x.mean(1)
        border = torch.ones(grey.shape[1:], dtype=torch.bool, device=x.device)
        border[2:-2, 2:-2] = False
        level = grey[:, border].median(1).values
        return _Parts(x, grey, level, (grey - level[:, None, None]).abs())

    @property
    def weight(self) -> Float[Tensor, "m h w"]:
        """Ink that sums to 1; even where there is none."""
        return (self.ink + EMPTY) / (self.ink + EMPTY).sum((1, 2), keepdim=True)

    def mean(self, values: Tensor) -> Float[Tensor, " m"]:
        """The mean of a value of each pixel, weighted by ink."""
        return (self.weight * values).sum((1, 2))

    def places(self) -> tuple[Tensor, Tensor]:
        """Columns to the right and rows downwards, from -0.5 to 0.5."""
        h, w = self.grey.shape[1:]
        down = (torch.arange(h, device=self.grey.device) + 0.5) / h - 0.5
        right = (torch.arange(w, device=self.grey.device) + 0.5) / w - 0.5
        return right.expand(h, w), down[:, None].expand(h, w)

    def centred(self) -> tuple[Tensor, Tensor]:
        right, down = self.places()
        return right - self.mean(right)[:, None, None], down - self.mean(down)[:, None, None]

    def figure(self) -> Bool[Tensor, "m h w"]:
        """Pixels with at least half of the strongest ink."""
        return self.ink > self.ink.amax((1, 2), keepdim=True).clamp_min(EMPTY) / 2


def _figure_level(p: _Parts) -> Tensor:
    inside = p.figure()
    return (p.grey * inside).sum((1, 2)) / inside.sum((1, 2)).clamp_min(1)


def _hue(p: _Parts) -> Tensor:
    """The direction of the mean colour on the circle red, green, blue; 0 for grey."""
    mean = p.x.mean((2, 3))
    if mean.shape[1] != 3:
        return torch.zeros_like(mean[:, 0])
    red, green, blue = mean.unbind(1)
    across = 3**0.5 * (green - blue)
    along = 2 * red - green - blue
    grey = across.abs() + along.abs() < 1e-4
    return torch.where(grey, 0.0, (torch.atan2(across, along) / (2 * torch.pi)) % 1)


def _saturation(p: _Parts) -> Tensor:
    top = p.x.amax(1)
    return (top - p.x.amin(1)).sum((1, 2)) / top.sum((1, 2)).clamp_min(EMPTY)


def _scale(p: _Parts) -> Tensor:
    right, down = p.centred()
    return p.mean(right.square() + down.square()).sqrt()


def _slant(p: _Parts) -> Tensor:
    """Columns to the right for each row upwards: the shear of the figure's second moments."""
    right, down = p.centred()
    shear = -(p.weight * right * down).sum((1, 2))
    return shear / p.mean(down.square()).clamp_min(EMPTY)


def _stroke(p: _Parts) -> Tensor:
    """Twice the area over the outline: the width of a long stroke."""
    figure = torch.nn.functional.pad(p.figure().float(), (1, 1, 1, 1))
    outline = figure.diff(dim=1).abs().sum((1, 2)) + figure.diff(dim=2).abs().sum((1, 2))
    return 2 * figure.sum((1, 2)) / outline.clamp_min(1) / p.grey.shape[2]


def _detail(p: _Parts) -> Tensor:
    """The share of the image's variance at waves shorter than four pixels."""
    h, w = p.grey.shape[1:]
    power = torch.fft.rfft2(p.grey - p.grey.mean((1, 2), keepdim=True)).abs().square()
    power[:, :, 1 : (w + 1) // 2] *= 2  # stand for their mirror images too
    down = torch.fft.fftfreq(h, device=p.grey.device)
    right = torch.fft.rfftfreq(w, device=p.grey.device)
    fine = (down[:, None].square() + right.square()).sqrt() > 0.25
    share: Tensor = (power * fine).sum((1, 2)) / power.sum((1, 2)).clamp_min(EMPTY)
    return share


LEVELS = 10 / 255
_BRIGHTNESS = ("got brighter", "got darker")
FEATURES = (
    Feature("brightness", "the image", _BRIGHTNESS, LEVELS, lambda p: p.grey.mean((1, 2))),
    Feature("contrast", "the contrast", ("rose", "fell"), LEVELS, lambda p: p.grey.std((1, 2))),
    Feature("background", "the background", _BRIGHTNESS, LEVELS, lambda p: p.background),
    Feature("figure", "the figure", _BRIGHTNESS, LEVELS, _figure_level),
    Feature(
        "hue",
        "the colour turned from",
        ("red towards green and blue", "blue towards green and red"),
        10 / 360,
        _hue,
        turns=True,
    ),
    Feature("saturation", "the colours got", ("stronger", "paler"), 0.1, _saturation),
    Feature("stroke", "the strokes got", ("thicker", "thinner"), PIXEL / 2, _stroke),
    Feature("slant", "the figure leaned further to the", ("right", "left"), FIVE_DEGREES, _slant),
    Feature(
        "x", "the figure moved to the", ("right", "left"), PIXEL, lambda p: p.mean(p.places()[0])
    ),
    Feature("y", "the figure moved", ("down", "up"), PIXEL, lambda p: p.mean(p.places()[1])),
    Feature("scale", "the figure", ("grew", "shrank"), PIXEL / 2, _scale),
    Feature("detail", "fine detail", ("rose", "fell"), 0.1, _detail),
)
OF_FIGURES = ("background", "figure", "stroke", "slant", "x", "y", "scale")
"""Features of a figure on a plain ground; a photograph in colour has none."""


def fitting(channels: int) -> list[int]:
    """The positions of the features that mean something in images of so many channels."""
    return [
        i for i, feature in enumerate(FEATURES) if channels == 1 or feature.name not in OF_FIGURES
    ]


def noticeable() -> Float[Tensor, " f"]:
    """The least change of each of `FEATURES` that counts as moved, in the units of `measured`."""
    return torch.tensor([feature.noticeable for feature in FEATURES])


def measured(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
    """Every feature of `FEATURES`, in its order.

    Args:
        x: Images in [0, 1].
    """
    if not len(x):
        return x.new_zeros(0, len(FEATURES))
    parts = _Parts.of(x)
    return torch.stack([feature.measure(parts) for feature in FEATURES], 1)


def moved(seeds: Float[Tensor, "m c h w"], tests: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
    """By how much each feature of an image is above that of its seed; hue by the shorter way round.

    Args:
        seeds: Images before.
        tests: The same after.
    """
    change = measured(tests) - measured(seeds)
    turns = torch.tensor([feature.turns for feature in FEATURES], device=change.device)
    return torch.where(turns, (change + 0.5) % 1 - 0.5, change)


def equal_noise(
    seeds: Float[Tensor, "m c h w"], tests: Float[Tensor, "m c h w"], *, rng: torch.Generator
) -> Float[Tensor, "m c h w"]:
    """The seeds with Gaussian noise of the tests' L2 distance: what a test shares with that is due
    to how much was changed, not to what."""
    noise = torch.randn(seeds.shape, generator=rng).to(seeds)
    lengths = [part.flatten(1).norm(dim=1) for part in (tests - seeds, noise)]
    scale = per_row(lengths[0] / lengths[1], noise)
    return torch.clamp(seeds + scale * noise, 0, 1)
