"""ARGUS's second stage: the VQ-VAE learns to make interpolated codes look real to a latent and to an image discriminator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.generators.vqvae import VqVae, image_discriminator, latent_discriminator, own_loss
from hardcase.training.duel import Player, duel
from hardcase.training.loop import own_randomness
from hardcase.training.recipe import Recipe
from hardcase.training.telling import History, Progress
from hardcase.types import Images


def train_jointly(
    net: VqVae,
    images: Images,
    recipe: Recipe,
    *,
    mix: float,
    weights: tuple[float, float] = (0.01, 0.01),
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[Progress], None] | None = None,
    kept: Path | None = None,
    seen: Callable[[], object] = lambda: None,
) -> History:
    """`mix` is ARGUS's λ; `weights` are those of the latent and of the image generator loss (the paper states neither).

    Every image is mixed with one of another class from the same batch. The two discriminators share no weights, so that
    one step on the sum of their losses is a step of each. With a folder to be `kept` in, it goes on where it was stopped.
    """
    with own_randomness(seed, "discriminators"):
        latent, image = latent_discriminator(net).to(device), image_discriminator(net).to(device)

    def generator(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        z = net.encode(x)
        own = own_loss(net, x, noise, z=z)
        code = _mixed(z, y, mix, noise)
        fooled = weights[0] * functional.softplus(-latent(code)).mean()
        return own + fooled + weights[1] * functional.softplus(-image(net.paint(net.book.quantise(code)))).mean()

    def judges(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            z = net.encode(x)
            code = _mixed(z, y, mix, noise)
            painted = net.decode(code)
        codes = functional.softplus(-latent(z)).mean() + functional.softplus(latent(code)).mean()
        return codes + functional.softplus(-image(x)).mean() + functional.softplus(image(painted)).mean()

    players = (
        Player(nets=[net], loss=generator, lr=recipe.lr),
        Player(nets=[latent, image], loss=judges, lr=recipe.lr),
    )
    return duel(
        players, images, recipe,
        seed=seed, name=f"vqvae with mix {mix}", device=device, progress=progress, kept=kept, seen=seen,
    )  # fmt: skip


def _mixed(z: Tensor, y: Int[Tensor, " m"], mix: float, noise: torch.Generator) -> Tensor:
    return (1 - mix) * z + mix * z[_partners(y, noise)]


def _partners(y: Int[Tensor, " m"], noise: torch.Generator) -> Int[Tensor, " m"]:
    """A random row of another class for each row (of any class where the batch has only one)."""
    score: Float[Tensor, "m m"] = torch.rand(len(y), len(y), generator=noise, device=y.device)
    return torch.where(y[:, None] == y[None, :], score - 2, score).argmax(1)
