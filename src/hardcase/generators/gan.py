"""A class-conditional GAN for small images, its critic, and their training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from hardcase.errors import HardcaseError
from hardcase.generators.quality import LAWS, Family, Settings, measure_samples
from hardcase.randomness import named_randomness
from hardcase.registry import generator
from hardcase.training.cards import History, TrainingRecipe
from hardcase.training.loop import Player, average, train_adversarially
from hardcase.types import Images


def _train(
    net: Gan, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    return train_gan(net, images, recipe, flips=bool(options["flips"]), **how)


_gan = partial(
    generator,
    family="gan",
    how=Family("small", _train, measure_samples, {"flips": False}),
    needs="square images whose side is a multiple of 4, with labels",
    paper="Miyato and Koyama, ICLR 2018",
    laws=LAWS[:-1],
)


# T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018: conditional batch
# normalisation in residual blocks.


class _ClassNorm(nn.Module):
    """Batch normalisation whose scale and shift depend on the class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width, affine=False)
        self.scale = nn.Embedding(classes, width)
        self.shift = nn.Embedding(classes, width)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h: Tensor = self.norm(x)
        scale = self.scale(y).to(h.dtype)
        shift = self.shift(y).to(h.dtype)
        out: Tensor = h * scale[:, :, None, None] + shift[:, :, None, None]
        return out


class _Stem(nn.Module):
    def __init__(self, latent: int, width: int, side: int) -> None:
        super().__init__()
        self.dense = nn.Linear(latent, width * side * side)
        self.shape = (width, side, side)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.dense(z)
        return out.reshape(-1, *self.shape)


class _Grow(nn.Module):
    """A residual block conditioned on the class; it doubles the picture if `double`."""

    def __init__(self, before: int, width: int, classes: int, *, double: bool) -> None:
        super().__init__()
        self.norm1 = _ClassNorm(before, classes)
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.norm2 = _ClassNorm(width, classes)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(before, width, 1)
        self.grows = double

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.relu(self.norm1(x, y))
        if self.grows:
            h = functional.interpolate(h, scale_factor=2.0)
            x = functional.interpolate(x, scale_factor=2.0)
        h = self.conv2(functional.relu(self.norm2(self.conv1(h), y)))
        out: Tensor = h + self.skip(x)
        return out


