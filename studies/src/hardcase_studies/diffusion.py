"""A class-conditional diffusion model for small images: its denoiser, its sampler, its codes.

T. Karras, M. Aittala, T. Aila, S. Laine, "Elucidating the design space of diffusion-based
generative models", NeurIPS 2022 (EDM): preconditioning, noise levels, Heun's method. J. Ho, T.
Salimans, "Classifier-free diffusion guidance", 2022: one label in ten is hidden in training. J.
Song, C. Meng, S. Ermon, "Denoising diffusion implicit models", ICLR 2021: the same deterministic
path walked upwards gives an image its code.

Differences: a small U-Net whose features are normalised at each pixel (one pass over memory where
group normalisation takes three), most of it on the two coarsest pictures, where classes are
decided; training sees more of the high levels of noise; no dropout and no augmentation but mirror
images. The moving average of the weights keeps its share of the training however long that is (T.
Karras et al., "Analyzing and improving the training dynamics of diffusion models", CVPR 2024).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.generators.quality import Family, Settings, draw_samples, measure, measure_samples
from hardcase.registry import generator
from hardcase.tensors import from_bytes, per_row
from hardcase.training.cards import History, TrainingRecipe
from hardcase.training.loop import Goal, average, fit, halved, placed
from hardcase.types import Images

LEAST = 0.002
MOST = 80.0
"""The noise levels between which images are made, as EDM's."""
CENTRE = -0.8
WIDTH = 1.2
"""Mean and deviation of the logarithm of the level of noise in training (EDM: -1.2 and 1.2)."""
HIDDEN = 0.1
"""Share of labels that training hides."""
BEND = 7.0
"""How much denser levels lie near the image, EDM's rho."""
MEMORY = 12
"""The average of the weights reaches back over about one part in so many of the training."""
Meet = Callable[[int, Tensor], Tensor]


def _same(place: int, features: Tensor) -> Tensor:
    return features


def _normal(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """Every pixel's features with mean 0 and variance 1; in half precision as they come."""
    with torch.autocast(x.device.type, enabled=False):
        seen = functional.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],))
    return seen.permute(0, 3, 1, 2)


