"""Pixel space: the code is the image itself, kept inside a norm ball around its seed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.tensors import flat, per_row
from hardcase.types import Seeds


@dataclass(frozen=True, slots=True)
class Linf:
    """No pixel moves by more than `radius`, rounded down to whole grey levels so that the 8-bit image obeys it too."""

    radius: float

    def pull(self, z: Tensor, centre: Tensor) -> Tensor:
        radius = math.floor(self.radius * 255 + 1e-6) / 255
        return torch.minimum(torch.maximum(z, centre - radius), centre + radius)

    def size(self, change: Tensor) -> Float[Tensor, " m"]:
        return flat(change).abs().amax(1)


@dataclass(frozen=True, slots=True)
class L2:
    """The Euclidean length of the change stays within `radius` (rounding to 8 bits may add at most half a level a pixel)."""

    radius: float

    def pull(self, z: Tensor, centre: Tensor) -> Tensor:
        if math.isinf(self.radius):
            return z
        change = z - centre
        length = per_row(self.size(change), change)
        return torch.where(length > self.radius, centre + change * (self.radius / length.clamp_min(1e-12)), z)

    def size(self, change: Tensor) -> Float[Tensor, " m"]:
        return flat(change).square().sum(1).sqrt()


@dataclass(frozen=True, slots=True)
class Pixels:
    """Images in [0, 1] within `ball` around the seed."""

    ball: Linf | L2 = L2(math.inf)
    name: str = "pixels"
    keeps_code: bool = False

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return x.clone(), {}

    def decode(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return z

    def project(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return self.ball.pull(z, origin.z).clamp(0, 1)

    def distance(self, z: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, " m"]:
        return self.ball.size(z - origin.z)
