"""The latent space of a variational auto-encoder: a code is the encoder's mean, moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.tensors import flat, pad_rows, tiled
from hardcase.types import Seeds


@runtime_checkable
class Autoencoder(Protocol):
    """What this space asks of a generator: mean and log-variance of an image's code, and an image for a code."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def decode(self, z: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Latent:
    """Codes of `vae`. Distances are L1, as SINVAD measures them."""

    vae: Autoencoder
    name: str = "vae"
    keeps_code: bool = True

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return tiled(lambda images: self.vae.encode(images)[0], x), {}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return tiled(self.vae.decode, z)

    def project(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m d"]:
        return z

    def distance(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, " m"]:
        return flat(z - origin.z).abs().sum(1)


@runtime_checkable
class Conditional(Protocol):
    """A generator that is told the label of what it encodes and decodes."""

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]: ...

    def decode(self, z: Tensor, y: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Labelled:
    """Codes of a conditional `vae`, always decoded as the seed's own class: what fails here should still be that class."""

    vae: Conditional
    name: str = "conditional vae"
    keeps_code: bool = True

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self.vae.encode(pad_rows(x), pad_rows(y))[0][: len(x)], {}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return self.vae.decode(pad_rows(z), pad_rows(origin.y))[: len(z)]

    def project(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m d"]:
        return z

    def distance(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, " m"]:
        return flat(z - origin.z).abs().sum(1)


def latent(vae: Any) -> Latent | Labelled:
    """The space of this VAE, by whether it is told labels."""
    return Labelled(vae) if getattr(vae, "labels", 0) else Latent(vae)
