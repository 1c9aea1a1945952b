"""Illumination: after first failures, candidates move toward the empty cells of a map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.guides.archive import CellGrid
from hardcase.randomness import Rng
from hardcase.tensors import chunks, per_row, to_grid, total
from hardcase.types import Evaluator, Feedback, Search, Seeds, Space, State, Targets

CONTEXT = "context/"
FIRST = "first/"
OCTAVES = 4.0
"""Factors of two over which the sizes of mutations are drawn."""


class _Beginning:
    """An evaluator that hands a seed over to the map where the first search would retire it, where
    it fails if that is its end, or when its share of the queries or gradients is spent.
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
        feedback, slope = self.evaluate.gradient(z, rows, {**(targets or {}), "row": rows})
        self.graded += torch.bincount(rows[feedback.evaluated], minlength=len(self.graded))
        return self._counted(feedback, rows), slope

    def _counted(self, feedback: Feedback, rows: Int[Tensor, " m"]) -> Feedback:
        self.asked += torch.bincount(rows[feedback.evaluated], minlength=len(self.asked))
        if self.search.ends:
            self.over[rows[feedback.failed]] = True
        return feedback


@dataclass(frozen=True, slots=True, kw_only=True)
class Illumination:
    """Mutants of the parents that a map chooses, of which those nearest to its target are asked.

    At first another search looks for a failure of each seed; everything it evaluates enters the map
    and may become a parent. Then, for each question, `drafts` mutants of a parent are decoded and
    measured, which asks no network; the one nearest to the cell that the map targets is evaluated.
    Needs the guide `hardcase.guides.archive.Archive`.

    Args:
        space: Where the codes live.
        cells: The map.
        first: The search that looks for first failures.
        queries: What it may ask for each seed.
        gradients: How many gradients it may ask for.
        ends: It ends for a seed at its first failure.
        children: Candidates per seed and step.
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
        own = {
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
        return {**own, **{FIRST + name: value for name, value in inner.items()}}

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
        """For each seed `children` mutants of its parent, the nearest to its target of `drafts`."""
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
    kept = {name: value for name, value in state.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): value for name, value in kept.items()}
