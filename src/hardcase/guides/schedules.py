"""Which entry of a corpus is mutated next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Schedule = Callable[[Tensor, Tensor, Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""From sizes, earlier picks, cursors and energies of each seed's entries: an entry for each, and the new cursors."""


@dataclass(frozen=True, slots=True)
class Recent:
    """TensorFuzz's: evenly one of the last `last` entries or one drawn from all."""

    last: int = 5

    def __call__(
        self,
        size: Int[Tensor, " m"],
        picks: Int[Tensor, "m e"],
        cursor: Int[Tensor, " m"],
        energy: Float[Tensor, "m e"],
        rng: torch.Generator,
    ) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        tail = size.clamp_max(self.last)
        place = (_rand(size, rng) * (tail + 1)).long()
        anywhere = (_rand(size, rng) * size).long()
        return torch.where(place < tail, size - 1 - place, anywhere), cursor


@dataclass(frozen=True, slots=True)
class Fading:
    """DeepHunter's: entries take turns, each accepted with a probability that falls with how often it was picked.

    The paper's is ``1 - picks / gamma``, at least `least`; its code starts at 0.8, falls by a fifth and stays at 0.2
    (`first` = 0.8, `gamma` = 5, `least` = 0.2). `power`: chances also grow with what an entry could still change.
    """

    gamma: float = 20.0
    least: float = 0.5
    first: float = 1.0
    power: bool = False

    def __call__(
        self,
        size: Int[Tensor, " m"],
        picks: Int[Tensor, "m e"],
        cursor: Int[Tensor, " m"],
        energy: Float[Tensor, "m e"],
        rng: torch.Generator,
    ) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
        chance = (self.first - picks / self.gamma).clamp_min(self.least)
        if self.power:
            chance = chance * energy / energy.amax(1, keepdim=True).clamp_min(1e-9)
        turns = torch.arange(8 * picks.shape[1], device=size.device)
        entry = (cursor[:, None] + turns) % size.clamp_min(1)[:, None]
        drawn = torch.rand(entry.shape, generator=rng, device=rng.device).to(size.device)
        accepted = (
            (drawn < chance.gather(1, entry)).int().argmax(1, keepdim=True)
        )  # the first of the turns that is accepted
        chosen = entry.gather(1, accepted).squeeze(1)
        return chosen, (chosen + 1) % size.clamp_min(1)


def _rand(like: Int[Tensor, " m"], rng: torch.Generator) -> Float[Tensor, " m"]:
    return torch.rand(len(like), generator=rng, device=rng.device).to(like.device)
