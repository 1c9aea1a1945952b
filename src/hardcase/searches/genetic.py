"""Genetic searches: SINVAD's in latent codes, DiffChaser's in pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.types import Look, Seeds, State

# --- SINVAD's genetic algorithm: crossover, mutation where a code differs from its seed, and a mask that resets the rest.


@dataclass(frozen=True, slots=True, kw_only=True)
class Genetic:
    """A population per seed, all seeds in one batch.

    Each generation keeps the `elite` best and fills up with children of two parents drawn from them: single-point
    crossover, normal mutation of the seed's current size on coordinates that differ from the seed's code, then every
    coordinate is reset to the seed's with probability `reset`. A seed's mutation size shrinks by `decay` while its best
    does not improve by more than `tolerance`, returns to `mutation` when it does, and the seed retires below `smallest` or
    after `generations`.
    """

    population: int = 50
    elite: int = 20
    spread: float = 0.7
    mutation: float = 0.1
    decay: float = 0.7
    smallest: float = 1e-3
    reset: float = 0.5
    generations: int = 500
    tolerance: float = 0.0

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        device, n = seeds.z.device, len(seeds)
        return {
            "seed": seeds.z.flatten(1).clone(),
            "z": torch.zeros(n, self.elite, seeds.z.flatten(1).shape[1], device=device),
            "score": torch.full((n, self.elite), -torch.inf, device=device),
            "size": torch.full((n,), self.mutation, device=device),
            "best": torch.full((n,), -torch.inf, device=device),
            "generation": torch.zeros(1, dtype=torch.int64),
            "shape": torch.tensor(seeds.z.shape[1:]),
        }

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows = look.live.nonzero().squeeze(1)
        first = int(state["generation"]) == 0
        children = self._start(state, rows, rng) if first else self._breed(state, rows, rng)
        feedback = look(
            children.reshape(-1, *state["shape"].tolist()),
            rows.repeat_interleave(children.shape[1]),
        )
        shaped = feedback.score.reshape(len(rows), -1)
        z, score = self._select(state, rows, feedback.z.reshape_as(children), shaped)
        state = {
            **state,
            "z": state["z"].index_copy(0, rows, z),
            "score": state["score"].index_copy(0, rows, score),
        }
        return self._cool({**state, "generation": state["generation"] + 1}, look, rows, first=first)

    def _start(
        self, state: State, rows: Int[Tensor, " r"], rng: torch.Generator
    ) -> Float[Tensor, "r p d"]:
        seed = state["seed"][rows][:, None]
        return seed + self.spread * torch.randn(
            len(rows), self.population, seed.shape[2], generator=rng, device=seed.device
        )

    def _breed(
        self, state: State, rows: Int[Tensor, " r"], rng: torch.Generator
    ) -> Float[Tensor, "r c d"]:
        elite, seed = state["z"][rows], state["seed"][rows][:, None]
        shape = (len(rows), self.population - self.elite)
        one, two = _pairs(shape, self.elite, rng)
        cut = torch.randint(elite.shape[2], shape, generator=rng, device=elite.device)[..., None]
        left = torch.arange(elite.shape[2], device=elite.device) < cut
        child = torch.where(left, _gather(elite, one), _gather(elite, two))
        noise = (
            torch.randn(child.shape, generator=rng, device=child.device)
            * state["size"][rows][:, None, None]
        )
        child = torch.where(child != seed, child + noise, child)
        back = torch.rand(child.shape, generator=rng, device=child.device) < self.reset
        return torch.where(back, seed, child)

    def _select(
        self, state: State, rows: Tensor, children: Tensor, score: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of parents and children; ties go to the older."""
        score = torch.cat([state["score"][rows], score], 1)
        best = score.argsort(dim=1, descending=True, stable=True)[:, : self.elite]
        return _gather(torch.cat([state["z"][rows], children], 1), best), score.gather(1, best)

    def _cool(self, state: State, look: Look, rows: Int[Tensor, " r"], *, first: bool) -> State:
        best = state["score"][rows, 0]
        stalled = ~(best - state["best"][rows] > self.tolerance)
        size = torch.where(stalled, state["size"][rows] * self.decay, self.mutation)
        size = torch.full_like(size, self.mutation) if first else size
        done = (size < self.smallest) | (int(state["generation"]) > self.generations)
        look.retire(rows[done])
        return {
            **state,
            "size": state["size"].index_copy(0, rows, size),
            "best": state["best"].index_copy(0, rows, best),
        }


def _pairs(shape: tuple[int, int], count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two distinct parents out of `count`, uniformly, for each child."""
    one = torch.randint(count, shape, generator=rng, device=rng.device)
    step = torch.randint(1, count, shape, generator=rng, device=rng.device)
    return one, (one + step) % count


def _gather(z: Float[Tensor, "r p d"], index: Int[Tensor, "r c"]) -> Float[Tensor, "r c d"]:
    return z.gather(1, index[..., None].expand(-1, -1, z.shape[2]))


# --- DiffChaser's genetic search: tournaments, uniform crossover and small mutations, pixel by pixel.


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

    def _breed(
        self, state: State, rows: Int[Tensor, " r"], rng: torch.Generator
    ) -> Float[Tensor, "r c d"]:
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

    def _mutate(
        self, z: Float[Tensor, "r c d"], rate: float, rng: torch.Generator
    ) -> Float[Tensor, "r c d"]:
        hit = torch.rand(z.shape, generator=rng, device=z.device) < rate
        move = (2 * torch.rand(z.shape, generator=rng, device=z.device) - 1) * self.reach
        return torch.where(hit, z + move, z)

    def _survivor(
        self, state: State, rows: Tensor, z: Tensor, score: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of the old population in front of the children."""
        best = state["score"][rows].argmax(1, keepdim=True)
        old = _take(state["z"][rows], best)
        return torch.cat([old, z], 1), torch.cat([state["score"][rows].gather(1, best), score], 1)


def _take(z: Float[Tensor, "r p d"], index: Int[Tensor, "r c"]) -> Float[Tensor, "r c d"]:
    return z.gather(1, index[..., None].expand(-1, -1, z.shape[2]))
