"""Fuzzing: every seed's corpus gives parents, which are mutated and looked at; what guides find new joins the corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.searches.mutations import AFFINE, LIGHT, NOISE, Operator, mutate
from hardcase.tensors import flat
from hardcase.types import Look, Seeds, State

ENTRY = "entry/"
"""Aims by which a search tells the corpus what belongs to a candidate, and gets it back with a parent."""


@runtime_checkable
class Mutator(Protocol):
    """Makes a child of each parent. `columns` are what it wants to know of a parent, row by row."""

    def start(self, z: Tensor) -> State: ...

    def __call__(
        self, z: Tensor, columns: Mapping[str, Tensor], rng: torch.Generator
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]: ...


@dataclass(frozen=True, slots=True)
class WhiteNoise:
    """Normal noise of size `sigma` on every coordinate (TensorFuzz)."""

    sigma: float

    def start(self, z: Tensor) -> State:
        return {}

    def __call__(
        self, z: Tensor, columns: Mapping[str, Tensor], rng: torch.Generator
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]:
        noise = torch.randn(z.shape, generator=rng, device=rng.device).to(z.device)
        return z + self.sigma * noise, {}, torch.ones(len(z), dtype=torch.bool, device=z.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metamorphic:
    """DeepHunter's mutation: one affine change at most, and pixel changes as long as they stay small.

    A pixel change is small if fewer than `alpha` of the values differ from the reference picture, or none by `beta` of the
    range. An affine change is done to the reference too and is always accepted, once; what had changed before it is added
    (count) or compared (size) from then on. A child that is refused `tries` times is given up.
    """

    affine: tuple[Operator, ...] = AFFINE
    pixel: tuple[Operator, ...] = (*LIGHT, NOISE)
    alpha: float = 0.02
    beta: float = 0.20
    tries: int = 50

    def start(self, z: Tensor) -> State:
        none = torch.zeros(len(z), device=z.device)
        return {"reference": z.clone(), "turned": none.bool(), "changed": none, "largest": none.clone()}

    def __call__(
        self, z: Tensor, columns: Mapping[str, Tensor], rng: torch.Generator
    ) -> tuple[Tensor, State, Bool[Tensor, " m"]]:
        child, made = z.clone(), {name: value.clone() for name, value in columns.items()}
        open_ = torch.ones(len(z), dtype=torch.bool, device=z.device)
        for _ in range(self.tries):
            rows = open_.nonzero().squeeze(1)
            if not len(rows):
                break
            before = {name: value[rows] for name, value in columns.items()}
            new, after, good = self._try(z[rows], before, rng)
            kept = rows[good]
            child[kept], open_[kept] = new[good], False
            for name, value in after.items():
                made[name][kept] = value[good]
        return child, made, ~open_

    def _try(self, z: Tensor, columns: State, rng: torch.Generator) -> tuple[Tensor, State, Bool[Tensor, " m"]]:
        """One change of each picture, and whether it is accepted."""
        operators = (*self.affine, *self.pixel)
        first = columns["turned"].long() * len(self.affine)
        drawn = torch.rand(len(z), generator=rng, device=rng.device).to(z.device)
        chosen = first + (drawn * (len(operators) - first)).long()
        level = self._levels(operators, chosen, rng)
        turning = chosen < len(self.affine)
        new = mutate(z, chosen, level, operators, rng)
        old_reference = columns["reference"]
        reference = old_reference.clone()
        reference[turning] = mutate(old_reference[turning], chosen[turning], level[turning], operators, rng)
        changed, largest = _differences(old_reference, torch.where(_wide(turning, z), z, new))
        good = turning | self._small(changed + columns["changed"], torch.maximum(largest, columns["largest"]), z)
        after = {
            "reference": reference,
            "turned": columns["turned"] | turning,
            "changed": torch.where(turning, changed, columns["changed"]),
            "largest": torch.where(turning, largest, columns["largest"]),
        }
        return new, after, good

    def _levels(self, operators: tuple[Operator, ...], chosen: Int[Tensor, " m"], rng: torch.Generator) -> Tensor:
        drawn = torch.stack([one.draw(len(chosen), rng) for one in operators]).to(chosen.device)
        return drawn.gather(0, chosen[None]).squeeze(0)

    def _small(self, changed: Tensor, largest: Tensor, like: Tensor) -> Bool[Tensor, " m"]:
        values = like[0].numel() if len(like) else 0
        return (changed < int(self.alpha * values)) | (largest < int(self.beta * 255))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuzzing:
    """At every step `children` mutants of a parent of each live seed. Guides choose the parents (``corpus/z``)."""

    mutator: Mutator
    children: int = 20

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        return {"seed": seeds.z.clone(), "begun": torch.zeros(1, dtype=torch.bool)}

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows = look.live.nonzero().squeeze(1)
        if not bool(state["begun"]):
            seed = state["seed"][rows]
            look(seed, rows, {**_entries(self.mutator.start(seed)), "row": rows})
            return {**state, "begun": ~state["begun"]}
        parents = {name: value.repeat_interleave(self.children, 0) for name, value in look.choose(rows).items()}
        columns = {name.removeprefix(ENTRY): value for name, value in parents.items() if name.startswith(ENTRY)}
        z, made, good = self.mutator(parents["corpus/z"], columns, rng)
        many = rows.repeat_interleave(self.children)
        look(z[good], many[good], {**{name: value[good] for name, value in _entries(made).items()}, "row": many[good]})
        if not bool(good.any()):
            look.retire(rows)
        return state


def _entries(columns: Mapping[str, Tensor]) -> State:
    return {ENTRY + name: value for name, value in columns.items()}


def _differences(a: Float[Tensor, "m c h w"], b: Float[Tensor, "m c h w"]) -> tuple[Tensor, Tensor]:
    """How many values differ, and by how many grey levels at most."""
    levels = flat((a * 255).round() - (b * 255).round()).abs()
    return (levels > 0).sum(1).float(), levels.amax(1)


def _wide(mask: Bool[Tensor, " m"], like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.ndim - 1))
