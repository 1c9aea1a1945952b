"""Walks along the gradient of the score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hardcase.tensors import flat, per_row
from hardcase.types import Look, Seeds, State

Direction = Callable[[Tensor], Tensor]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientAscent:
    """From the seed (moved by uniform noise up to `jitter`), steps of `stride` along `direction` of the gradient."""

    stride: float
    direction: Direction = sign
    jitter: float = 0.0

    def init(self, seeds: Seeds, rng: torch.Generator) -> State:
        noise = torch.rand(seeds.z.shape, generator=rng, device=seeds.z.device) * 2 - 1
        return {"z": seeds.z + self.jitter * noise}

    def step(self, state: State, look: Look, rng: torch.Generator) -> State:
        rows = look.live.nonzero().squeeze(1)
        feedback, slope = look.gradient(state["z"][rows], rows)
        return {"z": state["z"].index_copy(0, rows, feedback.z + self.stride * self.direction(slope))}
