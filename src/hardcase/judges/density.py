"""A small variational autoencoder: how likely an image is, and what lies between two images.

The likelihood of a generative model is higher for simple images than for the data it was trained on (near-black pictures
are the easiest of all). So it is compared with what images of the same complexity cost, after J. Serrà et al., "Input
complexity and out-of-distribution detection with likelihood-based generative models", ICLR 2020. Difference: they measure
complexity by a compressor, here it is the total variation, which is computed for a whole batch at once.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.judges.views import even

LATENT, HIDDEN = 24, 400


class Density(nn.Module):
    """One hidden layer on either side of the code. `level` and `slope` say what real images of a complexity cost."""

    level: Tensor
    slope: Tensor
    width: Tensor

    def __init__(self, *, channels: int, size: int) -> None:
        super().__init__()
        self.shape = (channels, size, size)
        pixels = channels * size**2
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, pixels))
        for name, value in {"level": 0.0, "slope": 0.0, "width": 1.0}.items():
            self.register_buffer(name, torch.tensor(value))

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d"]:
        """The mean code of each image."""
        out: Tensor = self.encoder(even(x)).chunk(2, 1)[0]
        return out

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]:
        return torch.sigmoid(self.decoder(z)).reshape(len(z), *self.shape)

    def bound(self, x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, ""]:
        """The loss of a training step: reconstruction and divergence, in nats an image."""
        seen = even(x)
        mean, logvar = self.encoder(seen).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device)
        painted = self.decoder(mean + torch.exp(logvar / 2) * noise)
        cost = functional.binary_cross_entropy_with_logits(painted, seen.flatten(1), reduction="sum")
        return (cost + _divergence(mean, logvar).sum()) / len(x)

    def cost(self, x: Float[Tensor, "m c h w"]) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """What an image costs at its mean code (nats beyond those of the image itself), and how complex it is."""
        seen = even(x)
        mean, logvar = self.encoder(seen).chunk(2, 1)
        flat = seen.flatten(1)
        painted = functional.binary_cross_entropy_with_logits(self.decoder(mean), flat, reduction="none").sum(1)
        own = functional.binary_cross_entropy(flat, flat, reduction="none").sum(1)
        down, right = seen.diff(dim=2).abs(), seen.diff(dim=3).abs()
        return painted - own + _divergence(mean, logvar), down.flatten(1).sum(1) + right.flatten(1).sum(1)

    def settle(self, x: Float[Tensor, "m c h w"]) -> None:
        """Learn from real images what a complexity costs: a line, and the spread around it."""
        cost, complexity = self.cost(x)
        centred = complexity - complexity.mean()
        slope = (centred * cost).mean() / centred.square().mean().clamp_min(1e-6)
        level = cost.mean() - slope * complexity.mean()
        width = (cost - level - slope * complexity).std().clamp_min(1e-3)
        for name, value in {"level": level, "slope": slope, "width": width}.items():
            getattr(self, name).copy_(value)

    def likeness(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, " m"]:
        """How much cheaper than real images of its complexity, in their spreads; below -2: unlikely; never above 1."""
        cost, complexity = self.cost(x)
        return ((self.level + self.slope * complexity - cost) / self.width).clamp(-20, 1)


def _divergence(mean: Tensor, logvar: Tensor) -> Float[Tensor, " m"]:
    return (mean.square() + logvar.exp() - 1 - logvar).sum(1) / 2


__all__ = ["HIDDEN", "LATENT", "Density"]
