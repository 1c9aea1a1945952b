"""Small random drawings that the made images share. Every function follows the device of its images and of its generator."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class Dice:
    """Numbers between 0 and 1, one an image, shaped to broadcast over images."""

    def __init__(self, count: int, rng: torch.Generator) -> None:
        self.count, self.rng = count, rng

    def __call__(self, low: float = 0.0, high: float = 1.0) -> Float[Tensor, "m 1 1 1"]:
        return low + (high - low) * torch.rand(self.count, 1, 1, 1, generator=self.rng, device=self.rng.device)

    def chance(self, share: float) -> Float[Tensor, "m 1 1 1"]:
        """1 for about this share of the images, 0 for the others."""
        return (self() < share).float()

    def one_of(self, count: int) -> int:
        """A number below `count`, the same for the whole batch."""
        return int(torch.randint(count, (1,), generator=self.rng, device=self.rng.device))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng, device=self.rng.device)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.rng, device=self.rng.device)


def cloud(like: Float[Tensor, "m c h w"], cells: int, dice: Dice) -> Float[Tensor, "m 1 h w"]:
    """Smooth noise between 0 and 1: `cells` x `cells` random values, enlarged."""
    coarse = dice.uniform(len(like), 1, cells, cells)
    return functional.interpolate(coarse, size=like.shape[2:], mode="bicubic", align_corners=False).clamp(0, 1)


def blur(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """A 5x5 binomial blur."""
    row = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0], device=x.device) / 16
    kernel = (row[:, None] * row).expand(x.shape[1], 1, 5, 5)
    return functional.conv2d(functional.pad(x, (2, 2, 2, 2), mode="replicate"), kernel, groups=x.shape[1])


def background(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c 1 1"]:
    """The commonest shade of each channel, as its median."""
    return x.flatten(2).median(2).values[:, :, None, None]


def content(x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
    """How much there is beside the background."""
    return (x - background(x)).abs().flatten(1).sum(1)


def with_shades_of(x: Float[Tensor, "m c h w"], model: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """`x` with its pixels' order kept and their values taken from `model`: the same histogram, channel by channel."""
    shades = model.flatten(2).sort(2).values
    order = x.flatten(2).argsort(2)
    return torch.empty_like(shades).scatter_(2, order, shades).reshape(x.shape)
