"""A class-conditional GAN for small images, its critic, and their training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from math import log2
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from hardcase.errors import Problem
from hardcase.generators.quality import Family, Settings, draw_samples, measure_samples
from hardcase.randomness import stream
from hardcase.registry import generator
from hardcase.training.adversarial import Player, duel
from hardcase.training.loop import History, TrainingRecipe, average, own_randomness
from hardcase.types import Images

__all__ = ["Critic", "Gan", "ResidualCritic", "train_gan"]


def _train(
    net: Gan, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    return train_gan(net, images, recipe, flips=bool(options["flips"]), **{**how, "name": "gan"})


_gan = partial(
    generator,
    family="gan",
    how=Family("small", _train, measure_samples, {"flips": False}),
    needs="square images whose side is a multiple of 4, with labels",
    paper="Miyato and Koyama, ICLR 2018",
    laws=("images in [0, 1]", "deterministic", "global random state untouched"),
)


# T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018: conditional batch
# normalisation in residual blocks.

Net = TypeVar("Net", bound=nn.Module)


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


class Gan(nn.Module):
    """Stages in order, each a function of the features so far and the class.

    Args:
        channels: Colour channels of the images.
        size: Side of the square images in pixels.
        classes: Number of classes.
        latent: Length of the code.
        widths: Channels of the stages.
        doubles: Stages after which the side is doubled.
        thorough: Trained against a residual critic.

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
        thorough: bool = False,
    ) -> None:
        super().__init__()
        start, left = divmod(size, 2 ** len(doubles))
        if left:
            raise Problem(
                f"this GAN doubles its pictures {len(doubles)} times; {size} is not a multiple of"
                f" {2 ** len(doubles)}."
            )
        self.shape = (channels, size, size)
        self.latent = latent
        self.classes = classes
        self.width = widths[0]
        self.thorough = thorough
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

    def sample(
        self, y: Int[Tensor, " m"], rng: torch.Generator
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m c h w"]]:
        """Fresh codes of these classes, and their images."""
        z = torch.randn(len(y), self.latent, generator=rng, device=y.device)
        return z, self(z, y)


@_gan(
    "gan-conditional",
    kind="conditional",
    cite="miyato2018cgan",
    latent=64,
    recipe=TrainingRecipe(epochs=12, steps=1200, batch=128, lr=2e-4),
    colour=TrainingRecipe(epochs=40, batch=128, lr=2e-4, augment="flip"),
)
def conditional(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Images of a given class, from a wide network; colour against a residual critic; needs a GPU.

    Colour images grow from an eighth of their side, as in Miyato et al., ICLR 2018, and are
    trained thoroughly.
    """
    if channels == 1 or size % 8:
        return Gan(channels, size, classes, latent=latent, widths=(128, 128, 128, 64))
    net = Gan(
        channels,
        size,
        classes,
        latent=latent,
        widths=(256, 256, 256),
        doubles=(0, 1, 2),
        thorough=True,
    )
    return xavier(net)


@_gan(
    "gan-small",
    kind="small",
    cite="miyato2018cgan",
    latent=32,
    recipe=TrainingRecipe(epochs=1, steps=1200, batch=64, lr=1e-3),
)
def small(channels: int, size: int, classes: int, latent: int) -> Gan:
    """Images of a given class; its activations can be perturbed; minutes on a CPU.

    Narrower where the image is large.
    """
    return Gan(channels, size, classes, latent=latent, widths=(48, 32, 16))


def xavier(net: Net) -> Net:
    """Initialise as Miyato et al.: signals keep their size, wider before a rectifier."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(
                layer.weight,
                2**0.5 if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1) else 1.0,
            )
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


# What a GAN is trained against.


class Critic(nn.Module):
    """A plain and small projection discriminator.

    T. Miyato, M. Koyama, "cGANs with projection discriminator", ICLR 2018.
    """

    def __init__(self, channels: int, size: int, classes: int, *, width: int = 128) -> None:
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

    def judge(self, x: Tensor, y: Tensor) -> tuple[Float[Tensor, " m"], None]:
        return self(x, y), None


class ResidualCritic(nn.Module):
    """The same in residual blocks (Miyato et al., "Spectral normalization", ICLR 2018).

    The head is that of A. Odena et al., "Conditional image synthesis with auxiliary classifier
    GANs", ICML 2017. Differences: it stands beside the projection, not in its place, and is taught
    by real images alone, as in M. Kang et al., "Rebooting ACGAN", NeurIPS 2021, whose normalised
    features and pairs within a batch are left out.
    """

    def __init__(self, channels: int, size: int, classes: int, *, width: int = 256) -> None:
        super().__init__()
        halvings = max(2, round(log2(size / 8)))
        widths = (width // 2, *[width] * (halvings + 1))
        blocks = [
            _Shrink(before, after, halve=number < halvings, first=number == 0)
            for number, (before, after) in enumerate(zip((channels, *widths), widths))
        ]
        self.body = nn.Sequential(*blocks)
        self.real = nn.Linear(width, 1)
        self.like = nn.Embedding(classes, width)
        self.kind = nn.Linear(width, classes)
        xavier(self)
        nn.init.xavier_uniform_(self.like.weight)
        _bound(self)

    def forward(self, x: Tensor, y: Tensor) -> Float[Tensor, " m"]:
        return self.judge(x, y)[0]

    def judge(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, " m"], Float[Tensor, "m k"]]:
        h = functional.relu(self.body(2 * x - 1)).float().sum((2, 3))
        with torch.autocast(h.device.type, enabled=False):
            score: Tensor = self.real(h).squeeze(1) + (self.like(y) * h).sum(1)
            return score, self.kind(h)


