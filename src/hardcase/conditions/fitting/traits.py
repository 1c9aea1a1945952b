"""What is measured of each image: brightness, sharpness, grain, slant ..., and what a network sees.

The network is not the model. Its convolutions are random and never trained, so it needs no weights
and no training, and exists for images of any kind; a linear readout of its features says which
class an image is nearest to (a random-feature machine: A. Rahimi, B. Recht, NeurIPS 2007). That
lets a fit tell another mix of classes from other conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.randomness import stream
from hardcase.tensors import chunks

__all__ = ["NAMES", "RandomNetwork", "image_traits"]

EPSILON = 1e-3
FILTERS = 48
"""Random convolutions of the network."""
KERNEL = 5
CELLS = 4
"""Places along each axis at which a filter's answers are averaged."""
SMALL_SIDE = 64
"""The network is shown images no larger than this."""
READOUTS = 16
"""What the network says of an image, at most: scores of classes, or their main directions."""
RIDGE = 1.0
VALUES_AT_ONCE = 2**20
"""Values that are in memory at once: those of a complete set of images leave a core's cache."""
STATISTICS = 16
"""Values that the statistics of images need for each pixel."""

LUMA = (0.299, 0.587, 0.114)
BANDS = 4
COLOUR_NAMES = ("warmth", "greenness", "saturation")
NAMES = (
    *("brightness", "contrast", "dark tones", "mid tones", "light tones", "highlights"),
    *(f"detail {band}" for band in range(1, BANDS + 1)),
    *("grain", "grain in the flattest parts", "edges across", "edges down", "blocks"),
    *("shade across", "shade down", "place across", "place down"),
    *("spread across", "spread down", "slant", "width of strokes", "sharpness of edges"),
)
"""Names of the statistics of grey images; those of colour have `COLOUR_NAMES` too."""