class _Stage(nn.Module):
    """Two convolutions beside a shortcut, told level and class; attention after them if asked."""

    def __init__(self, before: int, width: int, told: int, *, attends: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, padding=1)
        self.told = nn.Linear(told, 2 * width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.skip = nn.Conv2d(before, width, 1) if before != width else nn.Identity()
        self.attention = _Attention(width) if attends else nn.Identity()
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        scale, shift = self.told(told)[:, :, None, None].chunk(2, 1)
        h = _normal(self.conv1(functional.silu(_normal(x))))
        h = self.conv2(functional.silu(torch.addcmul(shift, h, scale + 1)))
        out: Tensor = self.attention((self.skip(x) + h) * math.sqrt(0.5))
        return out


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        count, width, high, wide = x.shape
        qkv = self.qkv(_normal(x)).permute(0, 2, 3, 1)
        parts = qkv.reshape(count, high * wide, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        out: Tensor = self.out(seen.reshape(count, high, wide, width).permute(0, 3, 1, 2))
        return (x + out) * math.sqrt(0.5)


class Denoiser(nn.Module):
    """A U-Net from noisy pixels, the level of their noise and a class (`classes`: not told) to
    pixels.

    Args:
        channels: Colour channels of the images.
        classes: Number of classes.
        widths: Channels of the features, the largest picture first; it is halved between them.
        depth: Blocks on each side of every picture.
    """

    waves: Tensor

    def __init__(self, channels: int, classes: int, *, widths: tuple[int, ...], depth: int) -> None:
        super().__init__()
        told = 8 * widths[0]
        self.register_buffer("waves", 2 * math.pi * torch.linspace(0.1, 4, widths[0]))
        self.label = nn.Embedding(classes + 1, 2 * widths[0])
        self.told = nn.Sequential(
            nn.Linear(2 * widths[0], told), nn.SiLU(), nn.Linear(told, told), nn.SiLU()
        )
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        last = len(widths) - 1
        before = widths[0]
        for level, width in enumerate(widths):
            for _ in range(depth):
                self.down.append(_Stage(before, width, told, attends=level >= last - 1))
                before = width
        self.middle = nn.ModuleList(
            [_Stage(before, before, told, attends=True), _Stage(before, before, told)]
        )
        for level, width in reversed(list(enumerate(widths))):
            for _ in range(depth):
                self.up.append(_Stage(before + width, width, told, attends=level >= last - 1))
                before = width
        self.pixels = nn.Conv2d(before, channels, 3, padding=1)
        self.depth = depth
        nn.init.zeros_(self.pixels.weight)

    def forward(
        self,
        x: Float[Tensor, "m c h w"],
        noise: Float[Tensor, " m"],
        y: Int[Tensor, " m"],
        meet: Meet = _same,
    ) -> Float[Tensor, "m c h w"]:
        phase = noise[:, None] * self.waves
        told = self.told(torch.cat([phase.cos(), phase.sin()], 1) + self.label(y))
        h = self.stem(x)
        seen = list[Tensor]()
        for number, stage in enumerate(self.down):
            if number and number % self.depth == 0:
                h = functional.avg_pool2d(h, 2)
            h = stage(h, told)
            seen.append(h)
        h = self.middle[1](meet(1, self.middle[0](h, told)), told)
        for number, stage in enumerate(self.up):
            if number and number % self.depth == 0:
                h = functional.interpolate(h, scale_factor=2.0)
            h = stage(torch.cat([h, seen.pop()], 1), told)
        out: Tensor = self.pixels(functional.silu(_normal(h)))
        return out


class Diffusion(nn.Module):
    """Images of given classes out of noise, and the code of an image: itself, walked up to a level
    of noise.

    Place 0 is the code, place 1 the middle of the denoiser, met at every step.

    Args:
        denoiser: From noisy pixels, level and class to pixels.
        shape: Channels, height and width.
        classes: Number of classes.
        level: The noise level of codes: higher leaves less of the image to stay as it is.
        rounds: Steps between an image and its code.
        guidance: How far samples are pushed towards their class, above `level`.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> sizes = {"channels": 1, "size": 8, "classes": 2, "latent": 8}
        >>> net = hc.generators.build_generator("diffusion", kind="edm", **sizes).eval()
        >>> label = torch.tensor([1])
        >>> net.decode(net.encode(torch.rand(1, 1, 8, 8), label)[0], label).shape
        torch.Size([1, 1, 8, 8])
    """

    spread: Tensor

    def __init__(
        self,
        denoiser: Denoiser,
        *,
        shape: tuple[int, int, int],
        classes: int,
        level: float = 1.0,
        rounds: int = 6,
        guidance: float = 1.0,
    ) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.shape = shape
        self.latent = math.prod(shape)
        self.labels = classes
        self.level = level
        self.rounds = rounds
        self.guidance = guidance
        self.halves = False  # bfloat16 on a GPU, for many samples
        self.register_buffer("spread", torch.tensor(0.5))

    early = (0, 1)

    def denoised(
        self,
        x: Float[Tensor, "m c h w"],
        level: float,
        y: Int[Tensor, " m"],
        *,
        guidance: float = 0.0,
        meet: Meet = _same,
    ) -> Float[Tensor, "m c h w"]:
        """The image (-1 to 1) that is expected behind noise of this level."""
        levels = torch.full((len(x),), level, device=x.device)
        seen = self._expected(x, levels, y, meet)
        if not guidance:
            return seen
        hidden = torch.full_like(y, self.labels)
        return seen + guidance * (seen - self._expected(x, levels, hidden, meet))

    def _expected(self, x: Tensor, levels: Tensor, y: Tensor, meet: Meet) -> Tensor:
        skip, out, into = (per_row(part, x) for part in self._scales(levels))
        with halved(x.device, wanted=self.halves):
            seen: Tensor = self.denoiser(into * x, levels.log() / 4, y, meet)
        return skip * x + out * seen.to(x.dtype)

    def _scales(self, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """EDM's factors: of the noisy image, of what the network says, of what it is shown."""
        whole = (levels.square() + self.spread.square()).sqrt()
        return (self.spread / whole).square(), levels * self.spread / whole, 1 / whole

    def loss(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"], rng: torch.Generator
    ) -> Float[Tensor, ""]:
        """The mean square error in EDM's units, in which knowing nothing costs 1."""
        x = 2 * x - 1
        drawn = torch.randn(len(x), generator=rng, device=x.device)
        levels = (CENTRE + WIDTH * drawn).exp()
        noise = torch.randn(x.shape, generator=rng, device=x.device)
        noisy = x + per_row(levels, x) * noise
        hide = torch.rand(len(y), generator=rng, device=x.device) < HIDDEN
        skip, out, into = (per_row(part, x) for part in self._scales(levels))
        seen = self.denoiser(into * noisy, levels.log() / 4, torch.where(hide, self.labels, y))
        return functional.mse_loss(seen.float(), (x - skip * noisy) / out)

    def _levels(self, most: float, steps: int, least: float = LEAST) -> list[float]:
        """Levels from `most` down to the least, denser near the image."""
        high = most ** (1 / BEND)
        low = least ** (1 / BEND)
        return [(high + i / steps * (low - high)) ** BEND for i in range(steps + 1)]

    def _walk(
        self,
        x: Tensor,
        levels: list[float],
        y: Tensor,
        *,
        guidance: float = 0.0,
        meet: Meet = _same,
    ) -> Tensor:
        """Heun's method along the deterministic path through these levels."""
        for here, there in pairwise(levels):
            slope = (x - self.denoised(x, here, y, guidance=guidance, meet=meet)) / here
            guess = x + (there - here) * slope
            second = (guess - self.denoised(guess, there, y, guidance=guidance, meet=meet)) / there
            x = x + (there - here) * (slope + second) / 2
        return x

    def encode(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """The code of each image in units of its spread, and (as VAEs give) the logarithm of a
        variance, which is 0.
        """
        noisy = self._walk(2 * x - 1, self._levels(self.level, self.rounds)[::-1], y)
        code = (noisy / self._unit).flatten(1)
        return code, torch.zeros_like(code)

    def decode(self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
        """The image that each code stands for."""
        return self.walk(z, y, _same)

    def walk(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"], meet: Meet
    ) -> Float[Tensor, "m c h w"]:
        """The image, where `meet` may change the code and the middle of the denoiser."""
        noisy = meet(0, z).reshape(len(z), *self.shape) * self._unit
        image = self._walk(noisy, self._levels(self.level, self.rounds), y, meet=meet)
        return ((image + 1) / 2).clamp(0, 1)

    @property
    def _unit(self) -> Tensor:
        return (self.level**2 + self.spread.square()).sqrt()

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction."""
        return self.decode(self.encode(x, y)[0], y)

    @torch.no_grad()
    def sample(
        self, y: Int[Tensor, " m"], rng: torch.Generator, *, rounds: int = 12
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m c h w"]]:
        """Fresh codes of these classes, and their images."""
        levels = self._levels(MOST, rounds, self.level)
        noisy = self._walk(self._noise(y, rng), levels, y, guidance=self.guidance)
        z = (noisy / self._unit).flatten(1)
        return z, self.decode(z, y)

    @torch.no_grad()
    def draw(
        self,
        y: Int[Tensor, " m"],
        rng: torch.Generator,
        *,
        rounds: int = 18,
        guidance: float | None = None,
    ) -> Float[Tensor, "m c h w"]:
        """Fresh images of these classes, guided all the way: better ones, without a code."""
        much = self.guidance if guidance is None else guidance
        image = self._walk(self._noise(y, rng), self._levels(MOST, rounds), y, guidance=much)
        return ((image + 1) / 2).clamp(0, 1)

    def _noise(self, y: Tensor, rng: torch.Generator) -> Tensor:
        return MOST * torch.randn(len(y), *self.shape, generator=rng, device=y.device)


_RECIPE = TrainingRecipe(epochs=150, batch=256, lr=5e-4, schedule="warm", half=True, clip=1.0)


def _train(
    net: Diffusion, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    return train_diffusion(net, images, recipe, **{**how, "name": "diffusion"})


def _measure(
    net: nn.Module,
    images: Images,
    judge: Callable[[Tensor], Tensor] | None,
    *,
    device: torch.device | str,
) -> Settings:
    """Some reconstructions, then samples; fewer where there is no GPU."""
    each = 100 if torch.device(device).type == "cuda" else 5
    some = images.sample(count=min(5 * each, len(images)), seed=0)
    return {
        **measure(net, some, judge, device=device),
        **measure_samples(net, images, judge, device=device, per_class=each),
    }


@generator(
    "diffusion-edm",
    family="diffusion",
    kind="edm",
    how=Family("edm", _train, _measure, {"minutes": None}),
    needs="square images whose side is a multiple of 4, with labels; a GPU",
    paper="Karras, Aittala, Aila and Laine, NeurIPS 2022; Song, Meng and Ermon, ICLR 2021",
    cite=("karras2022edm", "song2021ddim"),
    laws=("images in [0, 1]", "deterministic", "global random state untouched"),
    latent=64,
    recipe=_RECIPE,
    colour=replace(_RECIPE, augment="flip"),
)
def edm(channels: int, size: int, classes: int, latent: int) -> Diffusion:
    """Images of a given class out of noise, and codes of images as noise; train it on a GPU.

    `latent` is the width of the features of the largest picture: 22 million weights by default.
    """
    if size % 4:
        raise HardcaseError(
            f"a diffusion model halves its images twice; {size} is not a multiple of 4."
        )
    widths = (latent, 5 * latent // 2, 5 * latent)
    denoiser = Denoiser(channels, classes, widths=widths, depth=2)
    return Diffusion(denoiser, shape=(channels, size, size), classes=classes)


def denoise() -> Goal:
    """To tell images from noise of every level."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Diffusion)
        return net.loss(x, y, noise)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert isinstance(net, Diffusion)
        return net.denoised(2 * x - 1, 0.5, y).flatten(1)

    return Goal(loss, answer, 1.0)


def train_diffusion(
    net: Diffusion,
    images: Images,
    recipe: TrainingRecipe,
    *,
    device: torch.device | str = "cpu",
    kept: Path | None = None,
    **how: Any,
) -> History:
    """Train a copy of `net`, whose weights follow as a moving average.

    It reaches back over the last twelfth of the steps or so. With a folder to be `kept` in, it goes
    on where it was stopped, and draws samples there as it goes; `how` are further arguments of
    `fit`.
    """
    some = from_bytes(images.x[:: max(1, len(images) // 5000)])
    net.spread.fill_(float((2 * some - 1).std()))
    place = torch.device(device)
    placed(net, place, half=recipe.half and place.type == "cuda").eval()
    student = copy.deepcopy(net)
    return fit(
        student,
        images,
        denoise(),
        recipe,
        device=place,
        kept=kept,
        on_checkpoint=lambda: kept and draw_samples(kept, net, net.labels, each=6),
        also=[net],
        on_step=lambda step: average(net, student, keep=(1 - 1 / step) ** MEMORY),
        **{"name": "diffusion", **how},
    )