class _ToPixels(nn.Module):
    def __init__(self, width: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.pixels = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(self.pixels(functional.relu(self.norm(x))).float())


class NormalCodes(nn.Module):
    """A class-conditional generator whose codes are standard normal."""

    latent: int

    def sample(self, y: Int[Tensor, " m"], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Fresh codes of these classes, and their images."""
        z = torch.randn(len(y), self.latent, generator=rng, device=y.device)
        return z, self(z, y)


class Gan(NormalCodes):
    """Stages in order, each a function of the features so far and the class.

    Args:
        channels: Colour channels of the images.
        size: Side of the square images in pixels.
        classes: Number of classes.
        latent: Length of the code.
        widths: Channels of the stages.
        doubles: Stages after which the side is doubled.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> net = hc.generators.Gan(1, 28, 10, latent=16, widths=(8, 8, 8, 8)).eval()
        >>> net.sample(torch.tensor([3]), torch.Generator().manual_seed(0))[1].shape
        torch.Size([1, 1, 28, 28])
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
    ) -> None:
        super().__init__()
        start, left = divmod(size, 2 ** len(doubles))
        if left:
            raise HardcaseError(
                f"this GAN doubles its pictures {len(doubles)} times; {size} is not a multiple of"
                f" {2 ** len(doubles)}."
            )
        self.shape = (channels, size, size)
        self.latent = latent
        self.classes = classes
        self.width = widths[0]
        blocks = [
            _Grow(before, after, classes, double=number in doubles)
            for number, (before, after) in enumerate(zip((widths[0], *widths), widths))
        ]
        self.stages = nn.ModuleList(
            [_Stem(latent, widths[0], start), *blocks, _ToPixels(widths[-1], channels)]
        )

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


@_gan(
    "gan-conditional",
    kind="conditional",
    cite="miyato2018cgan",
    latent=64,
    recipe=TrainingRecipe(epochs=12, steps=1200, batch=128, lr=2e-4),
)
def conditional(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Class-conditional images from a wide network; needs a GPU."""
    return Gan(channels, size, classes, latent=latent, widths=(128, 128, 128, 64))


@_gan(
    "gan-small",
    kind="small",
    cite="miyato2018cgan",
    latent=32,
    recipe=TrainingRecipe(epochs=1, steps=1200, batch=64, lr=1e-3),
)
def small(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Class-conditional images; its activations can be perturbed; minutes on a CPU.

    Narrower where the image is large.
    """
    return Gan(channels, size, classes, latent=latent, widths=(48, 32, 16))


# What a GAN is trained against.


class Critic(nn.Module):
    """A plain and small projection discriminator.

    T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018.
    """

    def __init__(self, channels: int, classes: int, *, width: int = 128) -> None:
        super().__init__()
        widths = (width // 2, width, width, width)
        before = channels
        layers = list[nn.Module]()
        for number, after in enumerate(widths):
            layers += [spectral_norm(nn.Conv2d(before, after, 3, padding=1)), nn.LeakyReLU(0.1)]
            if number < 2:
                layers += [spectral_norm(nn.Conv2d(after, after, 4, 2, 1)), nn.LeakyReLU(0.1)]
            before = after
        self.body = nn.Sequential(*layers)
        self.real = spectral_norm(nn.Linear(width, 1))
        self.like = spectral_norm(nn.Embedding(classes, width))

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " m"]:
        h: Tensor = self.body(x).sum((2, 3))
        out: Tensor = self.real(h).squeeze(1) + (self.like(y) * h).sum(1)
        return out


# The hinge loss, spectral normalisation and projection of T. Miyato et al. (two papers at ICLR
# 2018); S. Zhao et al., "Differentiable augmentation for data-efficient GAN training", NeurIPS 2020
# (shifts and brightness of its augmentations). The weights that are kept are moving averages.


def train_gan(
    net: Gan,
    images: Images,
    recipe: TrainingRecipe,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    flips: bool = False,
    kept: Path | None = None,
    **how: Any,
) -> History:
    """Train `net` against a critic."""
    with named_randomness(seed, "critic"):
        width = min(128, net.width)
        critic = Critic(net.shape[0], net.classes, width=width).to(device)
    player = copy.deepcopy(net).to(device)
    net.to(device).eval()

    def judge(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            generated = player.sample(y, noise)[1]
        images = augment(torch.cat([x, generated]), noise, flips=flips)
        real, fake = critic(images, torch.cat([y, y])).chunk(2)
        return functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()

    def fool(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        score: Tensor = critic(augment(player.sample(y, noise)[1], noise, flips=flips), y)
        return -score.mean()

    def follow(step: int) -> None:
        average(net, player, keep=min(0.999, (1 + step) / (10 + step)))

    players = (
        # two time scales (Heusel et al., NeurIPS 2017): the critic learns twice as fast
        Player(nets=[critic], loss=judge, lr=2 * recipe.lr, betas=(0.0, 0.9)),
        Player(nets=[player], loss=fool, lr=recipe.lr, betas=(0.0, 0.9)),
    )
    history = train_adversarially(
        players,
        images,
        recipe,
        seed=seed,
        device=device,
        on_step=follow,
        kept=kept,
        also=[net],
        **{**how, "name": "gan"},
    )
    net.eval()
    return history


def augment(
    x: Float[Tensor, "m c h w"], noise: torch.Generator, *, flips: bool
) -> Float[Tensor, "m c h w"]:
    """Small differentiable shifts, changes of brightness and mirror images."""
    m = len(x)
    drawn = torch.rand(m, 4, generator=noise, device=x.device)
    shift = (drawn[:, :2] - 0.5) * 0.25  # up to a sixteenth of the picture each way
    mirror = torch.where((drawn[:, 2] < 0.5) & flips, -1.0, 1.0)
    zero = torch.zeros(m, device=x.device)
    rows = torch.stack([mirror, zero, shift[:, 0], zero, zero + 1, shift[:, 1]], 1).reshape(m, 2, 3)
    grid = functional.affine_grid(rows, list(x.shape), align_corners=False)
    moved = functional.grid_sample(
        x, grid, mode="nearest", padding_mode="zeros", align_corners=False
    )
    light: Tensor = (drawn[:, 3] - 0.5)[:, None, None, None] * 0.2
    return moved + light