@torch.no_grad()
def image_traits(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n t"]:
    """Return the statistics of each image, in the order of `NAMES` and `COLOUR_NAMES`."""
    return torch.cat([_traits(x[rows]) for rows in _few(x, STATISTICS)])


def _traits(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n t"]:
    grey = x
    if x.shape[1] == 3:
        grey = (x * x.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)
    columns = [*_tones(grey), *_details(grey), *_edges(grey), *_places(grey)]
    if x.shape[1] == 3:
        columns += _colours(x)
    return torch.stack(columns, 1)


def _tones(grey: Float[Tensor, "n 1 h w"]) -> list[Float[Tensor, " n"]]:
    flat = grey.flatten(1)
    ordered = _ordered(flat)
    last = flat.shape[1] - 1
    shares = (0.05, 0.5, 0.8, 0.98)
    return [flat.mean(1), flat.std(1), *(ordered[:, round(share * last)] for share in shares)]


def _ordered(values: Float[Tensor, "n p"]) -> Float[Tensor, "n p"]:
    """The values of each row in order: NumPy sorts plain numbers many times as fast as torch."""
    return torch.from_numpy(np.sort(values.numpy(), axis=1))


def _few(x: Float[Tensor, "n c h w"], values: int) -> Iterator[slice]:
    """Chunks of images, small enough for the number of values per pixel."""
    height, width = x.shape[2:]
    return chunks(len(x), max(VALUES_AT_ONCE // (values * height * width), 1))


def _details(grey: Float[Tensor, "n 1 h w"]) -> list[Float[Tensor, " n"]]:
    """The energy of each octave of detail, as a logarithm: blur and resolution take the finest."""
    details = []
    level = grey
    for _ in range(BANDS):
        if min(level.shape[2:]) < 4:
            details.append(torch.zeros_like(level[:, 0, 0, 0]))
            continue
        coarse = functional.avg_pool2d(level, 2, ceil_mode=True)
        back = functional.interpolate(coarse, level.shape[2:], mode="bilinear")
        details.append((level - back).square().mean((1, 2, 3)).add(EPSILON**2).log())
        level = coarse
    return details


def _edges(grey: Float[Tensor, "n 1 h w"]) -> list[Float[Tensor, " n"]]:
    kernel = grey.new_tensor([[1, -2, 1], [-2, 4, -2], [1, -2, 1]]) / 6  # J. Immerkaer 1996
    grain = functional.conv2d(grey, kernel[None, None]).abs().flatten(1)
    across = (grey[..., :, 1:] - grey[..., :, :-1]).abs()
    down = (grey[..., 1:, :] - grey[..., :-1, :]).abs()
    seams = across[..., 7::8].mean((1, 2, 3)) + down[..., 7::8, :].mean((1, 2, 3))
    seams = seams.nan_to_num(0.0)  # images of at most 8 pixels have no seam
    energy = across.mean((1, 2, 3)) + down.mean((1, 2, 3))
    flattest = _ordered(grain)[:, : max(grain.shape[1] // 4, 1)].mean(1)
    return [
        (grain.mean(1) + EPSILON).log(),
        (flattest + EPSILON).log(),
        across.mean((1, 2, 3)),
        down.mean((1, 2, 3)),
        seams / (energy + EPSILON),
    ]


def _places(grey: Float[Tensor, "n 1 h w"]) -> list[Float[Tensor, " n"]]:
    """Where the figure lies, how far it spreads, how it slants, how wide its strokes are."""
    height, width = grey.shape[2:]
    image = grey[:, 0]
    # The background of a figure is the median of the image's rim; ink is the distance from it, so a
    # dark figure on light paper counts as a light figure on a dark ground.
    rim = torch.cat([image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]], 1)
    ink = (image - rim.median(1).values[:, None, None]).abs()
    mass = ink.sum((1, 2)) + EPSILON
    right = torch.linspace(-1, 1, width)
    below = torch.linspace(-1, 1, height)
    x = (ink * right).sum((1, 2)) / mass
    y = (ink * below[:, None]).sum((1, 2)) / mass
    across = right[None, None] - x[:, None, None]
    down = below[None, :, None] - y[:, None, None]
    # Second moments around the centre of mass: their roots are the extents, and the mixed moment,
    # as a correlation, is the slant.
    spread = [(ink * across**2).sum((1, 2)) / mass, (ink * down**2).sum((1, 2)) / mass]
    slant = (ink * across * down).sum((1, 2)) / mass / (spread[0] * spread[1] + EPSILON**2).sqrt()
    half = (image[:, :, width // 2 :].mean((1, 2)) - image[:, :, : width // 2].mean((1, 2)),)
    under = (image[:, height // 2 :].mean((1, 2)) - image[:, : height // 2].mean((1, 2)),)
    # Total variation of the ink is about twice the length of its strokes, so mass over steps grows
    # with their width.
    steps = (ink[:, :, 1:] - ink[:, :, :-1]).abs().sum((1, 2))
    steps = steps + (ink[:, 1:] - ink[:, :-1]).abs().sum((1, 2)) + EPSILON
    energy = ink.square().sum((1, 2)) / mass
    return [*half, *under, x, y, spread[0].sqrt(), spread[1].sqrt(), slant, mass / steps, energy]


def _colours(x: Float[Tensor, "n 3 h w"]) -> list[Float[Tensor, " n"]]:
    red, green, blue = x.mean((2, 3)).add(EPSILON).log2().unbind(1)
    saturation = (x.amax(1) - x.amin(1)).mean((1, 2))
    return [red - blue, green - (red + blue) / 2, saturation]


@dataclass(frozen=True, slots=True)
class RandomNetwork:
    """Random convolutions and what a linear readout of them says.

    Args:
        filters: The convolutions.
        centre: The mean of the features over the images of the readout.
        readout: Features to class scores, or to their main directions.
    """

    filters: Float[Tensor, "f c k k"]
    centre: Float[Tensor, " d"]
    readout: Float[Tensor, "d r"]

    @classmethod
    @torch.no_grad()
    def fit(
        cls, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], classes: int, seed: int = 0
    ) -> RandomNetwork:
        """Return a network whose readout separates the classes of labelled images."""
        chance = stream(seed, "random network of a fit")
        filters = torch.randn(FILTERS, x.shape[1], KERNEL, KERNEL, generator=chance)
        filters = filters - filters.mean((1, 2, 3), keepdim=True)
        filters = filters / filters.flatten(1).norm(dim=1)[:, None, None, None]
        blank = cls(filters, torch.zeros(1), torch.zeros(1, 1))
        features = blank._features(x).double()
        centre = features.mean(0)
        features = features - centre
        wanted = functional.one_hot(y, classes).double()
        wanted = wanted - wanted.mean(0)
        if classes > READOUTS:  # the main directions of the classes' means
            directions = torch.linalg.svd(wanted, full_matrices=False)[2][:READOUTS]
            wanted = wanted @ directions.T
        gram = features.T @ features / len(x)
        ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=torch.float64) / 100
        readout = torch.linalg.solve(gram + ridge, features.T @ wanted / len(x))
        return cls(filters, centre.float(), readout.float())

    @torch.no_grad()
    def __call__(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n r"]:
        """Return what the readout says of each image."""
        return (self._features(x) - self.centre) @ self.readout

    def _features(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        parts = []
        for rows in _few(x, FILTERS):
            small = x[rows]
            if max(small.shape[2:]) > SMALL_SIDE:
                factor = math.ceil(max(small.shape[2:]) / SMALL_SIDE)
                small = functional.avg_pool2d(small, factor, ceil_mode=True)
            answers = functional.conv2d(small, self.filters, padding=KERNEL // 2).relu_()
            parts.append(functional.adaptive_avg_pool2d(answers, CELLS).flatten(1))
        return torch.cat(parts)
