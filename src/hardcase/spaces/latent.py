"""Latent spaces of VAEs and VQ-VAEs, and libraries of encoded training images."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag

from hardcase.errors import Problem
from hardcase.tensors import chunks, flat, from_bytes, pad_rows, tiled
from hardcase.types import Images, Seeds

# --- Codes of many images, encoded once into a memory-mapped file: partners to mix seeds with.


@dataclass(frozen=True)
class Library:
    """`codes` may be larger than memory; `take` copies only the rows asked for."""

    codes: Float[Tensor, "l *code"]
    label: Int[Tensor, " l"]

    def take(self, rows: Int[Tensor, " *shape"]) -> Tensor:
        picked = self.codes.index_select(0, rows.reshape(-1).to(self.codes.device)).to(rows.device)
        return picked.reshape(*rows.shape, *self.codes.shape[1:])

    def mean(self, rows: Int[Tensor, "n c"]) -> Float[Tensor, "n d"]:
        """The mean code of each line of rows."""
        return embedding_bag(rows.to(self.codes.device), flat(self.codes), mode="mean").to(
            rows.device
        )

    @cached_property
    def by_class(self) -> tuple[Int[Tensor, " o"], ...]:
        """For each class, the rows of all other classes, classes taking turns."""
        turns = torch.zeros_like(self.label)
        for label in set(self.label.tolist()):
            turns[self.label == label] = torch.arange(int((self.label == label).sum()))
        order = (turns * (int(self.label.max()) + 1) + self.label).argsort(stable=True)
        return tuple(order[self.label[order] != c] for c in range(int(self.label.max()) + 1))

    def __reduce__(self) -> tuple[object, ...]:
        return (Library, (torch.from_numpy(self.codes.cpu().numpy().copy()), self.label))


def collect(
    images: Images, encode: Callable[[Tensor], Tensor], *, device: torch.device, limit: int = 30_000
) -> Library:
    """Encode up to `limit` of `images` (classes balanced) into a temporary file that vanishes with the library; on a GPU with
    room for them, codes stay there."""
    images = images.sample(count=min(limit, len(images)), seed=0)
    if len(set(images.y.tolist())) < 2:
        raise Problem(
            f"{images.name} has images of one class only; interpolation needs partners of another class."
        )
    with torch.no_grad():
        first = encode(from_bytes(images.x[:16].to(device)))
        shape = (len(images), *first.shape[1:])
        codes = torch.empty(shape, device=device) if _roomy(shape, device) else _mapped(shape)
        for part in chunks(len(images), 256):
            codes[part] = encode(from_bytes(images.x[part].to(device))).to(codes.device)
    return Library(codes, images.y)


def _roomy(shape: tuple[int, ...], device: torch.device) -> bool:
    """Whether codes of this shape take no more than a quarter of what is free on a GPU."""
    return device.type == "cuda" and 4 * prod(shape) <= torch.cuda.mem_get_info(device)[0] // 4


def _mapped(shape: tuple[int, ...]) -> Tensor:
    count = prod(shape)
    handle, name = tempfile.mkstemp(prefix="hardcase-codes-")
    os.close(handle)
    codes = torch.from_file(name, shared=True, size=count, dtype=torch.float32).reshape(shape)
    Path(name).unlink()
    return codes


# --- The latent space of a variational auto-encoder: a code is the encoder's mean, moved.


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


# --- The code grid of a VQ-VAE: a code is the encoder's continuous output; decoding quantises it.


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
