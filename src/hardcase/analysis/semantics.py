"""Measurable features of images, in batches: light, colour, strokes, place and detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hardcase.tensors import per_row

# An image is a background (the median of its border) and a figure (whatever differs from it, dark
# or light, weighted by how much). Lengths are shares of the image's side; hue is a share of a
# turn.

EMPTY = 1e-6


@dataclass(frozen=True, slots=True)
class Feature:
    """A number of an image, and the words for its rise and fall. `turns`:
    it lies on a circle of length 1.
    """

    name: str
    up: str
    down: str
    measure: Callable[[_Parts], Tensor]
    turns: bool = False


@dataclass(frozen=True, slots=True)
class _Parts:
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

    def places(self) -> tuple[Tensor, Tensor]:
        """Columns to the right and rows downwards, from -0.5 to 0.5."""
        h, w = self.grey.shape[1:]
        down = (torch.arange(h, device=self.grey.device) + 0.5) / h - 0.5
        right = (torch.arange(w, device=self.grey.device) + 0.5) / w - 0.5
        return right.expand(h, w), down[:, None].expand(h, w)

    def centred(self) -> tuple[Tensor, Tensor]:
        right, down = self.places()
        return right - _x(self)[:, None, None], down - _y(self)[:, None, None]

    def figure(self) -> Bool[Tensor, "m h w"]:
        """Pixels with at least half of the strongest ink."""
        return self.ink > self.ink.amax((1, 2), keepdim=True).clamp_min(EMPTY) / 2


def _brightness(p: _Parts) -> Tensor:
    return p.grey.mean((1, 2))


def _contrast(p: _Parts) -> Tensor:
    return p.grey.std((1, 2))


def _background(p: _Parts) -> Tensor:
    return p.background


def _figure_level(p: _Parts) -> Tensor:
    inside = p.figure()
    return (p.grey * inside).sum((1, 2)) / inside.sum((1, 2)).clamp_min(1)


def _hue(p: _Parts) -> Tensor:
    """The direction of the mean colour on the circle red, green, blue; 0 for grey."""
    red, green, blue = _colour(p).unbind(1)
    across = 3**0.5 * (green - blue)
    along = 2 * red - green - blue
    grey = across.abs() + along.abs() < 1e-4
    return torch.where(grey, 0.0, (torch.atan2(across, along) / (2 * torch.pi)) % 1)


def _saturation(p: _Parts) -> Tensor:
    spread = p.x.amax(1) - p.x.amin(1)
    top = p.x.amax(1)
    return spread.sum((1, 2)) / top.sum((1, 2)).clamp_min(EMPTY)


def _colour(p: _Parts) -> Float[Tensor, "m 3"]:
    mean = p.x.mean((2, 3))
    return mean if mean.shape[1] == 3 else mean.mean(1, keepdim=True).expand(-1, 3)


def _x(p: _Parts) -> Tensor:
    return (p.weight * p.places()[0]).sum((1, 2))


def _y(p: _Parts) -> Tensor:
    return (p.weight * p.places()[1]).sum((1, 2))


def _scale(p: _Parts) -> Tensor:
    right, down = p.centred()
    return (p.weight * (right.square() + down.square())).sum((1, 2)).sqrt()


def _slant(p: _Parts) -> Tensor:
    """Columns to the right for each row upwards: the shear of the figure's second moments."""
    right, down = p.centred()
    return -(p.weight * right * down).sum((1, 2)) / (p.weight * down.square()).sum(
        (1, 2)
    ).clamp_min(EMPTY)


def _stroke(p: _Parts) -> Tensor:
    """Twice the area over the outline: the width of a long stroke."""
    figure = torch.nn.functional.pad(p.figure().float(), (1, 1, 1, 1))
    outline = figure.diff(dim=1).abs().sum((1, 2)) + figure.diff(dim=2).abs().sum((1, 2))
    return 2 * figure.sum((1, 2)) / outline.clamp_min(1) / p.grey.shape[2]


