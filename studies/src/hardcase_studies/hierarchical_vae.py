"""A hierarchical variational autoencoder in the manner of VDVAE, small enough for a CPU.

R. Child, "Very deep VAEs generalize autoregressive models and can outperform them on images",
ICLR 2021; SINVAD (S. Kang, R. Feldt, S. Yoo, TOSEM 2024) searches in the latent space of the
variant of L. Hazami, R. Mama, R. Thurairatnam, "Efficient-VDVAE", 2022.

Differences: codes are kept relative to the prior that the layers above give them, as the residual
distributions of A. Vahdat, J. Kautz, "NVAE", NeurIPS 2020, so that the whole code has a standard
normal prior and distances mean the same everywhere in it; few and narrow blocks with group
normalisation; a Gaussian decoder whose variance is the best one for the batch (O. Rybkin, K.
Daniilidis, S. Levine, "Simple and effective VAE training with calibrated decoders", ICML 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.generators.quality import Family, Settings, measure
from hardcase.registry import generator
from hardcase.tensors import from_bytes
from hardcase.training.cards import History, TrainingRecipe
from hardcase.training.loop import Goal, fit
from hardcase.types import Images

KIND = "hierarchical"
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


def _train(
    net: nn.Module, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    goal = reconstruct(images, beta=options["beta"])
    return fit(net, images, goal, recipe, **how)


@generator(
    "vae-hierarchical",
    family="vae",
    kind=KIND,
    how=Family("linear", _train, measure, {"beta": 1.0}),
    laws=(
        *("images in [0, 1]", "deterministic", "global random state untouched"),
        "rows independent",
    ),
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
        raise HardcaseError(
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


def reconstruct(images: Images, *, beta: float = 1.0) -> Goal:
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
