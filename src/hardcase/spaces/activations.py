"""Activations of a conditional generator: codes are added to its early stages' outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hardcase.errors import Problem
from hardcase.randomness import Rng, stream
from hardcase.registry import space
from hardcase.tensors import flat, per_row, tiled, total
from hardcase.types import Seeds

__all__ = ["Activations", "InStages", "Place", "Staged", "early_places"]

Meet = Callable[[int, Tensor], Tensor]
"""What is made of the features at a place: they come in, and the generator goes on with what comes
out.
"""


@runtime_checkable
class Staged(Protocol):
    """A generator of an image for a latent code and a class, with a halt at each of its places.

    Place 0 is the latent code itself. `early` are the places that are perturbed unless others are
    named.
    """

    @property
    def latent(self) -> int: ...

    @property
    def early(self) -> tuple[int, ...]: ...

    def walk(self, z: Tensor, y: Tensor, meet: Meet) -> Tensor: ...


@runtime_checkable
class InStages(Protocol):
    """A generator whose walk is nothing but its stages one after the other, each told the class."""

    @property
    def stages(self) -> Iterable[Callable[[Tensor, Tensor], Tensor]]: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Place `number` of the generator; `spread` is the typical size of its features."""

    number: int
    shape: tuple[int, ...]
    spread: float

    @property
    def width(self) -> int:
        return prod(self.shape)


@space(
    "activations",
    needs="a conditional GAN or VAE trained on the same data, or a generator of one's own",
    paper="Dunn, Pouget, Melham and Kroening, ISSTA 2021",
)
@dataclass(frozen=True, slots=True)
class Activations:
    """Perturbations of a conditional generator's early activations, in units of their spread.

    One flat code of all perturbations, each in units of its place's spread, so that a step means as
    much everywhere.

    `radius` bounds the code's length (infinite: it is only recorded, as Dunn et al. do). Seeds must
    come from the generator: their latent codes travel as ``context["latent"]``. With `sparing` the
    generator's features are computed a second time for the gradient instead of being held: less
    memory, more time, the same bytes.

    Args:
        generator: A conditional generator whose forward pass can be met at its places.
        places: The activations to perturb, with their spread.
        radius: Largest length of the code.
        classes: Number of classes that the generator knows.
        sparing: Spend time to save memory in the generator.
        name: Name in run folders and reports.
        keeps_code: Whether findings store their code.
    """

    generator: Staged
    places: tuple[Place, ...]
    radius: float = torch.inf
    classes: int = 10
    sparing: bool = False
    name: str = "activations"
    keeps_code: bool = True

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        width = sum(place.width for place in self.places)
        return torch.zeros(len(x), width, device=x.device), {"class": y.clone()}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        if "latent" not in origin.context:
            raise Problem(
                "these seeds were not made by the generator, so there is no latent code to start"
                " from.",
                fix=(
                    "seeds that the generator made: hardcase run --method feature-perturbation"
                    " makes them itself"
                ),
            )
        walk = self.generator.walk
        if self.sparing and z.requires_grad:
            walk = partial(_sparing_walk, self.generator)

        def generated(code: Tensor, latent: Tensor, label: Tensor) -> Tensor:
            moved = dict(zip((place.number for place in self.places), self._pieces(code)))
            image: Tensor = walk(
                latent, label, lambda number, h: h + moved[number] if number in moved else h
            )
            return image

        return tiled(generated, z, origin.context["latent"], origin.context["class"])

    def project(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m d"]:
        shrink = (self.radius / self.distance(z, origin).clamp_min(1e-12)).clamp_max(1)
        return z * per_row(shrink, z)

    def distance(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, " m"]:
        return total(z.square()).sqrt()

    def _pieces(self, z: Float[Tensor, "m d"]) -> list[Tensor]:
        parts = torch.split(z, [place.width for place in self.places], dim=1)
        return [
            place.spread * part.reshape(len(z), *place.shape)
            for place, part in zip(self.places, parts)
        ]


def _sparing_walk(
    generator: Staged, z: Float[Tensor, "m d"], y: Int[Tensor, " m"], meet: Meet
) -> Tensor:
    """As `walk`, but only what lies between stages is held (T. Chen et al., "Training deep nets
    with sublinear memory cost", 2016); of a generator that is not made of stages nothing is.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if not isinstance(generator, InStages):
        return cast(Tensor, checkpoint(generator.walk, z, y, meet, **options))
    for number, stage in enumerate(generator.stages):
        z = checkpoint(lambda h, n=number, s=stage: s(meet(n, h), y), z, **options)
    return z


def early_places(
    generator: Staged, numbers: Sequence[int] | None = None, classes: int = 10
) -> tuple[Place, ...]:
    """The places `numbers`, their spread measured on samples of every class.

    Args:
        generator: A conditional generator whose forward pass can be met at its places.
        numbers: Places by number; by default the generator's early ones.
        classes: Number of classes that the generator knows.
    """
    if numbers is None:
        numbers = generator.early
    device = torch.device("cpu")
    if isinstance(generator, nn.Module):
        device = next((value.device for value in generator.parameters()), device)
    label = torch.arange(64, device=device) % classes
    latent = torch.randn(
        64, generator.latent, generator=stream(0, "places", device=device), device=device
    )
    found = dict[int, Place]()

    def note(number: int, features: Tensor) -> Tensor:
        found[number] = Place(number, tuple(features.shape[1:]), float(flat(features).std()))
        return features

    with torch.no_grad():
        generator.walk(latent, label, note)
    for number in numbers:
        if number not in found:
            raise Problem(
                f"the generator has no place {number}.",
                f"places: {', '.join(map(str, sorted(found)))}",
            )
    return tuple(found[number] for number in sorted(numbers))