def _detail(p: _Parts) -> Tensor:
    """The share of the image's variance at waves shorter than four pixels."""
    h, w = p.grey.shape[1:]
    power = torch.fft.rfft2(p.grey - p.grey.mean((1, 2), keepdim=True)).abs().square()
    both = torch.full((w // 2 + 1,), 2.0, device=p.grey.device)
    both[0] = 1.0
    both[-1] = 1.0 if w % 2 == 0 else 2.0
    down, right = (
        f(n, device=p.grey.device) for f, n in ((torch.fft.fftfreq, h), (torch.fft.rfftfreq, w))
    )
    fine = (down[:, None].square() + right.square()).sqrt() > 0.25
    power = power * both
    share: Tensor = (power * fine).sum((1, 2)) / power.sum((1, 2)).clamp_min(EMPTY)
    return share


FEATURES = (
    Feature("brightness", "the image got brighter", "the image got darker", _brightness),
    Feature("contrast", "the contrast rose", "the contrast fell", _contrast),
    Feature("background", "the background got brighter", "the background got darker", _background),
    Feature("figure", "the figure got brighter", "the figure got darker", _figure_level),
    Feature(
        "hue",
        "the colour turned from red towards green and blue",
        "the colour turned from blue towards green and red",
        _hue,
        turns=True,
    ),
    Feature("saturation", "the colours got stronger", "the colours got paler", _saturation),
    Feature("stroke", "the strokes got thicker", "the strokes got thinner", _stroke),
    Feature(
        "slant",
        "the figure leaned further to the right",
        "the figure leaned further to the left",
        _slant,
    ),
    Feature("x", "the figure moved to the right", "the figure moved to the left", _x),
    Feature("y", "the figure moved down", "the figure moved up", _y),
    Feature("scale", "the figure grew", "the figure shrank", _scale),
    Feature("detail", "fine detail rose", "fine detail fell", _detail),
)


OF_FIGURES = ("background", "figure", "stroke", "slant", "x", "y", "scale")
"""Features of a figure on a plain ground; a photograph in colour has none."""


def fitting(channels: int) -> list[int]:
    """The positions of the features that mean something in images of so many channels.

    Example:
        >>> [FEATURES[i].name for i in fitting(3)]
        ['brightness', 'contrast', 'hue', 'saturation', 'detail']
    """
    return [
        i for i, feature in enumerate(FEATURES) if channels == 1 or feature.name not in OF_FIGURES
    ]


NOTICEABLE = {
    "brightness": 10 / 255,
    "contrast": 10 / 255,
    "background": 10 / 255,
    "figure": 10 / 255,
    "hue": 10 / 360,
    "saturation": 0.1,
    "slant": 0.087,
    "detail": 0.1,
}
"""The least change that a person can be expected to see: 10 grey levels, 10 degrees of hue,
5 degrees of slant, a tenth of full saturation or of the fine detail."""
PIXELS = {"x": 1.0, "y": 1.0, "scale": 0.5, "stroke": 0.5}
"""The same for lengths, in pixels of an image of 28; larger ones are seen at the same size."""


def noticeable() -> Float[Tensor, " f"]:
    """The least change of each of `FEATURES` that counts as moved, in the units of `measured`."""
    lengths = {name: pixels / 28 for name, pixels in PIXELS.items()}
    return torch.tensor([{**NOTICEABLE, **lengths}[feature.name] for feature in FEATURES])


def measured(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
    """Every feature of `FEATURES`, in its order."""
    if not len(x):
        return x.new_zeros(0, len(FEATURES))
    parts = _Parts.of(x)
    return torch.stack([feature.measure(parts) for feature in FEATURES], 1)


def moved(seeds: Float[Tensor, "m c h w"], tests: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
    """By how much each feature of a test is above that of its seed;
    hue by the shorter way round.
    """
    change = measured(tests) - measured(seeds)
    turns = torch.tensor([feature.turns for feature in FEATURES], device=change.device)
    return torch.where(turns, (change + 0.5) % 1 - 0.5, change)


def equal_noise(
    seeds: Float[Tensor, "m c h w"], tests: Float[Tensor, "m c h w"], *, rng: torch.Generator
) -> Float[Tensor, "m c h w"]:
    """A random perturbation of equal size: the seeds with Gaussian noise of the tests' L2 distance,
    then clamped.

    What a test shares with it is due to how much was changed, not to what.

    Args:
        seeds: Images before.
        tests: The same after.
        rng: Draws the noise, on the CPU.
    """
    noise = torch.randn(seeds.shape, generator=rng).to(seeds)
    lengths = [part.flatten(1).norm(dim=1) for part in (tests - seeds, noise)]
    scale = per_row(lengths[0] / lengths[1], noise)
    return torch.clamp(seeds + scale * noise, 0, 1)