class _Shrink(nn.Module):
    """A residual block that may halve the image; the first one sees pixels, not rectified."""

    def __init__(self, before: int, width: int, *, halve: bool, first: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(before, width, 1) if before != width or halve else nn.Identity()
        self.halve = halve
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(x if self.first else functional.relu(x))
        h = self.conv2(functional.relu(h))
        if self.halve:
            h = functional.avg_pool2d(h, 2)
            x = functional.avg_pool2d(x, 2)
        out: Tensor = h + self.skip(x)
        return out


class _Bounded(nn.Module):
    """A weight over its largest singular value, by a step of power iteration on every use.

    As torch's own, but always in single precision, so that it may be used where the network is run
    in half.
    """

    u: Tensor
    v: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        flat = weight.detach().flatten(1)
        self.register_buffer("u", functional.normalize(torch.randn(len(flat)), dim=0))
        self.register_buffer("v", torch.zeros(flat.shape[1]))
        for _ in range(15):
            self._follow(flat)

    @torch.no_grad()
    def _follow(self, flat: Tensor) -> None:
        v = self.u @ flat
        v /= v.norm() + 1e-12
        u = flat @ v
        self.u = u / (u.norm() + 1e-12)
        self.v = v

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            flat = weight.flatten(1)
            if self.training:
                self._follow(flat)
            return weight / (self.u @ (flat @ self.v))


def _bound(net: nn.Module) -> None:
    layers = [
        layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear | nn.Embedding)
    ]
    for layer in layers:
        assert isinstance(layer.weight, Tensor)
        register_parametrization(layer, "weight", _Bounded(layer.weight))


def opponent(net: Gan) -> Critic | ResidualCritic:
    """The critic that fits this generator."""
    if net.thorough:
        return ResidualCritic(net.shape[0], net.shape[1], net.classes, width=net.width)
    return Critic(net.shape[0], net.shape[1], net.classes, width=min(128, net.width))


# The hinge loss, spectral normalisation and projection of T. Miyato et al. (two papers at ICLR
# 2018); S. Zhao et al., "Differentiable augmentation for data-efficient GAN training", NeurIPS 2020
# (shifts and brightness of its augmentations). The weights that are kept are moving averages. A
# thorough GAN takes one step for two of its critic, also learns which class the critic takes its
# images for (A. Odena et al., ICML 2017), runs in half precision on a GPU, and ends with
# statistics of its batch normalisation counted anew for the averaged weights, as in A. Brock et
# al., "Large scale GAN training", ICLR 2019.

KIND_WEIGHT = 0.5
"""How much a generator heeds the class that the critic takes its picture for,
beside how real it looks.
"""

BATCHES = 64
"""Batches of samples over which statistics are counted anew."""


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
    """Train `net` against a critic.

    Its weights end as the moving average of the last thousand steps or so. With a folder to be
    `kept` in, it goes on where it was stopped, and draws samples there as it goes; `how` are
    further arguments of `duel`.
    """
    with own_randomness(seed, "critic"):
        critic = opponent(net).to(device)
    player = copy.deepcopy(net).to(device)
    net.to(device).eval()
    turns = 1 + net.thorough

    def judge(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            generated = player.sample(y, noise)[1]
        score, kind = critic.judge(
            augment(torch.cat([x, generated]), noise, flips=flips), torch.cat([y, y])
        )
        real, fake = score.chunk(2)
        loss = functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()
        if kind is not None:
            loss = loss + functional.cross_entropy(kind[: len(y)], y)
        return loss

    def fool(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        score, kind = critic.judge(augment(player.sample(y, noise)[1], noise, flips=flips), y)
        if kind is None:
            return -score.mean()
        return KIND_WEIGHT * functional.cross_entropy(kind, y) - score.mean()

    def follow(step: int) -> None:
        if step % turns == 0:
            average(net, player, keep=min(0.999, (turns + step) / (10 * turns + step)))

    players = (
        # two time scales (Heusel et al., NeurIPS 2017): the critic learns twice as fast
        Player(nets=[critic], loss=judge, lr=2 * recipe.lr, betas=(0.0, 0.9)),
        Player(nets=[player], loss=fool, lr=recipe.lr, betas=(0.0, 0.9), every=turns),
    )
    history = duel(
        players,
        images,
        recipe,
        seed=seed,
        device=device,
        half=net.thorough,
        on_step=follow,
        kept=kept,
        also=[net],
        on_checkpoint=lambda: kept and draw_samples(kept, net, net.classes),
        **{"name": "gan", **how},
    )
    if net.thorough:
        settle(net, stream(seed, "settle", device=torch.device(device)))
    net.eval()
    return history


@torch.no_grad()
def settle(net: Gan, rng: torch.Generator, *, batch: int = 256) -> None:
    """Count the statistics of batch normalisation anew, over fresh samples of all classes."""
    norms = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for the plain mean over all batches
    net.train()
    label = torch.arange(batch, device=rng.device) % net.classes
    for _ in range(BATCHES):
        net.sample(label, rng)
    for norm, momentum in zip(norms, usual):
        norm.momentum = momentum


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
