"""Searches that vary and keep the better: SINVAD's genetic algorithm and hill climbing in latent
codes, DiffChaser's genetic search in pixels, and illumination: after first failures, candidates
move toward the empty cells of a map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.guides.archive import CellGrid
from hardcase.randomness import Rng
from hardcase.registry import search
from hardcase.tensors import chunks, flat, per_row, to_grid, total
from hardcase.types import Evaluator, Feedback, Search, Seeds, Space, State, Targets


@search("genetic", needs="label", paper="Kang, Feldt and Yoo, SBST 2020")
@dataclass(frozen=True, slots=True, kw_only=True)
class Genetic:
    """Population per image: crossover, mutation where a code differs from its image, reset mask.

    SINVAD's genetic algorithm; all images are in the same batch. Each generation keeps the `elite`
    best and fills up with children of two of them: single-point crossover, normal mutation, then
    the reset. A seed's mutation size shrinks by `decay` while its best does not improve by more
    than `tolerance`, and returns to `mutation` when it does.

    Args:
        population: Codes of a generation, parents among them.
        elite: Parents that survive.
        spread: Deviation of the first population around the original's code.
        mutation: Mutation size of an image whose best improves.
        decay: What a stalled original's mutation size is multiplied by.
        smallest: A seed retires below this mutation size; 0: never for that reason.
        reset: Share of coordinates that go back to the original's.
        generations: The most generations.
        tolerance: What the best must gain to count as improved.
        mutate: Which coordinates mutate, by how they compare with the original's: the authors' code
            says those that differ, the text of Figure 3 those that are equal.
        scaled: Whether mutations are of the current size (code) or of deviation 1 (Figure 3).
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
    mutate: Literal["different", "equal"] = "different"
    scaled: bool = True

    def init(self, seeds: Seeds, rng: Rng) -> State:
        device = seeds.z.device
        n = len(seeds)
        return {
            "seed": seeds.z.flatten(1).clone(),
            "z": torch.zeros(n, self.elite, seeds.z.flatten(1).shape[1], device=device),
            "score": torch.full((n, self.elite), -torch.inf, device=device),
            "size": torch.full((n,), self.mutation, device=device),
            "best": torch.full((n,), -torch.inf, device=device),
            "generation": torch.zeros(1, dtype=torch.int64),
            "shape": torch.tensor(seeds.z.shape[1:]),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        first = int(state["generation"]) == 0
        breed = self._breed
        if first:
            breed = self._start
        children = breed(state, rows, rng)
        feedback = evaluate(
            children.reshape(-1, *state["shape"].tolist()),
            rows.repeat_interleave(children.shape[1]),
        )
        score = torch.cat([state["score"][rows], feedback.score.reshape(len(rows), -1)], 1)
        codes = torch.cat([state["z"][rows], feedback.z.reshape_as(children)], 1)
        # the best of parents and children; ties go to the older
        best = score.argsort(dim=1, descending=True, stable=True)[:, : self.elite]
        state = _put(state, rows, z=_gather(codes, best), score=score.gather(1, best))
        state["generation"] = state["generation"] + 1
        return self._cool(state, evaluate, rows, first=first)

    def _start(self, state: State, rows: Int[Tensor, " r"], rng: Rng) -> Float[Tensor, "r p d"]:
        seed = state["seed"][rows][:, None]
        return seed + self.spread * rng.normal(rows, (self.population, seed.shape[2]))

    def _breed(self, state: State, rows: Int[Tensor, " r"], rng: Rng) -> Float[Tensor, "r c d"]:
        elite = state["z"][rows]
        seed = state["seed"][rows][:, None]
        shape = (self.population - self.elite,)
        first, second = _pairs(rows, shape, self.elite, rng)
        cut = rng.integers(rows, elite.shape[2], shape)[..., None]
        left = torch.arange(elite.shape[2], device=elite.device) < cut
        child = torch.where(left, _gather(elite, first), _gather(elite, second))
        noise = rng.normal(rows, child.shape[1:])
        if self.scaled:
            noise = noise * state["size"][rows][:, None, None]
        hit = (child != seed) == (self.mutate == "different")
        child = torch.where(hit, child + noise, child)
        back = rng.uniform(rows, child.shape[1:]) < self.reset
        return torch.where(back, seed, child)

    def _cool(
        self, state: State, evaluate: Evaluator, rows: Int[Tensor, " r"], *, first: bool
    ) -> State:
        best = state["score"][rows, 0]
        stalled = ~(best - state["best"][rows] > self.tolerance)
        stalled &= not first
        size = torch.where(stalled, state["size"][rows] * self.decay, self.mutation)
        done = (size < self.smallest) | (int(state["generation"]) > self.generations)
        evaluate.retire(rows[done])
        return _put(state, rows, size=size, best=best)


def _put(state: State, rows: Int[Tensor, " r"], **values: Tensor) -> State:
    """A copy of the state with these rows of its tables replaced."""
    changed = {name: state[name].index_copy(0, rows, value) for name, value in values.items()}
    return {**state, **changed}


def _pairs(
    rows: Int[Tensor, " r"], shape: tuple[int], count: int, rng: Rng
) -> tuple[Int[Tensor, "r c"], Int[Tensor, "r c"]]:
    """Two distinct parents out of `count`, uniformly, for each child."""
    first = rng.integers(rows, count, shape)
    step = 1 + rng.integers(rows, count - 1, shape)
    return first, (first + step) % count


def _gather(z: Float[Tensor, "r p d"], index: Int[Tensor, "r c"]) -> Float[Tensor, "r c d"]:
    return z.gather(1, index[..., None].expand(-1, -1, z.shape[2]))


@search("pixel-genetic", needs="scores", paper="Xie et al., IJCAI 2019")
@dataclass(frozen=True, slots=True, kw_only=True)
class PixelGenetic:
    """Population per image: tournaments, uniform crossover and small mutations of pixels.

    DiffChaser's genetic search; all images are in the same batch. The best survives, every other
    place goes to a child that takes each number of its code from either of two tournament winners,
    with equal chance. The first population are copies of the image, mutated.

    Args:
        population: Individuals per seed.
        tournament: Individuals drawn for each place of a parent.
        rate: Share of the pixels that a mutation changes.
        first: Share of the pixels that differ in the first population.
        reach: Largest change of a pixel, in units of [0, 1].
        generations: Most generations per seed.
    """

    population: int = 50
    tournament: int = 4
    rate: float = 0.05
    first: float = 0.3
    reach: float = 32 / 255
    generations: int = 40

    def init(self, seeds: Seeds, rng: Rng) -> State:
        z = seeds.z.flatten(1)
        start = z[:, None].repeat(1, self.population, 1)
        return {
            "z": self._mutate(start, torch.arange(len(z), device=z.device), self.first, rng),
            "score": torch.full((len(z), self.population), -torch.inf, device=z.device),
            "generation": torch.zeros(1, dtype=torch.int64),
            "shape": torch.tensor(seeds.z.shape[1:]),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        born = int(state["generation"]) == 0
        children = state["z"][rows] if born else self._breed(state, rows, rng)
        owner = rows.repeat_interleave(children.shape[1])
        feedback = evaluate(children.reshape(-1, *state["shape"].tolist()), owner)
        z = feedback.z.reshape_as(children)
        score = feedback.score.reshape(len(rows), -1)
        if not born:  # the best of the old population stays in front of the children
            best = state["score"][rows].argmax(1, keepdim=True)
            z = torch.cat([_gather(state["z"][rows], best), z], 1)
            score = torch.cat([state["score"][rows].gather(1, best), score], 1)
        if int(state["generation"]) + 1 >= self.generations:
            evaluate.retire(rows)
        state = _put(state, rows, z=z, score=score)
        return {**state, "generation": state["generation"] + 1}

    def _breed(self, state: State, rows: Int[Tensor, " r"], rng: Rng) -> Float[Tensor, "r c d"]:
        z = state["z"][rows]
        score = state["score"][rows]
        first, second = (_gather(z, self._winners(score, rows, rng)) for _ in range(2))
        left = rng.uniform(rows, first.shape[1:]) < 0.5
        return self._mutate(torch.where(left, first, second), rows, self.rate, rng)

    def _winners(
        self, score: Float[Tensor, "r p"], rows: Int[Tensor, " r"], rng: Rng
    ) -> Int[Tensor, "r c"]:
        """For every child, the best of the drawn individuals; ties to the first."""
        shape = (self.population - 1, self.tournament)
        drawn = rng.integers(rows, self.population, shape)
        best = score[:, None].expand(-1, shape[0], -1).gather(2, drawn).argmax(2, keepdim=True)
        return drawn.gather(2, best).squeeze(2)

    def _mutate(
        self, z: Float[Tensor, "r c d"], rows: Int[Tensor, " r"], rate: float, rng: Rng
    ) -> Float[Tensor, "r c d"]:
        hit = rng.uniform(rows, z.shape[1:]) < rate
        move = (2 * rng.uniform(rows, z.shape[1:]) - 1) * self.reach
        return torch.where(hit, z + move, z)


@search("hill-climbing", needs="label", paper="Kang, Feldt and Yoo, SBST 2020")
@dataclass(frozen=True, slots=True, kw_only=True)
class HillClimbing:
    """Coordinates moved at random in turn; a move stays if the score rises.

    `passes` over all coordinates, all images side by side; a move is normal noise of the original's
    current `step_size`. After each pass ("accepted") the step size becomes the mean size of the
    accepted moves, but at least the share of accepted moves; where none was accepted it halves.

    Args:
        passes: Passes over all coordinates.
        step_size: First standard deviation of a move.
        adapt: How the move's size changes after a pass.
        start: Climb from the ``seed`` or from the standard normal ``prior``.
    """

    passes: int = 3
    step_size: float = 1.0
    adapt: Literal["accepted", "never"] = "accepted"
    start: Literal["seed", "prior"] = "seed"

    def init(self, seeds: Seeds, rng: Rng) -> State:
        z = flat(seeds.z)
        start = z.clone()
        if self.start == "prior":
            start = rng.normal(torch.arange(len(z), device=z.device), z.shape[1:])
        blank = z.new_zeros(len(z))
        return {
            "shape": torch.tensor(seeds.z.shape[1:], dtype=torch.int64),
            "z": start,
            "score": blank - torch.inf,
            "step_size": blank + self.step_size,
            "kept": blank.clone(),
            "moved": blank.clone(),
            "turn": torch.zeros(1, dtype=torch.int64),
        }

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        rows = evaluate.live.nonzero().squeeze(1)
        turn = int(state["turn"])
        width = state["z"].shape[1]
        z = state["z"][rows]
        move = rng.normal(rows) * state["step_size"][rows]
        if turn:
            place = torch.zeros(width, dtype=torch.bool, device=z.device)
            # One coordinate a turn, in order: that is the published hill climb, and why a pass
            # takes as many turns as a code has numbers. The first turn only scores the unchanged
            # code.
            place[(turn - 1) % width] = True
            z = torch.where(place, z + move[:, None], z)
        feedback = evaluate(z.reshape(-1, *state["shape"].tolist()), rows)
        better = feedback.score > state["score"][rows]
        won = rows[better]
        state = _put(state, won, z=flat(feedback.z)[better], score=feedback.score[better])
        size = move.abs()[better] * (turn > 0)
        state["kept"] = state["kept"].index_add(0, won, (size > 0).to(size.dtype))
        state["moved"] = state["moved"].index_add(0, won, size)
        if turn and turn % width == 0 and self.adapt == "accepted":
            state = self._adapted(state, width)
        if turn >= self.passes * width:
            evaluate.retire(rows)
        return {**state, "turn": state["turn"] + 1}

    def _adapted(self, state: State, width: int) -> State:
        moves = state["kept"]
        blank = torch.zeros_like(moves)
        typical = torch.maximum(state["moved"] / moves.clamp_min(1), moves / width)
        step_size = torch.where(moves > 0, typical, state["step_size"] / 2)
        return {**state, "step_size": step_size, "kept": blank, "moved": blank.clone()}


CONTEXT = "context/"
FIRST = "first/"
OCTAVES = 4.0
"""Factors of two over which the sizes of mutations are drawn."""


class _Beginning:
    """An evaluator that hands an image over to the map where the first search would retire it,
    where it fails if that is its end, or when its share of the queries or gradients is spent.
    """

    def __init__(self, evaluate: Evaluator, state: State, search: Illumination) -> None:
        self.evaluate = evaluate
        self.over = state["over"].clone()
        self.asked = state["asked"].clone()
        self.graded = state["graded"].clone()
        self.search = search

    @property
    def live(self) -> Bool[Tensor, " n"]:
        spent = (self.asked >= self.search.queries) | (self.graded >= self.search.gradients)
        return self.evaluate.live & ~self.over & ~spent

    def retire(self, rows: Int[Tensor, " r"]) -> None:
        self.over[rows] = True

    def surrogates(
        self, z: Float[Tensor, "r *code"], rows: Int[Tensor, " r"]
    ) -> tuple[Float[Tensor, "r s"], Float[Tensor, "r s d"]]:
        return self.evaluate.surrogates(z, rows)

    def choose(self, rows: Int[Tensor, " m"], following: Targets | None = None) -> Targets:
        return {}

    def __call__(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> Feedback:
        return self._counted(self.evaluate(z, rows, {**(targets or {}), "row": rows}), rows)

    def gradient(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets | None = None
    ) -> tuple[Feedback, Tensor]:
        feedback, gradient = self.evaluate.gradient(z, rows, {**(targets or {}), "row": rows})
        self.graded += torch.bincount(rows[feedback.evaluated], minlength=len(self.graded))
        return self._counted(feedback, rows), gradient

    def _counted(self, feedback: Feedback, rows: Int[Tensor, " m"]) -> Feedback:
        self.asked += torch.bincount(rows[feedback.evaluated], minlength=len(self.asked))
        if self.search.ends:
            self.over[rows[feedback.failed]] = True
        return feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class Illumination:
    """Mutants of the parents that a map chooses, of which those nearest to its target are
    evaluated.

    At first another search looks for a failure of each seed; everything it evaluates enters the map
    and may become a parent. Then, for each query, `drafts` mutants of a parent are decoded and
    measured, which needs no network; the mutant nearest to the cell that the map targets is
    evaluated. Needs the guide `hardcase.guides.archive.Archive`.

    Args:
        space: Where the codes live.
        cells: The map.
        first: The search that looks for first failures.
        queries: What it may ask for each seed.
        gradients: How many gradients it may ask for.
        ends: It ends for an image at its first failure.
        children: Candidates per image and step.
        drafts: Mutants that are measured for each of them.
        spread: Largest standard deviation of a mutation, in units of the code.
    """

    space: Space
    cells: CellGrid
    first: Search
    queries: int
    gradients: int
    ends: bool = False
    children: int = 4
    drafts: int = 8
    spread: float = 0.5

    def init(self, seeds: Seeds, rng: Rng) -> State:
        archive = {
            "z": seeds.z.clone(),
            "x": seeds.x.clone(),
            "y": seeds.y.clone(),
            "id": seeds.id.clone(),
            "asked": torch.zeros_like(seeds.y),
            "graded": torch.zeros_like(seeds.y),
            "over": torch.zeros_like(seeds.y, dtype=torch.bool),
            **{CONTEXT + name: value.clone() for name, value in seeds.context.items()},
        }
        inner = self.first.init(seeds, rng)
        return {**archive, **{FIRST + name: value for name, value in inner.items()}}

    def step(self, state: State, evaluate: Evaluator, rng: Rng) -> State:
        begin = _Beginning(evaluate, state, self)
        if bool(begin.live.any()):
            inner = _inside(state, FIRST)
            inner = self.first.step(inner, begin, rng)
            state = {**state, **{FIRST + name: value for name, value in inner.items()}}
        state = {**state, "over": begin.over, "asked": begin.asked, "graded": begin.graded}
        rows = (evaluate.live & ~begin.live).nonzero().squeeze(1)
        if len(rows):
            many = rows.repeat_interleave(self.children)
            evaluate(self._drafted(state, rows, evaluate.choose(rows), rng), many, {"row": many})
        return state

    def _drafted(
        self, state: State, rows: Int[Tensor, " r"], targets: Targets, rng: Rng
    ) -> Float[Tensor, "m *code"]:
        """For each image `children` mutants of its parent, the nearest to its target of
        `drafts`.
        """
        parent = targets.get("corpus/z", state["z"][rows])
        count = self.children * self.drafts
        noise = rng.normal(rows, (count, *parent.shape[1:])).flatten(0, 1)
        size = self.spread * 2 ** (-OCTAVES * rng.uniform(rows, (count,)).flatten())
        z = parent.repeat_interleave(count, 0) + per_row(size.to(noise), noise) * noise
        if "map/target" not in targets:
            return z.reshape(-1, self.drafts, *z.shape[1:])[:, 0]
        target = self.cells.scaled(targets["map/target"]).repeat_interleave(count, 0)
        gap = total((self._features(state, rows.repeat_interleave(count), z) - target).square())
        gap = torch.where(gap.isfinite(), gap, torch.inf).reshape(-1, self.drafts)
        best = gap.argmin(1) + torch.arange(len(gap), device=gap.device) * self.drafts
        return z[best]

    @torch.no_grad()
    def _features(
        self, state: State, rows: Int[Tensor, " m"], z: Float[Tensor, "m *code"]
    ) -> Float[Tensor, "m f"]:
        """Where drafts lie on the map, in cells."""
        seeds = Seeds(state["z"], state["x"], state["y"], state["id"], _inside(state, CONTEXT))
        parts = []
        for part in chunks(len(rows), 1024):
            origin = seeds.take(rows[part])
            x = self.space.decode(self.space.project(z[part], origin), origin)
            parts.append(self.cells.scaled(self.cells.measure(to_grid(x))))
        return torch.cat(parts)


def _inside(state: State, prefix: str) -> State:
    """What a state keeps under a prefix."""
    columns = {name: value for name, value in state.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in columns.items()}
