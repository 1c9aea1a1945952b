"""ARGUS's second stage: the VQ-VAE learns to make interpolated codes look real to a latent and to an image discriminator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from hardcase.generators.vqvae import VqVae, image_discriminator, latent_discriminator, own_loss
from hardcase.training.duel import Player, duel
from hardcase.training.loop import History, Progress, own_randomness
from hardcase.training.recipe import Recipe
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
) -> History:
    """`mix` is ARGUS's λ; `weights` are those of the latent and of the image generator loss (the paper states neither).

    Every image is mixed with one of another class from the same batch.
    """
    with own_randomness(seed, "discriminators"):
        latent, image = latent_discriminator(net).to(device), image_discriminator(net).to(device)

    def mixed(x: Tensor, y: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
        z = net.encode(x)
        return z, (1 - mix) * z + mix * z[_partners(y, noise)]

    def generator(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        own = own_loss(net, x, noise)
        _, code = mixed(x, y, noise)
        fooled = weights[0] * functional.softplus(-latent(code)).mean()
        return own + fooled + weights[1] * functional.softplus(-image(net.paint(net.book.quantise(code)))).mean()

    def judge_codes(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            z, code = mixed(x, y, noise)
        return functional.softplus(-latent(z)).mean() + functional.softplus(latent(code)).mean()

    def judge_images(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            _, code = mixed(x, y, noise)
            painted = net.decode(code)
        return functional.softplus(-image(x)).mean() + functional.softplus(image(painted)).mean()

    players = (
        Player(nets=[net], loss=generator, lr=recipe.lr),
        Player(nets=[latent], loss=judge_codes, lr=recipe.lr),
        Player(nets=[image], loss=judge_images, lr=recipe.lr),
    )
    return duel(players, images, recipe, seed=seed, name=f"vqvae with mix {mix}", device=device, progress=progress)


def _partners(y: Int[Tensor, " m"], noise: torch.Generator) -> Int[Tensor, " m"]:
    """A random row of another class for each row (of any class where the batch has only one)."""
    score: Float[Tensor, "m m"] = torch.rand(len(y), len(y), generator=noise, device=y.device)
    return torch.where(y[:, None] == y[None, :], score - 2, score).argmax(1)
