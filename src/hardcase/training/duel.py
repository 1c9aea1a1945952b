"""Training of several networks against each other: generators and discriminators take turns on every batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.training.loop import History, Progress, _Teller, own_randomness
from hardcase.training.recipe import Recipe
from hardcase.training.tables import AUGMENTS, SCHEDULES, pick
from hardcase.types import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One side: the networks it may change, and its loss on a batch (images, labels, noise)."""

    nets: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor, torch.Generator], Tensor]
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)


def duel(
    players: Sequence[Player],
    images: Images,
    recipe: Recipe,
    *,
    seed: int,
    name: str = "networks",
    device: torch.device | str = "cpu",
    after: Callable[[int], None] = lambda step: None,
    progress: Callable[[Progress], None] | None = None,
) -> History:
    """On every batch each player takes one step, in order; the first player's loss is the one reported.

    `after` is called with the number of steps taken. All networks end in evaluation mode, on `device`.
    """
    started, place = time.monotonic(), torch.device(device)
    nets = [net.to(place) for player in players for net in player.nets]
    epochs, inside = recipe.rounds(len(images))
    noise = stream(seed, "duel", "noise", device=place)
    order = stream(seed, "duel", "order")
    take = _turns(players, recipe, epochs * inside)
    augment = pick("augmentation", recipe.augment, AUGMENTS)
    x, y = images.x.to(place), images.y.to(place)
    tell = _Teller(float("inf"), epochs, inside, progress, f"{name} on {images.name}")
    with own_randomness(seed, "duel", "layers", device=place):
        for net in nets:
            net.train()
        for epoch in range(epochs):
            rows = torch.randperm(len(images), generator=order).to(place)
            for step, part in enumerate(islice(chunks(len(images), recipe.batch), inside)):
                tell(take(augment(from_bytes(x[rows[part]]), noise), y[rows[part]], noise))
                after(epoch * inside + step + 1)
    for net in nets:
        net.eval()
    return History(tuple(tell.means), epochs * inside, time.monotonic() - started, tuple(tell.warnings))


def _turns(
    players: Sequence[Player], recipe: Recipe, total: int
) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    schedule = pick("schedule", recipe.schedule, SCHEDULES)
    optimisers = [
        torch.optim.Adam([p for net in player.nets for p in net.parameters()], player.lr, player.betas)
        for player in players
    ]
    rates = [torch.optim.lr_scheduler.LambdaLR(o, lambda done: schedule(done / total)) for o in optimisers]

    def take(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        losses = []
        for player, optimiser, rate in zip(players, optimisers, rates):
            loss = player.loss(x, y, noise)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward without types
            optimiser.step()
            rate.step()
            losses.append(loss.detach())
        return losses[0]

    return take
