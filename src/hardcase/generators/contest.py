"""How a class-conditional GAN is trained: generator and critic take turns.

The hinge loss, spectral normalisation and projection of T. Miyato et al. (two papers at ICLR 2018); S. Zhao et al.,
"Differentiable augmentation for data-efficient GAN training", NeurIPS 2020 (shifts and brightness of its augmentations).
The weights that are kept are moving averages. A thorough GAN takes one step for two of its critic, also hears what class
the critic takes its pictures for (A. Odena et al., ICML 2017), runs in half precision on a GPU, and ends with statistics of
its batch normalisation counted anew for the averaged weights, as in A. Brock et al., "Large scale GAN training", ICLR 2019.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.generators.critic import opponent
from hardcase.generators.gan import Gan
from hardcase.generators.pictures import draw_samples
from hardcase.randomness import stream
from hardcase.training.duel import Player, duel
from hardcase.training.loop import own_randomness
from hardcase.training.recipe import Recipe
from hardcase.training.telling import History, Progress
from hardcase.types import Images

KIND_WEIGHT = 0.5
"""How much a generator heeds the class that the critic takes its picture for, beside how real it looks."""

BATCHES = 64
"""Batches of samples over which statistics are counted anew."""


def train_gan(
    net: Gan,
    images: Images,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    flips: bool = False,
    progress: Callable[[Progress], None] | None = None,
    kept: Path | None = None,
) -> History:
    """Train `net` against a critic; its weights end as the moving average of the last thousand steps or so.

    With a folder to be `kept` in, it goes on where it was stopped, and draws samples there as it goes.
    """
    with own_randomness(seed, "critic"):
        critic = opponent(net).to(device)
    player = copy.deepcopy(net).to(device)
    net.to(device).eval()
    turns = 2 if net.thorough else 1

    def judge(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            painted = player.sample(y, noise)[1]
        score, kind = critic.judge(augment(torch.cat([x, painted]), noise, flips=flips), torch.cat([y, y]))
        real, fake = score.chunk(2)
        loss = functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()
        return loss if kind is None else loss + functional.cross_entropy(kind[: len(y)], y)

    def fool(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        score, kind = critic.judge(augment(player.sample(y, noise)[1], noise, flips=flips), y)
        return -score.mean() if kind is None else KIND_WEIGHT * functional.cross_entropy(kind, y) - score.mean()

    def average(step: int) -> None:
        if step % turns == 0:
            _average(net, player, keep=min(0.999, (turns + step) / (10 * turns + step)))

    players = (
        Player(nets=[critic], loss=judge, lr=2 * recipe.lr, betas=(0.0, 0.9)),
        Player(nets=[player], loss=fool, lr=recipe.lr, betas=(0.0, 0.9), every=turns),
    )
    history = duel(
        players, images, recipe,
        seed=seed, name="gan", device=device, half=net.thorough, after=average, progress=progress,
        kept=kept, also=[net], seen=lambda: kept and draw_samples(kept, net, net.classes),
    )  # fmt: skip
    if net.thorough:
        settle(net, stream(seed, "settle", device=torch.device(device)))
    net.eval()
    return history


@torch.no_grad()
def _average(net: nn.Module, new: nn.Module, *, keep: float) -> None:
    """Move the weights and the running statistics of `net` toward those of `new`; counters are copied."""
    pairs = list(zip(net.state_dict().values(), new.state_dict().values()))
    real = [pair for pair in pairs if pair[0].is_floating_point()]
    torch._foreach_lerp_([own for own, _ in real], [other for _, other in real], 1 - keep)
    for own, other in pairs:
        if not own.is_floating_point():
            own.copy_(other)


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


def augment(x: Float[Tensor, "m c h w"], noise: torch.Generator, *, flips: bool) -> Float[Tensor, "m c h w"]:
    """Small shifts and changes of brightness (and mirror images), differentiable, the same for real and fake."""
    m = len(x)
    drawn = torch.rand(m, 4, generator=noise, device=x.device)
    shift = (drawn[:, :2] - 0.5) * 0.25  # up to a sixteenth of the picture each way
    mirror = torch.where(drawn[:, 2] < 0.5, -1.0, 1.0) if flips else torch.ones(m, device=x.device)
    zero = torch.zeros(m, device=x.device)
    rows = torch.stack([mirror, zero, shift[:, 0], zero, zero + 1, shift[:, 1]], 1).reshape(m, 2, 3)
    grid = functional.affine_grid(rows, list(x.shape), align_corners=False)
    moved = functional.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)
    light: Tensor = (drawn[:, 3] - 0.5)[:, None, None, None] * 0.2
    return moved + light
