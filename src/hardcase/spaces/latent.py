"""Latent spaces of VAEs and VQ-VAEs, and libraries of encoded training images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from hardcase.errors import HardcaseError
from hardcase.randomness import Rng
from hardcase.registry import space
from hardcase.tensors import chunks, flat, from_bytes, tiled, to_grid, total
from hardcase.types import Encoded, Images, Probe, Seeds, Space

# Codes of many images, encoded once: partners to mix seeds with.


@dataclass(frozen=True)
class Library:
    """Codes of labelled images.

    Args:
        codes: A code per row.
        label: The label of each row.
    """

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


MOST = 2**26
"""Numbers of all codes together, at most: 5,461 of CIFAR-10's default generator."""
FEWEST = 1000
"""Codes that are stored whatever their size."""


def collect(
    images: Images, encode: Callable[[Tensor], Tensor], *, device: torch.device, limit: int = 30_000
) -> Library:
    """Encode up to `limit` of `images`, classes balanced.

    Args:
        images: Labelled images.
        encode: Maps images in [0, 1] to codes.
        device: Where images are encoded.
        limit: Most images.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images
        >>> cpu = torch.device("cpu")
        >>> flat = hc.spaces.collect(toy_images(8), lambda x: x.flatten(1), device=cpu)
        >>> flat.codes.shape
        torch.Size([8, 64])
    """
    with torch.no_grad():
        first = encode(from_bytes(images.x[:16].to(device)))
    room = max(FEWEST, MOST // max(first[0].numel(), 1))
    images = images.sample(count=min(limit, room, len(images)), seed=0)
    if len(set(images.y.tolist())) < 2:
        raise HardcaseError(
            f"{images.name} has images of one class only; interpolation needs partners of another"
            " class."
        )
    with torch.no_grad():
        codes = torch.empty(len(images), *first.shape[1:], device=device)
        for part in chunks(len(images), 256):
            codes[part] = encode(from_bytes(images.x[part].to(device)))
    return Library(codes, images.y)


def partners(
    space: Space, images: Images, *, device: torch.device | str, limit: int = 30_000
) -> Library:
    """Codes of up to `limit` training images in `space`, to walk toward or to mix with.

    Args:
        space: The space whose codes are wanted.
        images: Training images.
        device: Where images are encoded.
        limit: Most images, classes balanced.
    """

    def encode(x: Tensor) -> Tensor:
        unknown = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        return space.encode(x, unknown, Rng.numbered(0, "partners", len(x), device=x.device))[0]

    return collect(images, encode, device=torch.device(device), limit=limit)


# The latent space of a variational auto-encoder: a code is the encoder's mean, moved.


@runtime_checkable
class Autoencoder(Protocol):
    """A generator with mean and log variance of an image's code, and an image for a code."""

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    def decode(self, z: Tensor) -> Tensor: ...


class _FreeCode:
    """A code that may go anywhere, at an L1 distance from its seed's."""

    __slots__ = ()
    keeps_code: ClassVar[bool] = True

    def project(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m *code"]:
        return z

    def distance(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, " m"]:
        return total(flat(z - origin.z).abs())


@space(
    "vae",
    needs="a VAE trained on the same data",
    paper="Kang, Feldt and Yoo, SBST 2020",
)
@dataclass(frozen=True, slots=True)
class Latent(_FreeCode):
    """Mean code of a variational autoencoder, with L1 distances as SINVAD measures them.

    Args:
        vae: A network with ``encode`` to (mean, log variance) and ``decode``, e.g.
            `hc.generators.Vae`.
    """

    vae: Autoencoder
    name: ClassVar[str] = "vae"

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        return tiled(lambda images: self.vae.encode(images)[0], x), {}

    def decode(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return tiled(_decoder(self.vae, z), z)


@runtime_checkable
class Conditional(Protocol):
    """A generator that encodes and decodes with the label."""

    def encode(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]: ...

    def decode(self, z: Tensor, y: Tensor) -> Tensor: ...


@space(
    "conditional-vae",
    needs="a conditional VAE trained on the same data",
    paper="Sohn, Lee and Yan, NeurIPS 2015",
)
@dataclass(frozen=True, slots=True)
class Labelled(_FreeCode):
    """Mean code of a conditional VAE, always decoded as the original's class.

    What fails here should still be of that class.

    Args:
        vae: A network whose ``encode`` and ``decode`` take labels.
    """

    vae: Conditional
    name: ClassVar[str] = "conditional vae"

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        return tiled(lambda images, labels: self.vae.encode(images, labels)[0], x, y), {}

    def decode(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return tiled(self.vae.decode, z, origin.y)


def latent(vae: Any) -> Latent | Labelled:
    """The space of this VAE, by whether it takes labels.

    Args:
        vae: A trained autoencoder, with or without labels.
    """
    if getattr(vae, "labels", 0):
        return Labelled(vae)
    return Latent(vae)


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """Another space; what a wrapper changes about it, it defines anew."""

    space: Space

    @property
    def name(self) -> str:
        return self.space.name

    @property
    def keeps_code(self) -> bool:
        return self.space.keeps_code

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        return self.space.encode(x, y, rng)

    def decode(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return self.space.decode(z, origin)

    def project(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m *code"]:
        return self.space.project(z, origin)

    def distance(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, " m"]:
        return self.space.distance(z, origin)


@space(
    "re-encoded",
    needs="another space",
    paper="Kang, Feldt and Yoo, TOSEM 2023",
)
@dataclass(frozen=True, slots=True)
class ReEncoded(_Wrapped):
    """Another space whose distances are between images' codes, E(D(z)) and E(seed).

    This is SINVAD's Equation 1 as printed. What a search holds, and where it may go, are the other
    space's.

    Args:
        space: The other space.
    """

    def distance(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, " m"]:
        image = to_grid(self.space.decode(z, origin))
        return total(flat(self._code(image, origin) - origin.z).abs())

    def seen(self, probe: Probe) -> Float[Tensor, "m *code"]:
        """The codes of images that are decoded already."""
        return self._code(probe.x, probe.origin)

    def _code(self, x: Float[Tensor, "m c h w"], origin: Seeds) -> Float[Tensor, "m *code"]:
        rng = Rng.numbered(0, "re-encoding", len(x), device=x.device)
        return self.space.encode(x, origin.y, rng)[0]


@space("with-residual", needs="another latent space", paper="ours")
@dataclass(frozen=True, slots=True)
class WithResidual(_Wrapped):
    """Another space plus what its reconstruction of the original lacks: D(z) + x - D(E(x)).

    The seed's code decodes to the seed, to the bit once rounded: a change is then what the code
    changed, not the blur of the generator.

    Args:
        space: A space whose reconstructions are not exact.
    """

    @property
    def name(self) -> str:
        return f"{self.space.name} + residual"

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        z, context = self.space.encode(x, y, rng)
        here = Seeds(z, x, y, torch.arange(len(y), device=y.device), context)
        return z, {**context, "residual": x - self.space.decode(z, here)}

    def decode(self, z: Float[Tensor, "m *code"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return self.space.decode(z, origin) + origin.context["residual"]


# The code grid of a VQ-VAE: a code is the encoder's continuous output; decoding quantises it.


@runtime_checkable
class Quantiser(Protocol):
    """A generator with a continuous code for an image, and an image for a quantised code."""

    def encode(self, x: Tensor) -> Tensor: ...

    def decode(self, z: Tensor) -> Tensor: ...


@space(
    "vqvae",
    needs="a VQ-VAE trained on the same data",
    paper="van den Oord et al., NeurIPS 2017; Duan, Dwyer and Yang, 2025 (ARGUS)",
)
@dataclass(frozen=True, slots=True)
class Grid(_FreeCode):
    """Continuous code grid of a VQ-VAE, quantised when decoded, with L2 distances.

    Args:
        vqvae: A network with ``encode`` to a grid and ``decode``, e.g. `hc.generators.VqVae`.
    """

    vqvae: Quantiser
    name: ClassVar[str] = "vqvae"

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        return tiled(self.vqvae.encode, x), {}

    def decode(self, z: Float[Tensor, "m d i j"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        return tiled(_decoder(self.vqvae, z), z)

    def distance(self, z: Float[Tensor, "m d i j"], origin: Seeds) -> Float[Tensor, " m"]:
        return total(flat(z - origin.z).square()).sqrt()


def _decoder(net: Autoencoder | Quantiser, z: Tensor) -> Callable[[Tensor], Tensor]:
    """What decodes a tile of codes; on a device a small decoder is replayed as a graph."""
    if isinstance(net, nn.Module) and z.is_cuda:
        from hardcase.graphs import replayed

        return partial(replayed, net, net.decode)
    return net.decode


def example_decoder(
    space: Space, images: Float[Tensor, "n c h w"]
) -> tuple[Callable[[Tensor], Tensor], Tensor] | None:
    """A latent space's decoder with the codes of `images`, to test it with; None if the space has
    none."""
    space = getattr(space, "space", space)  # inside what only adds to it
    net: Any = getattr(space, "vae", None) or getattr(space, "vqvae", None)
    if net is None or isinstance(space, Labelled):
        return None
    label = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    rng = Rng.numbered(0, "tile", len(images), device=images.device)
    return net.decode, space.encode(images, label, rng)[0].detach()
