"""DiffChaser's genetic search: tournaments, uniform crossover and small mutations, pixel by pixel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.types import Look, Seeds, State


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelGenetic:
    """A population per seed, all seeds in one batch; the best survives, every other place goes to a child.

    A child takes each number of its code from one of two parents, both winners of tournaments of `tournament`, with equal
    chance; then a share of `rate` of its numbers moves by up to `reach` in either direction. The first population are copies
    of the seed mutated at `first` instead. A seed retires after `generations`.
    """

    population: int = 50
    tournament: int = 4
    rate: float = 0.05
    first: float = 0.3
    reach: float = 32 / 255
    generations: int = 40

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        z = seeds.z.flatten(1)
        start = z[:, None].repeat(1, self.population, 1)
        return {
            "z": self._mutate(start, self.first, rng),
            "score": torch.full((len(z), self.population), -torch.inf, device=z.device),
            "generation": torch.zeros(1, dtype=torch.int64),
            "shape": torch.tensor(seeds.z.shape[1:]),
        }

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows = look.live.nonzero().squeeze(1)
        born = int(state["generation"]) == 0
        children = state["z"][rows] if born else self._breed(state, rows, rng)
        owner = rows.repeat_interleave(children.shape[1])
        feedback = look(children.reshape(-1, *state["shape"].tolist()), owner)
        z, score = feedback.z.reshape_as(children), feedback.score.reshape(len(rows), -1)
        if not born:
            z, score = self._survivor(state, rows, z, score)
        if int(state["generation"]) + 1 >= self.generations:
            look.retire(rows)
        return {
            **state,
            "z": state["z"].index_copy(0, rows, z),
            "score": state["score"].index_copy(0, rows, score),
            "generation": state["generation"] + 1,
        }

    def _breed(self, state: State, rows: Int[Tensor, " r"], rng: torch.Generator) -> Float[Tensor, "r c d"]:
        z, score = state["z"][rows], state["score"][rows]
        one, two = (_take(z, self._winners(score, rng)) for _ in range(2))
        left = torch.rand(one.shape, generator=rng, device=one.device) < 0.5
        return self._mutate(torch.where(left, one, two), self.rate, rng)

    def _winners(self, score: Float[Tensor, "r p"], rng: torch.Generator) -> Int[Tensor, "r c"]:
        """For every place but one, the best of a few individuals drawn at random; ties go to the first drawn."""
        shape = (len(score), self.population - 1, self.tournament)
        drawn = torch.randint(self.population, shape, generator=rng, device=score.device)
        best = score[:, None].expand(-1, shape[1], -1).gather(2, drawn).argmax(2, keepdim=True)
        return drawn.gather(2, best).squeeze(2)

    def _mutate(self, z: Float[Tensor, "r c d"], rate: float, rng: torch.Generator) -> Float[Tensor, "r c d"]:
        hit = torch.rand(z.shape, generator=rng, device=z.device) < rate
        move = (2 * torch.rand(z.shape, generator=rng, device=z.device) - 1) * self.reach
        return torch.where(hit, z + move, z)

    def _survivor(self, state: State, rows: Tensor, z: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
        """The best of the old population in front of the children."""
        best = state["score"][rows].argmax(1, keepdim=True)
        old = _take(state["z"][rows], best)
        return torch.cat([old, z], 1), torch.cat([state["score"][rows].gather(1, best), score], 1)


def _take(z: Float[Tensor, "r p d"], index: Int[Tensor, "r c"]) -> Float[Tensor, "r c d"]:
    return z.gather(1, index[..., None].expand(-1, -1, z.shape[2]))
