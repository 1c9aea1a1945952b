"""A class-conditional GAN for small images: an image for a latent code and a class.

T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018: conditional batch normalisation in residual blocks.
How it is trained, and against what: `hardcase.generators.contest`, `hardcase.generators.critic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem

Net = TypeVar("Net", bound=nn.Module)


class _ClassNorm(nn.Module):
    """Batch normalisation whose scale and shift depend on the class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width, affine=False)
        self.scale, self.shift = nn.Embedding(classes, width), nn.Embedding(classes, width)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h: Tensor = self.norm(x)
        scale, shift = self.scale(y).to(h.dtype), self.shift(y).to(h.dtype)
        out: Tensor = h * scale[:, :, None, None] + shift[:, :, None, None]
        return out


class _Stem(nn.Module):
    def __init__(self, latent: int, width: int, side: int) -> None:
        super().__init__()
        self.dense, self.shape = nn.Linear(latent, width * side * side), (width, side, side)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.dense(z)
        return out.reshape(-1, *self.shape)


class _Grow(nn.Module):
    """A residual block, told the class; it doubles the picture if `double`."""

    def __init__(self, before: int, width: int, classes: int, *, double: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = _ClassNorm(before, classes), nn.Conv2d(before, width, 3, padding=1)
        self.norm2, self.conv2 = _ClassNorm(width, classes), nn.Conv2d(width, width, 3, padding=1)
        self.skip, self.grows = nn.Conv2d(before, width, 1), double

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.relu(self.norm1(x, y))
        if self.grows:
            h, x = functional.interpolate(h, scale_factor=2.0), functional.interpolate(x, scale_factor=2.0)
        h = self.conv2(functional.relu(self.norm2(self.conv1(h), y)))
        out: Tensor = h + self.skip(x)
        return out


class _Paint(nn.Module):
    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.norm, self.pixels = nn.BatchNorm2d(width), nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(self.pixels(functional.relu(self.norm(x))).float())


class Gan(nn.Module):
    """`stages` in order, each a function of the features so far and the class; the first takes the latent code.

    Pictures are doubled in the blocks numbered `doubles`. A `thorough` GAN is trained against the residual critic.
    """

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        *,
        latent: int = 64,
        widths: tuple[int, ...] = (128, 128, 128, 64),
        doubles: tuple[int, ...] = (1, 2),
        thorough: bool = False,
    ) -> None:
        super().__init__()
        start, left = divmod(size, 2 ** len(doubles))
        if left:
            raise Problem(
                f"this GAN doubles its pictures {len(doubles)} times; {size} is not a multiple of {2 ** len(doubles)}."
            )
        self.shape, self.latent, self.classes, self.width = (channels, size, size), latent, classes, widths[0]
        self.thorough = thorough
        blocks = [
            _Grow(before, after, classes, double=number in doubles)
            for number, (before, after) in enumerate(zip((widths[0], *widths), widths))
        ]
        self.stages = nn.ModuleList([_Stem(latent, widths[0], start), *blocks, _Paint(widths[-1], channels)])

    @property
    def early(self) -> tuple[int, ...]:
        """The first third of the places, at least the latent code and the first stage's output."""
        return tuple(range(max(2, round(len(self.stages) / 3))))

    def forward(self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
        return self.walk(z, y, lambda number, features: features)

    def walk(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"], meet: Callable[[int, Tensor], Tensor]
    ) -> Float[Tensor, "m c h w"]:
        """The image, where `meet` may change the features before each stage."""
        for number, stage in enumerate(self.stages):
            z = stage(meet(number, z), y)
        return z

    def sample(
        self, y: Int[Tensor, " m"], rng: torch.Generator
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m c h w"]]:
        """Fresh codes of these classes, and their images."""
        z = torch.randn(len(y), self.latent, generator=rng, device=y.device)
        return z, self(z, y)


def conditional(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Wide. Colour pictures grow from an eighth of their side, as in Miyato et al., ICLR 2018, and are trained thoroughly."""
    if channels == 1 or size % 8:
        return Gan(channels, size, classes, latent=latent, widths=(128, 128, 128, 64))
    net = Gan(channels, size, classes, latent=latent, widths=(256, 256, 256), doubles=(0, 1, 2), thorough=True)
    return xavier(net)


def small(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Narrower where the picture is large: minutes on a CPU."""
    return Gan(channels, size, classes, latent=latent, widths=(48, 32, 16))


def xavier(net: Net) -> Net:
    """The first weights of Miyato et al.: as wide as keeps the size of signals, wider by the root of two before a rectifier."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(
                layer.weight, 2**0.5 if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1) else 1.0
            )
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net
