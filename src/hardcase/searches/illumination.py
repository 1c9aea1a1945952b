"""Illumination: candidates that move toward the cells of a map where nothing has failed yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.guides.archive import CellGrid
from hardcase.randomness import Rng
from hardcase.tensors import chunks, per_row, to_grid
from hardcase.types import Aim, Look, Seeds, Space, State

CONTEXT = "context/"
OCTAVES = 4.0
"""Factors of two over which the sizes of mutations are drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Illumination:
    """Mutants of the parents that a map chooses, of which those nearest to its target are asked.

    For each question `drafts` mutants are decoded and measured, which asks no network; the one
    nearest to the cell that the map aims at is looked at. Needs the guide
    `hardcase.guides.archive.Archive`; without an aim a seed's own code is the parent.

    Args:
        space: Where the codes live.
        cells: The map.
        children: Candidates per seed and step.
        drafts: Mutants that are measured for each of them.
        spread: Largest standard deviation of a mutation, in units of the code.
    """

    space: Space
    cells: CellGrid
    children: int = 4
    drafts: int = 8
    spread: float = 0.5

    def init(self, seeds: Seeds, rng: Rng) -> State:
        context = {CONTEXT + name: value.clone() for name, value in seeds.context.items()}
        return {
            "z": seeds.z.clone(),
            "x": seeds.x.clone(),
            "y": seeds.y.clone(),
            "id": seeds.id.clone(),
            "begun": torch.zeros(1, dtype=torch.bool),
            **context,
        }

    def step(self, state: State, look: Look, rng: Rng) -> State:
        rows = look.live.nonzero().squeeze(1)
        if not bool(state["begun"]):
            look(state["z"][rows], rows, {"row": rows})
            return {**state, "begun": ~state["begun"]}
        aim = look.choose(rows)
        many = rows.repeat_interleave(self.children)
        look(self._drafted(state, rows, aim, rng), many, {"row": many})
        return state

    def _drafted(
        self, state: State, rows: Int[Tensor, " r"], aim: Aim, rng: Rng
    ) -> Float[Tensor, "m *code"]:
        """For each seed `children` mutants of its parent, the nearest to its target of `drafts`."""
        parent = aim.get("corpus/z", state["z"][rows])
        count = self.children * self.drafts
        noise = rng.normal(rows, (count, *parent.shape[1:])).flatten(0, 1)
        size = self.spread * 2 ** (-OCTAVES * rng.uniform(rows, (count,)).flatten())
        z = parent.repeat_interleave(count, 0) + per_row(size.to(noise), noise) * noise
        if "map/target" not in aim:
            return z.reshape(-1, self.drafts, *z.shape[1:])[:, 0]
        target = self.cells.scaled(aim["map/target"]).repeat_interleave(count, 0)
        gap = (self._features(state, rows.repeat_interleave(count), z) - target).square().sum(1)
        gap = torch.where(gap.isfinite(), gap, torch.inf).reshape(-1, self.drafts)
        best = gap.argmin(1) + torch.arange(len(gap), device=gap.device) * self.drafts
        return z[best]

    @torch.no_grad()
    def _features(
        self, state: State, rows: Int[Tensor, " m"], z: Float[Tensor, "m *code"]
    ) -> Float[Tensor, "m f"]:
        """Where drafts lie on the map, in cells."""
        context = {
            name.removeprefix(CONTEXT): value
            for name, value in state.items()
            if name.startswith(CONTEXT)
        }
        seeds = Seeds(state["z"], state["x"], state["y"], state["id"], context)
        parts = []
        for part in chunks(len(rows), 1024):
            origin = seeds.take(rows[part])
            x = self.space.decode(self.space.project(z[part], origin), origin)
            parts.append(self.cells.scaled(self.cells.measure(to_grid(x))))
        return torch.cat(parts)
