"""A network without convolutions, for scorers that share no family with the witnesses.

I. Tolstikhin et al., "MLP-Mixer: an all-MLP architecture for vision", NeurIPS 2021,
https://arxiv.org/abs/2105.01601. What a convolutional network is led astray by, gradients of other
convolutional networks trained on the same data among them, says little about this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.randomness import named_randomness
from hardcase.training import cards
from hardcase.training.cards import TrainingRecipe, stated
from hardcase.training.loop import classify, fit, predict
from hardcase.types import Images

__all__ = ["Mixer", "trained_mixer"]

RECIPE = TrainingRecipe(epochs=60, batch=128, lr=1e-3, smoothing=0.1)


class Mixer(nn.Module):
    """An MLP-Mixer for small square images."""

    def __init__(
        self,
        channels: int,
        size: int,
        classes: int,
        *,
        patch: int = 4,
        width: int = 128,
        depth: int = 6,
    ) -> None:
        super().__init__()
        squares = (size // patch) ** 2
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)  # one linear map per square
        self.across = nn.ModuleList(_mlp(squares, squares) for _ in range(depth))
        self.within = nn.ModuleList(_mlp(width, 2 * width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(2 * x - 1).flatten(2).transpose(1, 2)  # images, squares, width
        for i, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            h = h + across(self.norms[2 * i](h).transpose(1, 2)).transpose(1, 2)
            h = h + within(self.norms[2 * i + 1](h))
        logits: Tensor = self.head(self.last(h).mean(1))
        return logits


def _mlp(size: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, inner), nn.GELU(), nn.Linear(inner, size))


def trained_mixer(
    train: Images,
    test: Images,
    *,
    seed: int = 0,
    recipe: TrainingRecipe = RECIPE,
    device: torch.device | str = "cpu",
) -> tuple[nn.Module, Mapping[str, Any]]:
    """Return a mixer trained on these images and its card, from the cache if it is there."""
    shape = {"channels": train.x.shape[1], "size": train.x.shape[2], "classes": len(train.classes)}
    config = {**shape, "seed": seed, "recipe": stated(recipe)}

    def build(made: Mapping[str, Any]) -> nn.Module:
        with named_randomness(made["seed"], "mixer"):
            return Mixer(made["channels"], made["size"], made["classes"])

    def teach(net: nn.Module) -> Mapping[str, Any]:
        task = classify(len(train.classes), smoothing=recipe.smoothing)
        fit(net, train, task, recipe, seed=seed, name="mixer", device=device)
        return {"seed": seed}

    def measure(net: nn.Module) -> Mapping[str, Any]:
        right = predict(net.to(device), test, device=device).cpu() == test.y
        return {"accuracy": float(right.double().mean())}

    net, card = cards.cached(
        "classifier",
        "mixer",
        config,
        data=train.hash,
        build=build,
        train=teach,
        measure=measure,
        measured_on=test.hash,
    )
    return net.to(device), card
