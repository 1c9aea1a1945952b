"""Training of several networks against each other: each takes its step on every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hardcase.training.loop import (
    SCHEDULES,
    History,
    Step,
    TrainingRecipe,
    halved,
    pick,
    placed,
    steps_of,
)
from hardcase.types import Images

__all__ = ["Player", "duel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """The networks that one side may change, its loss on a batch, and how often it moves."""

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
    name: str = "networks",
    device: torch.device | str = "cpu",
    half: bool = False,
    **how: Any,
) -> History:
    """On every batch each player takes one step, in order; `how` goes to `steps_of`.

    The first player's loss is reported. With `half`, losses are computed in bfloat16 on a GPU.
    """
    place = torch.device(device)
    half = half and place.type == "cuda"
    nets = [placed(net, place, half=half) for player in players for net in player.nets]
    optimisers = [_optimiser(player, place) for player in players]
    return steps_of(
        lambda noise: _turns(players, optimisers, recipe, noise, half=half),
        images,
        recipe,
        learners=nets,
        optimisers=optimisers,
        label="duel",
        name=name,
        place=place,
        half=half,
        **how,
    )


def _optimiser(player: Player, place: torch.device) -> torch.optim.Optimizer:
    own = [p for net in player.nets for p in net.parameters() if p.requires_grad]
    return torch.optim.Adam(own, player.lr, player.betas, fused=place.type == "cuda" or None)


def _turns(
    players: Sequence[Player],
    optimisers: Sequence[torch.optim.Optimizer],
    recipe: TrainingRecipe,
    noise: torch.Generator,
    *,
    half: bool,
) -> Step:
    """The steps of all players whose turn it is; who does not move is not differentiated."""
    schedule = pick("schedule", recipe.schedule, SCHEDULES)
    own: list[list[nn.Parameter]] = [
        optimiser.param_groups[0]["params"] for optimiser in optimisers
    ]

    def learn(wanted: Sequence[nn.Parameter]) -> None:
        for parameter in (p for mine in own for p in mine):
            parameter.requires_grad_(False)
        for parameter in wanted:
            parameter.requires_grad_(True)

    def take(number: int, share: float, x: Tensor, y: Tensor) -> Tensor:
        losses = []
        for player, mine, optimiser in zip(players, own, optimisers):
            if number % player.every:
                continue
            learn(mine)
            optimiser.param_groups[0]["lr"] = player.lr * schedule(share)
            with halved(x.device, wanted=half):
                loss = player.loss(x, y, noise)
            optimiser.zero_grad(set_to_none=True)
            # torch leaves Tensor.backward without types
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.detach())
        learn([p for mine in own for p in mine])
        return losses[0]

    return take
