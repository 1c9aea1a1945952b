"""Training of several networks against each other: generators and discriminators take turns on
every batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.training.augmentation import AUGMENTS
from hardcase.training.loop import (
    SCHEDULES,
    History,
    Keeper,
    Teller,
    TrainingProgress,
    TrainingRecipe,
    halved,
    own_randomness,
    pick,
    placed,
    tuned,
)
from hardcase.types import Images

# Training of several networks against each other: generators and discriminators take turns on every
# batch.


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One side: the networks it may change, and its loss on a batch (images, labels, noise).

    It moves on every batch, or on every second, third, ... one.
    """

    nets: Sequence[nn.Module]
    loss: Callable[[Tensor, Tensor, torch.Generator], Tensor]
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    every: int = 1


def duel(
    players: Sequence[Player],
    images: Images,
    recipe: TrainingRecipe,
    *,
    seed: int,
    name: str = "networks",
    device: torch.device | str = "cpu",
    half: bool = False,
    after: Callable[[int], None] = lambda step: None,
    progress: Callable[[TrainingProgress], None] | None = None,
    kept: Path | None = None,
    also: Sequence[nn.Module] = (),
    seen: Callable[[], object] = lambda: None,
) -> History:
    """On every batch each player takes one step, in order; the first player's loss is the one
    reported.

    `after` is called with the number of steps taken. All networks end in evaluation mode, on
    `device`. With `half` losses are computed in bfloat16 on a GPU; on a CPU it changes nothing.
    With a folder to be `kept` in, a training that was stopped goes on where it stood (`also`:
    networks that `after` changes), and on a CPU ends with the same bytes; `seen` is called whenever
    it was written there. Who keeps the network removes the folder.
    """
    started = time.monotonic()
    place = torch.device(device)
    half = half and place.type == "cuda"
    nets = [placed(net, place, half=half) for player in players for net in player.nets]
    epochs, inside = recipe.rounds(len(images))
    noise = stream(seed, "duel", "noise", device=place)
    order = stream(seed, "duel", "order")
    optimisers = [_optimiser(player, place) for player in players]
    take = _turns(players, optimisers, recipe, epochs * inside, place=place, half=half)
    augment = pick("augmentation", recipe.augment, AUGMENTS)
    x = images.x.to(place)
    y = images.y.to(place)
    tell = Teller(float("inf"), epochs, inside, progress, f"{name} on {images.name}")
    keep = Keeper(
        folder=kept,
        nets=[*nets, *also],
        optimisers=optimisers,
        noise=noise,
        place=place,
        tell=tell,
        seen=seen,
    )
    with own_randomness(seed, "duel", "layers", device=place), tuned(half):
        for net in nets:
            net.train()
        done = keep.resume()
        for epoch in range(epochs):
            rows = torch.randperm(len(images), generator=order).to(place)
            for step, part in enumerate(
                islice(chunks(len(images), recipe.batch), inside), epoch * inside + 1
            ):
                if step > done:
                    tell(
                        take(step, augment(from_bytes(x[rows[part]]), noise), y[rows[part]], noise)
                    )
                    after(step)
                    keep(step)
    for net in nets:
        net.eval()
    return History(
        tuple(tell.means), epochs * inside, time.monotonic() - started, tuple(tell.warnings)
    )


def _optimiser(player: Player, place: torch.device) -> torch.optim.Optimizer:
    own = [p for net in player.nets for p in net.parameters() if p.requires_grad]
    return torch.optim.Adam(
        own, player.lr, player.betas, fused=True if place.type == "cuda" else None
    )


def _turns(
    players: Sequence[Player],
    optimisers: Sequence[torch.optim.Optimizer],
    recipe: TrainingRecipe,
    total: int,
    *,
    place: torch.device,
    half: bool,
) -> Callable[[int, Tensor, Tensor, torch.Generator], Tensor]:
    """Step `step` (from 1) of every player whose turn it is; who does not move is not
    differentiated.
    """
    schedule = pick("schedule", recipe.schedule, SCHEDULES)
    own: list[list[nn.Parameter]] = [
        optimiser.param_groups[0]["params"] for optimiser in optimisers
    ]

    def learn(wanted: Sequence[nn.Parameter]) -> None:
        for parameter in (p for mine in own for p in mine):
            parameter.requires_grad_(False)
        for parameter in wanted:
            parameter.requires_grad_(True)

    def take(step: int, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        losses = []
        for player, mine, optimiser in zip(players, own, optimisers):
            if step % player.every:
                continue
            learn(mine)
            optimiser.param_groups[0]["lr"] = player.lr * schedule((step - 1) / total)
            with halved(place, wanted=half):
                loss = player.loss(x, y, noise)
            optimiser.zero_grad(set_to_none=True)
            # torch leaves Tensor.backward without types
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.detach())
        learn([p for mine in own for p in mine])
        return losses[0]

    return take
