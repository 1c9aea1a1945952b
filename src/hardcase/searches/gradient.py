"""Walks along the gradient of the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hardcase.searches import aims
from hardcase.tensors import flat, per_row
from hardcase.types import Look, Seeds, State

Direction = Callable[[Tensor], Tensor]
Shape = Callable[[Tensor, torch.Generator], Tensor]


def sign(slope: Tensor) -> Tensor:
    """Every coordinate moves by one step: the steepest direction in L∞."""
    return slope.sign()


def unit(slope: Tensor) -> Tensor:
    """A step of length one: the steepest direction in L2."""
    return slope / per_row(flat(slope).norm(dim=1).clamp_min(1e-12), slope)


def rms(slope: Tensor) -> Tensor:
    """Scaled by the root mean square of the row, as DeepXplore does: a typical coordinate moves by one step."""
    return slope / (per_row(flat(slope).square().mean(1).sqrt(), slope) + 1e-5)


def raw(slope: Tensor) -> Tensor:
    return slope


@dataclass(frozen=True, slots=True)
class Square:
    """One random square a step: it turns black if the move inside it is darker on the whole; else nothing moves."""

    size: int

    def __call__(self, move: Tensor, rng: torch.Generator) -> Tensor:
        inside = torch.ones(1, dtype=torch.bool, device=move.device)
        for axis in (2, 3):
            room = max(1, move.shape[axis] - self.size + 1)
            first = per_row(torch.randint(room, (len(move),), generator=rng, device=rng.device).to(move.device), move)
            place = torch.arange(move.shape[axis], device=move.device).reshape(-1, *[1] * (3 - axis))
            inside = inside & (place >= first) & (place < first + self.size)
        darker = per_row(flat(move * inside).sum(1) < 0, move)
        return -(inside & darker).to(move.dtype).expand_as(move)


def free(move: Tensor, rng: torch.Generator) -> Tensor:
    """Any move."""
    return move


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAscent:
    """From the seed (moved by uniform noise up to `jitter`), steps of `stride` along `direction` of the gradient.

    Each walk follows the aim that guides choose for it when it starts, and a new one every `renew` steps (0: never).
    `shape` is what is left of a move once a constraint has had its say.
    """

    stride: float
    direction: Direction = sign
    jitter: float = 0.0
    renew: int = 0
    shape: Shape = free

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        noise = torch.rand(seeds.z.shape, generator=rng, device=seeds.z.device) * 2 - 1
        return {"z": seeds.z + self.jitter * noise, "step": torch.zeros(1, dtype=torch.int64)}

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows, count = look.live.nonzero().squeeze(1), int(state["step"])
        if count == 0 or (self.renew and count % self.renew == 0):
            asked = look.choose(rows, aims.held(state, rows) if count else None)
            state = aims.keep(state, rows, asked, len(state["z"]))
        feedback, slope = look.gradient(state["z"][rows], rows, aims.held(state, rows))
        move = self.shape(self.direction(slope), rng)
        z = state["z"].index_copy(0, rows, feedback.z + self.stride * move)
        return {**state, "z": z, "step": state["step"] + 1}
