"""Codes inside a conditional generator: added to its activations, or mixing its conditioning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, stream
from hardcase.registry import space
from hardcase.tensors import flat, per_row, tiled, total
from hardcase.types import Encoded, Seeds

Meet = Callable[[int, Tensor], Tensor]
"""A function of the features at a place; the generator continues with its output.
"""


Stage = Callable[[Tensor, Tensor], Tensor]
"""A part of a generator that makes features of features and classes."""


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


@dataclass(frozen=True, slots=True)
class GeneratorPlace:
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

    A flat code of all perturbations, each in units of its place's spread, so that a step has the
    same effect everywhere.

    `radius` bounds the code's length (infinite: it is only recorded, as Dunn et al. do). Seeds must
    come from the generator: their latent codes travel as ``context["latent"]``.

    Args:
        generator: A conditional generator whose forward pass can be met at its places.
        places: The activations to perturb, with their spread.
        radius: Largest length of the code.
        classes: Number of classes that the generator knows.
    """

    generator: Staged
    places: tuple[GeneratorPlace, ...]
    radius: float = torch.inf
    classes: int = 10
    name: ClassVar[str] = "activations"
    keeps_code: ClassVar[bool] = True

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        width = sum(place.width for place in self.places)
        return torch.zeros(len(x), width, device=x.device), {"class": y.clone()}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        def generated(code: Tensor, latent: Tensor, label: Tensor) -> Tensor:
            moved = dict(zip((place.number for place in self.places), self._pieces(code)))
            return self.generator.walk(
                latent, label, lambda number, h: h + moved[number] if number in moved else h
            )

        return tiled(generated, z, _latent(origin), origin.context["class"])

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


@space(
    "styles",
    needs="a conditional GAN trained on the same data",
    paper="ours, after Weißl et al., 2024 (Mimicry)",
)
@dataclass(frozen=True, slots=True)
class Styles:
    """How far the later stages of a conditional generator are conditioned on another class.

    A code has a weight in [0, 1] for each class and each of `stages`; only the class of the largest
    sum counts. A stage of weight w gives (1 - w) stage(h, class of the seed) + w stage(h, other
    class). The code of an image is 0, and its latent code travels as ``context["latent"]``.

    Args:
        generator: A conditional generator with stages, e.g. `hc.generators.Gan`.
        stages: Numbers of the stages whose conditioning is mixed.
        classes: Number of classes that the generator knows.
    """

    generator: Staged
    stages: tuple[int, ...]
    classes: int = 10
    name: ClassVar[str] = "styles"
    keeps_code: ClassVar[bool] = True

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        zero = torch.zeros(len(x), self.classes, len(self.stages), device=x.device)
        return zero, {"class": y.clone()}

    def decode(self, z: Float[Tensor, "m k s"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        def generated(code: Tensor, h: Tensor, label: Tensor) -> Tensor:
            other = code.sum(2).argmax(1)
            weights = dict(zip(self.stages, code[torch.arange(len(code)), other].unbind(1)))
            for number, stage in enumerate(stages_of(self.generator)):
                features = stage(h, label)
                if number in weights:
                    weight = per_row(weights[number], features)
                    features = torch.lerp(features, stage(h, other), weight)
                h = features
            return h

        return tiled(generated, z, _latent(origin), origin.context["class"])

    def project(self, z: Float[Tensor, "m k s"], origin: Seeds) -> Float[Tensor, "m k s"]:
        z = z.clamp(0, 1)
        other = z.sum(2).argmax(1)
        return z * (torch.arange(self.classes, device=z.device) == other[:, None])[..., None]

    def distance(self, z: Float[Tensor, "m k s"], origin: Seeds) -> Float[Tensor, " m"]:
        return total(flat(z))


def stages_of(generator: Staged) -> Iterable[Stage]:
    """Return the stages of a generator that is exactly their composition.

    Raises:
        HardcaseError: If it is not a composition of stages that each receive the class.
    """
    # asked for by name: stages of a module are no attributes that a protocol would see
    stages: Iterable[Stage] | None = getattr(generator, "stages", None)
    if stages is None:
        raise HardcaseError(
            f"{type(generator).__name__} is not made of stages that are each told the class.",
            fix="--generator gan",
        )
    return stages


def conditioned_stages(generator: Staged, classes: int) -> tuple[int, ...]:
    """Return the numbers of the stages whose output depends on the class, first to last."""
    h, label = _samples(generator, classes)
    numbers = list[int]()
    with torch.no_grad():
        for number, stage in enumerate(stages_of(generator)):
            if not torch.equal(stage(h, label), stage(h, label.roll(1))):
                numbers.append(number)
            h = stage(h, label)
    return tuple(numbers)


def _latent(origin: Seeds) -> Float[Tensor, "m d"]:
    """The latent codes from which the generator decoded the images."""
    if "latent" not in origin.context:
        raise HardcaseError(
            "the generator did not make these images, so there is no latent code to start from.",
            fix="images of the generator: hardcase run --method feature-perturbation generates"
            " them itself",
        )
    return origin.context["latent"]


def _samples(generator: Staged, classes: int) -> tuple[Float[Tensor, "m d"], Int[Tensor, " m"]]:
    """64 latent codes and labels of every class, on the generator's device."""
    device = torch.device("cpu")
    if isinstance(generator, nn.Module):
        device = next((value.device for value in generator.parameters()), device)
    rng = stream(0, "places", device=device)
    latent = torch.randn(64, generator.latent, generator=rng, device=device)
    return latent, torch.arange(64, device=device) % classes


def early_places(
    generator: Staged, numbers: Sequence[int] | None = None, classes: int = 10
) -> tuple[GeneratorPlace, ...]:
    """The places `numbers`, their spread measured on samples of every class.

    Args:
        generator: A conditional generator whose forward pass can be met at its places.
        numbers: Places by number; by default the generator's early ones.
        classes: Number of classes that the generator knows.
    """
    if numbers is None:
        numbers = generator.early
    latent, label = _samples(generator, classes)
    places = dict[int, GeneratorPlace]()

    def note(number: int, features: Tensor) -> Tensor:
        shape, spread = tuple(features.shape[1:]), float(flat(features).std())
        places[number] = GeneratorPlace(number, shape, spread)
        return features

    with torch.no_grad():
        generator.walk(latent, label, note)
    for number in numbers:
        if number not in places:
            raise HardcaseError(
                f"the generator has no place {number}.",
                f"places: {', '.join(map(str, sorted(places)))}",
            )
    return tuple(places[number] for number in sorted(numbers))
