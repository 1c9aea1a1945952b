"""A class-conditional GAN for small images: an image for a latent code and a class.

T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018 (projection, conditional batch normalisation, hinge
loss); T. Miyato et al., "Spectral normalization for generative adversarial networks", ICLR 2018; S. Zhao et al.,
"Differentiable augmentation for data-efficient GAN training", NeurIPS 2020. The weights that are kept are moving averages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from hardcase.errors import Problem
from hardcase.training.duel import Player, duel
from hardcase.training.loop import History, Progress, own_randomness
from hardcase.training.recipe import Recipe
from hardcase.types import Images


class _ClassNorm(nn.Module):
    """Batch normalisation whose scale and shift depend on the class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width, affine=False)
        self.scale, self.shift = nn.Embedding(classes, width), nn.Embedding(classes, width)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.norm(x) * self.scale(y)[:, :, None, None] + self.shift(y)[:, :, None, None]
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
        return torch.sigmoid(self.pixels(functional.relu(self.norm(x))))


class Gan(nn.Module):
    """`stages` in order, each a function of the features so far and the class; the first takes the latent code."""

    def __init__(
        self, channels: int, size: int, classes: int, *, latent: int = 64, widths: tuple[int, ...] = (128, 128, 128, 64)
    ) -> None:
        super().__init__()
        if size % 4:
            raise Problem(f"this GAN doubles its pictures twice; {size} is not a multiple of 4.")
        self.shape, self.latent, self.classes, self.width = (channels, size, size), latent, classes, widths[0]
        blocks = [
            _Grow(before, after, classes, double=number in (1, 2))
            for number, (before, after) in enumerate(zip((widths[0], *widths), widths))
        ]
        self.stages = nn.ModuleList([_Stem(latent, widths[0], size // 4), *blocks, _Paint(widths[-1], channels)])

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


class Critic(nn.Module):
    """The projection discriminator: how real an image looks, and how much like its class."""

    def __init__(self, channels: int, size: int, classes: int, *, width: int = 128) -> None:
        super().__init__()
        widths = (width // 2, width, width, width)
        before, layers = channels, list[nn.Module]()
        for number, after in enumerate(widths):
            layers += [spectral_norm(nn.Conv2d(before, after, 3, padding=1)), nn.LeakyReLU(0.1)]
            layers += [spectral_norm(nn.Conv2d(after, after, 4, 2, 1)), nn.LeakyReLU(0.1)] if number < 2 else []
            before = after
        self.body = nn.Sequential(*layers)
        self.real = spectral_norm(nn.Linear(width, 1))
        self.like = spectral_norm(nn.Embedding(classes, width))

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " m"]:
        h: Tensor = self.body(x).sum((2, 3))
        out: Tensor = self.real(h).squeeze(1) + (self.like(y) * h).sum(1)
        return out


def conditional(channels: int, size: int, classes: int, latent: int) -> Gan:
    width = 128 if channels == 1 else 192
    return Gan(channels, size, classes, latent=latent, widths=(width, width, width, width // 2))


def small(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Narrower where the picture is large: minutes on a CPU."""
    return Gan(channels, size, classes, latent=latent, widths=(48, 32, 16))


def train_gan(
    net: Gan,
    images: Images,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    flips: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> History:
    """Train `net` against a critic; its weights end as the moving average of the last few hundred steps."""
    with own_randomness(seed, "critic"):
        critic = Critic(net.shape[0], net.shape[1], net.classes, width=min(128, net.width)).to(device)
    player = copy.deepcopy(net).to(device)
    net.to(device)

    def fake(y: Tensor, noise: torch.Generator) -> Tensor:
        return augment(player.sample(y, noise)[1], noise, flips=flips)

    def judge(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            painted = fake(y, noise)
        real = augment(x, noise, flips=flips)
        return functional.relu(1 - critic(real, y)).mean() + functional.relu(1 + critic(painted, y)).mean()

    def fool(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        score: Tensor = critic(fake(y, noise), y)
        return -score.mean()

    def average(step: int) -> None:
        keep = min(0.999, (1 + step) / (10 + step))
        for own, new in zip(net.state_dict().values(), player.state_dict().values()):
            own.copy_(own * keep + new * (1 - keep) if own.is_floating_point() else new)

    players = (
        Player(nets=[critic], loss=judge, lr=2 * recipe.lr, betas=(0.0, 0.9)),
        Player(nets=[player], loss=fool, lr=recipe.lr, betas=(0.0, 0.9)),
    )
    history = duel(players, images, recipe, seed=seed, name="gan", device=device, after=average, progress=progress)
    net.eval()
    return history


def augment(x: Float[Tensor, "m c h w"], noise: torch.Generator, *, flips: bool) -> Float[Tensor, "m c h w"]:
    """Small shifts and changes of brightness and contrast (and mirror images), differentiable, the same for real and fake."""
    m = len(x)
    drawn = torch.rand(m, 4, generator=noise, device=x.device)
    shift = (drawn[:, :2] - 0.5) * 0.25  # up to an eighth of the picture each way
    mirror = torch.where(drawn[:, 2] < 0.5, -1.0, 1.0) if flips else torch.ones(m, device=x.device)
    zero = torch.zeros(m, device=x.device)
    rows = torch.stack([mirror, zero, shift[:, 0], zero, zero + 1, shift[:, 1]], 1).reshape(m, 2, 3)
    grid = functional.affine_grid(rows, list(x.shape), align_corners=False)
    moved = functional.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    light: Tensor = (drawn[:, 3] - 0.5)[:, None, None, None] * 0.2
    return moved + light
