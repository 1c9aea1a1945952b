"""The code grid of a VQ-VAE: a code is the encoder's continuous output; decoding quantises it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.tensors import flat, tiled
from hardcase.types import Seeds


@runtime_checkable
class Quantiser(Protocol):
    """What this space asks of a generator: a continuous code for an image, and the picture of a code once quantised."""

    def encode(self, x: Tensor) -> Tensor: ...

    def decode(self, z: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Grid:
    """Continuous codes of `vqvae`. Distances are Euclidean."""

    vqvae: Quantiser
    name: str = "vqvae"
    keeps_code: bool = True

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return tiled(self.vqvae.encode, x), {}

    def decode(self, z: Float[Tensor, "m d i j"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return tiled(self.vqvae.decode, z)

    def project(self, z: Float[Tensor, "m d i j"], origin: Seeds) -> Float[Tensor, "m d i j"]:
        return z

    def distance(self, z: Float[Tensor, "m d i j"], origin: Seeds) -> Float[Tensor, " m"]:
        return flat(z - origin.z).square().sum(1).sqrt()
