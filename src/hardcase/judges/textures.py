"""Does a picture have the fine structure of photographs? Statistics of small neighbourhoods at
several scales.

After A. Mittal, R. Soundararajan, A. Bovik, "Making a 'completely blind' image quality analyzer",
IEEE SPL 2013: pixels are divided by their local contrast, and a Gaussian is fitted to statistics of
what is left. Differences: more scales, robust statistics, colour, a shrunk covariance, and the real
pictures are also given blurred, noisy, compressed, darker and brighter, so that sharpness or
compression alone does not make a picture unlike a photograph.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.imaging.blur import binomial
from hardcase.imaging.jpeg import compressed
from hardcase.tensors import chunks, constant, steady
from hardcase.training.augmentation import Dice

__all__ = ["COUNT", "Textures", "camera_processed", "statistics"]

SCALES = 4
PER_SCALE = 7
COLOUR = 4
COUNT = SCALES * PER_SCALE + COLOUR + SCALES - 1


def statistics(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m s"]:
    """Numbers that photographs share: shapes of local contrast, likeness of neighbours,
    fall of energy with scale, colour.
    """
    grey = x.mean(1, keepdim=True)
    rows = []
    energies = []
    for _ in range(SCALES):
        mean = binomial(binomial(grey))
        rough = (grey - mean).square()
        deviation = binomial(binomial(rough)).clamp_min(0).sqrt()
        normed = (grey - mean) / (deviation + 1 / 255)
        energies.append((rough.flatten(1).mean(1) + 1e-6).log())
        rows += [_shape(normed), *_neighbours(normed), *_contrast(deviation)]
        grey = binomial(grey)
        if min(grey.shape[2:]) >= 16:
            grey = functional.avg_pool2d(grey, 2)
    falls = [fine - rough for fine, rough in pairwise(energies)]
    return torch.stack([*rows, *falls, *_colour(x)], 1)


def _shape(normed: Tensor) -> Float[Tensor, " m"]:
    """How peaked the normed pixels lie: 0.45 for a Gaussian, more for heavy tails."""
    flat = normed.flatten(1)
    return (flat.square().mean(1) + 1e-6).log() - 2 * (flat.abs().mean(1) + 1e-3).log()


def _neighbours(normed: Tensor) -> list[Float[Tensor, " m"]]:
    """How alike a pixel and the one beside, below and across are."""
    power = normed.flatten(1).square().mean(1) + 1e-3
    pairs = (
        normed[:, :, :, 1:] * normed[:, :, :, :-1],
        normed[:, :, 1:] * normed[:, :, :-1],
        normed[:, :, 1:, 1:] * normed[:, :, :-1, :-1],
    )
    return [pair.flatten(1).mean(1) / power for pair in pairs]


def _contrast(deviation: Tensor) -> list[Float[Tensor, " m"]]:
    """Middle and spread of the local contrast (logarithm), and the share of places with next to
    none.
    """
    flat = (deviation.flatten(1) + 0.5 / 255).log()
    some = flat[:, :: max(1, flat.shape[1] // 4096)]
    low, middle, high = some.quantile(constant((0.1, 0.5, 0.9), flat.dtype, flat.device), dim=1)
    return [middle, high - middle, middle - low]


def _colour(x: Tensor) -> list[Float[Tensor, " m"]]:
    """Light and dark, and how strong the two opponent colours are beside the light;
    nothing of it in grey images.
    """
    light = x.mean(1).flatten(1)
    wide = (light.std(1) + 1 / 255).log()
    middle = light.mean(1)
    if x.shape[1] != 3:
        return [middle, wide, torch.zeros_like(middle), torch.zeros_like(middle)]
    warm = (x[:, 0] - x[:, 1]).flatten(1).std(1)
    cold = (x[:, 2] - (x[:, 0] + x[:, 1]) / 2).flatten(1).std(1)
    return [middle, wide, (warm + 1 / 255).log() - wide, (cold + 1 / 255).log() - wide]


def camera_processed(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Pictures as cameras and files make them: each darker or brighter, some blurred,
    noisy or compressed.
    """
    dice = Dice(len(x), rng)
    x = (x * 2 ** dice(-0.7, 0.7)).clamp(0, 1)
    x = x + (binomial(x) - x) * dice.chance(0.4) * dice()
    x = (x + dice.chance(0.4) * dice(0.0, 0.06) * dice.normal(*x.shape)).clamp(0, 1)
    quality = dice(25.0, 95.0).flatten()
    return torch.where(dice.chance(0.5) > 0, compressed(x, quality), x)


class Textures(nn.Module):
    """A Gaussian over `statistics` of real pictures; before `fit_to`,
    every picture is as likely as any.
    """

    centre: Tensor
    whitening: Tensor
    typical: Tensor
    width: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(COUNT))
        self.register_buffer("whitening", torch.zeros(COUNT, COUNT))
        self.register_buffer("typical", torch.tensor(0.0))
        self.register_buffer("width", torch.tensor(1.0))

    @torch.no_grad()
    def fit_to(self, x: Float[Tensor, "n c h w"], rng: torch.Generator, *, copies: int = 2) -> None:
        """Learn from real pictures and `copies` of each as they look after usual handling."""
        parts = [statistics(x[rows]) for rows in chunks(len(x), 64)]
        parts += [
            statistics(camera_processed(x[rows], rng))
            for _ in range(copies)
            for rows in chunks(len(x), 64)
        ]
        found = torch.cat(parts).double()
        low, middle, high = found.quantile(
            torch.tensor([0.16, 0.5, 0.84], device=found.device, dtype=found.dtype), dim=0
        )
        spread = ((high - low) / 2).clamp_min(1e-3)
        scaled = ((found - middle) / spread).clamp(-5, 5)
        covariance = scaled.T @ scaled / len(scaled)
        share = min(0.5, COUNT / len(scaled))
        shrunk = (1 - share) * covariance + share * torch.eye(COUNT, device=found.device)
        variance, directions = torch.linalg.eigh(shrunk)
        self.centre.copy_(middle)
        self.whitening.copy_(directions / variance.sqrt() / spread[:, None])
        own = self.distance(found.float())
        self.typical.copy_(own.median())
        self.width.copy_((own.quantile(0.84) - own.median()).clamp_min(1e-3))

    def distance(self, found: Float[Tensor, "m s"]) -> Float[Tensor, " m"]:
        return ((found - self.centre) @ self.whitening).square().mean(1).sqrt()

    @torch.no_grad()
    def likeness(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
        """How much nearer than a middling real picture, in their spreads; below -3: unlike;
        never above 1.
        """
        size = 64 if steady(x.device) else 256
        parts = [self.distance(statistics(x[rows])) for rows in chunks(len(x), size)]
        gaps = torch.cat(parts or [x.new_zeros(0)])
        return ((self.typical - gaps) / self.width).clamp(-20, 1)
