"""Variational autoencoders: linear, convolutional, conditional and hierarchical."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem
from hardcase.generators.quality import Family, Settings, drawing, measure
from hardcase.registry import generator
from hardcase.tensors import from_bytes
from hardcase.training.loop import Goal, History, TrainingRecipe, fit
from hardcase.types import Images

__all__ = ["Hierarchical", "Vae", "reconstruct", "reconstruct_hierarchical"]

_LAWS = (
    "images in [0, 1]",
    "deterministic",
    "global random state untouched",
    "rows independent",
)
_SINVAD = "Kang, Feldt and Yoo, TOSEM 2024"
_DENSE = TrainingRecipe(epochs=10, steps=1500, batch=64, lr=1e-3)


def _train(
    net: nn.Module, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    goal_of = reconstruct_hierarchical if isinstance(net, Hierarchical) else reconstruct
    goal = goal_of(images, beta=options["beta"])
    return fit(net, images, goal, recipe, on_checkpoint=drawing(net, images, how["kept"]), **how)


_vae = partial(
    generator, family="vae", laws=_LAWS, how=Family("linear", _train, measure, {"beta": 1.0})
)


# R. Child, "Very deep VAEs generalize autoregressive models and can outperform them on images",
# ICLR 2021; SINVAD (S. Kang, R. Feldt, S. Yoo, TOSEM 2024) searches in the latent space of the
# variant of L. Hazami, R. Mama, R. Thurairatnam, "Efficient-VDVAE", 2022.
#
# Differences: codes are kept relative to the prior that the layers above give them, as the residual
# distributions of A. Vahdat, J. Kautz, "NVAE", NeurIPS 2020, so that the whole code has a standard
# normal prior and distances mean the same everywhere in it; few and narrow blocks with group
# normalisation; a Gaussian decoder whose variance is the best one for the batch (O. Rybkin, K.
# Daniilidis, S. Levine, "Simple and effective VAE training with calibrated decoders", ICML 2021).

FARTHEST = 8.0
"""Posterior means stay within so many deviations of their prior."""
SHARES = (0.35, 0.45, 0.2)
"""How the code is divided over the sizes of the picture, the coarsest first."""

Choose = Callable[[Tensor, Tensor], Tensor]
"""A code for the mean and logarithm of the variance of a group's posterior."""


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut; it begins as the shortcut alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, width)
        self.norm2 = nn.GroupNorm(8, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
        inner = self.conv1(functional.silu(self.norm1(x)))
        out: Tensor = x + self.conv2(functional.silu(self.norm2(inner)))
        return out


class LatentGroup(nn.Module):
    """A group of codes at one size: posterior from both sides, and what a code adds."""

    def __init__(self, width: int, codes: int) -> None:
        super().__init__()
        self.codes = codes
        self.prior = nn.Conv2d(width, 2 * codes, 3, padding=1)
        self.posterior = nn.Sequential(
            nn.Conv2d(2 * width, width, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 2 * codes, 3, padding=1),
        )
        self.lift = nn.Conv2d(codes, width, 1)
        self.after = Residual(width)
        nn.init.zeros_(self.prior.weight)

    def infer(self, above: Tensor, below: Tensor) -> tuple[Tensor, Tensor]:
        mean, logvar = self.posterior(torch.cat([above, below], 1)).chunk(2, dim=1)
        return FARTHEST * torch.tanh(mean / FARTHEST), logvar.clamp(-10, 2)

    def descend(self, above: Tensor, code: Tensor) -> Tensor:
        mean, spread = self.prior(functional.silu(above)).chunk(2, dim=1)
        out: Tensor = self.after(above + self.lift(mean + code * spread.clamp(-4, 4).exp()))
        return out


class Hierarchical(nn.Module):
    """Encoder up, decoder down, groups of codes on the way, the coarsest first in a code.

    Args:
        shape: Channels, height and width.
        sides: Side of the features at each scale.
        widths: Channels at each scale.
        codes: Channels of the code groups at each scale.
    """

    labels = 0

    def __init__(
        self,
        shape: tuple[int, int, int],
        sides: list[int],
        widths: list[int],
        codes: list[list[int]],
    ) -> None:
        """Lists run from the coarsest to the full size, which has no group."""
        super().__init__()
        self.shape = shape
        self.sides = sides
        self.latent = sum(n * s * s for s, some in zip(sides, codes) for n in some)
        self.stem = nn.Conv2d(shape[0], widths[-1], 3, padding=1)
        self.up = nn.ModuleList(nn.Sequential(Residual(w), Residual(w)) for w in widths)
        self.narrow = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in zip(widths[1:], widths))
        self.levels = [level for level, some in enumerate(codes) for _ in some]
        self.groups = nn.ModuleList(
            LatentGroup(w, n) for w, some in zip(widths, codes) for n in some
        )
        self.widen = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairwise(widths))
        self.start = nn.Parameter(torch.zeros(1, widths[0], sides[0], sides[0]))
        self.finish = nn.Sequential(
            Residual(widths[-1]), nn.SiLU(), nn.Conv2d(widths[-1], shape[0], 3, padding=1)
        )

    def encode(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """Mean and log variance of the code, each group given the means above it."""
        _, mean, logvar = self.through(x, lambda mean, logvar: mean)
        return mean, logvar

    def decode(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The image that each code stands for."""
        at = 0

        def next_code(group: LatentGroup, side: int) -> Tensor:
            nonlocal at
            count = group.codes * side * side
            at += count
            return z[:, at - count : at].reshape(len(z), group.codes, side, side)

        return torch.sigmoid(
            self._down(len(z), lambda group, level, above: next_code(group, self.sides[level]))
        )

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction: the image of the mean code."""
        return torch.sigmoid(self.through(x, lambda mean, logvar: mean)[0])

    def through(self, x: Float[Tensor, "m c h w"], choose: Choose) -> tuple[Tensor, Tensor, Tensor]:
        """Pixel logits, mean and log variance of the code, `choose` picking each group's codes."""
        below = self._up(x)
        means = list[Tensor]()
        logvars = list[Tensor]()

        def code(group: LatentGroup, level: int, above: Tensor) -> Tensor:
            mean, logvar = group.infer(above, below[level])
            means.append(mean.flatten(1))
            logvars.append(logvar.flatten(1))
            return choose(mean, logvar)

        logits = self._down(len(x), code)
        return logits, torch.cat(means, 1), torch.cat(logvars, 1)

    def _up(self, x: Tensor) -> list[Tensor]:
        """What is seen at every size, the coarsest first."""
        h = self.stem(x * 2 - 1)
        seen = list[Tensor]()
        for level in reversed(range(len(self.sides))):
            h = self.up[level](h)
            seen.append(h)
            if level:
                h = self.narrow[level - 1](functional.avg_pool2d(h, 2))
        return seen[::-1]

    def _down(self, count: int, code: Callable[[LatentGroup, int, Tensor], Tensor]) -> Tensor:
        h: Tensor = self.start.expand(count, -1, -1, -1)
        for level in range(len(self.sides)):
            for group in self._at(level):
                h = group.descend(h, code(group, level, h))
            if level < len(self.widen):
                h = self.widen[level](functional.interpolate(h, scale_factor=2.0))
        out: Tensor = self.finish(h)
        return out

    def _at(self, level: int) -> list[LatentGroup]:
        own = zip(self.groups, self.levels)
        return [group for group, place in own if place == level and isinstance(group, LatentGroup)]


@_vae(
    "vae-hierarchical",
    kind="hierarchical",
    needs="square images whose side can be halved twice",
    paper="Child, ICLR 2021; as SINVAD uses it, Kang, Feldt and Yoo, TOSEM 2024",
    cite=("child2021vdvae", "kang2024sinvad"),
    latent=1024,
    recipe=TrainingRecipe(epochs=60, steps=3000, batch=128, lr=1e-3, schedule="warm"),
)
def hierarchical(
    channels: int, size: int, classes: int, latent: int, *, width: int = 32
) -> Hierarchical:
    """Codes at several sizes of the image, in the manner of VDVAE; train it on a GPU.

    Two groups at every size but the two largest (one, none); about `latent` codes in all, at least
    one channel per group.
    """
    sides = [size]
    while sides[0] % 2 == 0 and sides[0] > 4 and len(sides) < 4:
        sides.insert(0, sides[0] // 2)
    if len(sides) < 3:
        raise Problem(
            f"a hierarchical VAE halves its images at least twice; {size}x{size} pixels do not"
            " allow that."
        )
    widths = [width * (len(sides) - level) for level in range(len(sides))]
    groups = [2] * (len(sides) - 2) + [1]
    shares = SHARES[: len(groups)]
    codes = [
        [max(1, round(latent * share / sum(shares) / (count * side**2)))] * count
        for share, count, side in zip(shares, groups, sides)
    ]
    return Hierarchical((channels, size, size), sides, widths, codes)


def reconstruct_hierarchical(images: Images, *, beta: float = 1.0) -> Goal:
    """The negative lower bound per image under the batch's best variance, up to a constant."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Hierarchical)

        def drawn(mean: Tensor, logvar: Tensor) -> Tensor:
            return mean + torch.exp(logvar / 2) * torch.randn(
                mean.shape, generator=noise, device=mean.device
            )

        logits, mean, logvar = net.through(x, drawn)
        error = (torch.sigmoid(logits) - x).square().mean()
        divergence = (mean.square() + logvar.exp() - 1 - logvar).sum() / 2 / len(x)
        return x[0].numel() / 2 * torch.log(error + 1e-6) + beta * divergence

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        decoded: Tensor = net(x, y)
        return decoded.flatten(1)

    x = from_bytes(images.x[:: max(1, len(images) // 2000)])
    spread = float((x - x.mean(0)).square().mean())
    return Goal(loss, answer, x[0].numel() / 2 * math.log(spread + 1e-6))


# D. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014; the sizes of S. Kang, R.
# Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2024 (SINVAD). The conditional form:
# K. Sohn, H. Lee, X. Yan, "Learning structured output representation using deep conditional
# generative models", NeurIPS 2015.
#
# Loss: binary cross-entropy and KL divergence, each summed over an image, the latter times `beta`.
# SINVAD's code trains with Adam at 2e-4 for 100 epochs (the paper says 50); the recipes here are
# shorter at a larger, falling rate.


class Vae(nn.Module):
    """An encoder to (mean, logvar) and a decoder to images in [0, 1].

    Args:
        encoder: Images to mean and log variance.
        decoder: Codes to images in [0, 1].
        shape: Channels, height and width.
        latent: Length of the code.
        labels: Number of classes that both are told about; 0: labels are ignored.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        *,
        shape: tuple[int, int, int],
        latent: int,
        labels: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.shape = shape
        self.latent = latent
        self.labels = labels

    def encode(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """Mean and logarithm of the variance of the code of each image."""
        mean, logvar = self.encoder(self.with_label(x, y)).chunk(2, dim=1)
        return mean, logvar

    def decode(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The image that each code stands for."""
        return torch.sigmoid(self.pixel_logits(z, y))

    def pixel_logits(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The logits of the pixels, which training compares with images."""
        pixels: Tensor = self.decoder(self.with_label(z, y))
        return pixels.reshape(len(z), *self.shape)

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction: the image of the mean code."""
        return self.decode(self.encode(x, y)[0], y)

    def with_label(
        self, values: Float[Tensor, "m *d"], y: Int[Tensor, " m"] | None
    ) -> Float[Tensor, "m *e"]:
        """Values beside their label, one place for each class, where labels are told."""
        if not self.labels:
            return values
        if y is None:
            raise Problem(
                "a conditional VAE needs the label of every image.",
                fix="encode(x, y) and decode(z, y)",
            )
        one_hot = y[:, None] == torch.arange(self.labels, device=y.device)
        return torch.cat([values.flatten(1), one_hot.to(values.dtype)], dim=1)


@_vae(
    "vae-linear",
    kind="linear",
    needs="square images",
    paper=_SINVAD,
    cite="kang2024sinvad",
    latent=400,
    recipe=_DENSE,
)
def linear(channels: int, size: int, classes: int, latent: int, *, hidden: int = 1600) -> Vae:
    """Variational autoencoder with one hidden layer of 1600 units on either side.

    784-1600-400 for SINVAD's digits.
    """
    return _dense(channels, size, latent, hidden, labels=0)


@_vae(
    "vae-conditional",
    kind="conditional",
    needs="square images with labels",
    paper="Sohn, Lee and Yan, NeurIPS 2015; named as future work by SINVAD, TOSEM 2024",
    cite=("sohn2015cvae", "kang2024sinvad"),
    latent=400,
    recipe=_DENSE,
)
def conditional(channels: int, size: int, classes: int, latent: int, *, hidden: int = 1600) -> Vae:
    """Linear variational autoencoder that is told the label when it encodes and decodes.

    The label, one place for each class, stands beside the pixels and beside the code.
    """
    return _dense(channels, size, latent, hidden, labels=classes)


def _dense(channels: int, size: int, latent: int, hidden: int, *, labels: int) -> Vae:
    pixels = channels * size**2
    encoder = OrderedDict[str, nn.Module](
        flatten=nn.Flatten(),
        hidden=nn.Linear(pixels + labels, hidden),
        relu=nn.ReLU(),
        code=nn.Linear(hidden, 2 * latent),
    )
    decoder = OrderedDict[str, nn.Module](
        hidden=nn.Linear(latent + labels, hidden), relu=nn.ReLU(), pixels=nn.Linear(hidden, pixels)
    )
    shape = (channels, size, size)
    return Vae(
        nn.Sequential(encoder), nn.Sequential(decoder), shape=shape, latent=latent, labels=labels
    )


_WIDTHS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (64, 1), (64, 1), (64, 1))
"""Channels and stride of the eight convolutions of the encoder;
the decoder goes through them backwards.
"""


@_vae(
    "vae-conv",
    kind="conv",
    needs="square images of 4x4 or more",
    paper=_SINVAD,
    cite="kang2024sinvad",
    latent=800,
    recipe=TrainingRecipe(epochs=10, steps=1200, batch=64, lr=3e-3, schedule="warm"),
)
def conv(channels: int, size: int, classes: int, latent: int) -> Vae:
    """Variational autoencoder with eight convolutions on either side.

    3x3 convolutions, two of which halve (or double) the image, and a dense layer at the code. The
    paper gives only their number; widths, strides and batch normalisation are ours. The authors'
    code has another, residual network for SVHN.
    """
    if size < 4:
        raise Problem(
            f"a convolutional VAE halves its images twice; {size}x{size} pixels are too few (4x4 or"
            " more)."
        )
    half = (size + 1) // 2
    quarter = (half + 1) // 2
    widths = (channels, *(width for width, _ in _WIDTHS))
    flat = widths[-1] * quarter**2
    encoder = OrderedDict[str, nn.Module]()
    for number, (_, stride) in enumerate(_WIDTHS, 1):
        _layer(encoder, number, widths[number - 1], widths[number], stride)
    encoder |= {"flatten": nn.Flatten(), "code": nn.Linear(flat, 2 * latent)}
    decoder = OrderedDict[str, nn.Module](
        spread=nn.Linear(latent, flat), picture=nn.Unflatten(1, (widths[-1], quarter, quarter))
    )
    sides = iter((half, size))
    for number, (_, stride) in reversed(list(enumerate(_WIDTHS, 1))):
        if stride == 2:
            decoder[f"grow{number}"] = nn.Upsample(size=next(sides))
        if number > 1:
            _layer(decoder, number, widths[number], widths[number - 1], 1)
    decoder["pixels"] = nn.Conv2d(widths[1], channels, 3, padding=1)
    return Vae(
        nn.Sequential(encoder), nn.Sequential(decoder), shape=(channels, size, size), latent=latent
    )


def _layer(
    layers: OrderedDict[str, nn.Module], number: int, before: int, width: int, stride: int
) -> None:
    layers[f"conv{number}"] = nn.Conv2d(before, width, 3, stride, 1, bias=False)
    layers[f"norm{number}"] = nn.BatchNorm2d(width)
    layers[f"relu{number}"] = nn.ReLU()


def reconstruct(images: Images, *, beta: float = 1.0) -> Goal:
    """The negative lower bound per image; ignoring the input gives the mean image."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Vae)
        mean, logvar = net.encode(x, y)
        z = mean + torch.exp(logvar / 2) * torch.randn(
            mean.shape, generator=noise, device=mean.device
        )
        error = functional.binary_cross_entropy_with_logits(
            net.pixel_logits(z, y), x, reduction="sum"
        )
        divergence = (mean.square() + logvar.exp() - 1 - logvar).sum() / 2
        return (error + beta * divergence) / len(x)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        decoded: Tensor = net(x, y)
        return decoded.flatten(1)

    average = from_bytes(images.x).mean(0)
    chance = float(functional.binary_cross_entropy(average, average, reduction="sum"))
    return Goal(loss, answer, chance, plain=True)
