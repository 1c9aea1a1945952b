"""Small worlds in which any registered method can be built: networks, images, exact generators.

`toy_world` has known answers: its model names the brightest quarter of an image. `digit_world`
has the shapes of handwritten digits and networks that were never trained: methods are built there
to read what they need and spend, not run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.generators.gan import Gan, small as small_gan
from hardcase.methods.neurons import Profiles
from hardcase.models.subject import Subject
from hardcase.models.zoo import build_classifier
from hardcase.randomness import named_randomness, stream
from hardcase.registry import Part
from hardcase.spaces.activations import Activations, Staged, early_places
from hardcase.spaces.latent import Grid, Latent, partners
from hardcase.spaces.pixel import Pixels
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Answer, Images, Method, Model, Offer, Space, Tap

SIZE = 8
CLASSES = ("north-west", "north-east", "south-west", "south-east")


class Quarters(nn.Module):
    """Logits are the mean brightness of the four quarters, through one hidden layer.

    Failures are easy to make. Making one leaves the global random state as it was.
    """

    def __init__(self, sharpness: float = 20.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=()):
            self.mean = nn.Linear(SIZE * SIZE, 4, bias=False)
            self.out = nn.Linear(4, 4, bias=False)
        self.relu = nn.ReLU()
        quarter = torch.zeros(4, SIZE, SIZE)
        half = SIZE // 2
        for i in range(4):
            top, left = divmod(i, 2)
            quarter[i, top * half : (top + 1) * half, left * half : (left + 1) * half] = 1 / half**2
        self.mean.weight.data = quarter.flatten(1)
        self.out.weight.data = torch.eye(4) * sharpness

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.relu(self.mean(x.flatten(1))))
        return out


def toy_subject(sharpness: float = 20.0) -> Subject:
    """The network that names the brightest quarter of an image."""
    return Subject(Quarters(sharpness), classes=CLASSES, name="toy")


@cache
def toy_peer() -> Subject:
    """A second opinion that differs a little from the toy model's, for methods that compare."""
    net = Quarters()
    weight = net.mean.weight.data
    weight += 0.04 * torch.randn(weight.shape, generator=stream(3, "peer"))
    return Subject(net, classes=CLASSES, name="other toy")


def toy_images(count: int = 5, seed: int = 0) -> Images:
    """Dim noise with one brighter quarter, the label; labels are mixed."""
    rng = stream(seed, "toy images")
    y = torch.arange(count) % 4
    x = torch.rand(count, 1, SIZE, SIZE, generator=rng) * 0.2 + 0.3
    half = SIZE // 2
    rows = torch.arange(SIZE) // half
    quarter = rows[:, None] * 2 + rows[None, :]
    bright = quarter[None, None] == y[:, None, None, None]
    pixels = ((x + 0.15 * bright) * 255).round().to(torch.uint8)
    return Images(pixels, y, tuple(f"toy/test/{i:05d}" for i in range(count)), CLASSES, name="toy")


class ToyAutoencoder(nn.Module):
    """An exact code: the pixels, centred and scaled, in another order."""

    def encode(self, x: Float[Tensor, "m c h w"]) -> tuple[Tensor, Tensor]:
        z = (x.flatten(1).flip(1) - 0.5) * 8
        return z, torch.zeros_like(z)

    def decode(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m c h w"]:
        side = int(z.shape[1] ** 0.5)
        return (z / 8 + 0.5).flip(1).reshape(-1, 1, side, side)


class ToyQuantiser(nn.Module):
    """A code on a grid of its own: pixels, centred and scaled, rounded when decoded."""

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
        return (x - 0.5) * 8

    def decode(self, z: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
        nearest = (z * 128).round() / 128
        return (z + (nearest - z).detach()) / 8 + 0.5


class ToyGenerator(nn.Module):
    """A staged generator of toy images: the class's quarter is brighter, the code moves it."""

    latent = 16

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([_Spread(), _Brighten()])

    early = (0, 1)

    def walk(self, z: Tensor, y: Tensor, meet: Callable[[int, Tensor], Tensor]) -> Tensor:
        for number, stage in enumerate(self.stages):
            z = stage(meet(number, z), y)
        return z


def generated_images(count: int = 5, seed: int = 0) -> Images:
    """Samples of `ToyGenerator` with their latent codes, as a generator's fresh images come."""
    images = toy_images(count, seed)
    generator = ToyGenerator()
    latent = torch.randn(count, generator.latent, generator=stream(seed, "toy painter"))
    image = generator.walk(latent, images.y, lambda number, features: features)
    return replace(images, x=to_bytes(image), context={"latent": latent})


class _Spread(nn.Module):
    """Sixteen numbers become an image of 2x2 blocks."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return z.reshape(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3) * 0.03 + 0.4


class _Brighten(nn.Module):
    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        half = torch.arange(SIZE, device=h.device) // (SIZE // 2)
        quarter = half[:, None] * 2 + half[None, :]
        return (h + 0.15 * (quarter[None, None] == y[:, None, None, None])).clamp(0, 1)


class Counting:
    """A model that counts its rows, and can refuse gradients or raise after some calls."""

    def __init__(
        self, model: Model, *, offers: Offer | None = None, raise_after: int | None = None
    ) -> None:
        self.model = model
        self.raise_after = raise_after
        self.name = model.name
        self.hash = model.hash
        self.weights: str = getattr(model, "weights", "")
        self.offers: Offer = offers or model.offers
        self.rows = self.calls = 0

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        self.rows += len(x)
        self.calls += 1
        if self.raise_after is not None and self.calls > self.raise_after:
            raise RuntimeError("the model broke")
        if x.requires_grad and self.offers != "gradients":
            raise AssertionError("a black-box method asked for gradients")
        return self.model(x, taps)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All that a run can give to a method, small enough to be built in a moment.

    Args:
        subject: The network under test.
        peer: A second network, for methods that compare.
        images: That many images of the data set.
        generated: That many originals as a generator makes them.
        profiled: Training images from which criteria learn what is usual.
        partners: Training images whose codes searches walk toward.
        spaces: The space of each family of generators.

    Example:
        >>> from hardcase.testing import toy_world
        >>> toy_world().images(4).y.tolist()
        [0, 1, 2, 3]
    """

    subject: Model
    peer: Model
    images: Callable[[int], Images]
    generated: Callable[[int], Images]
    profiled: Images
    partners: Images
    spaces: Mapping[str, Space]

    def build(self, part: Part, **options: Any) -> Method:
        """The method with `options`, given whatever its parameters ask for."""
        able: Mapping[str, Callable[[], Any]] = {
            "space": lambda: self.space(part),
            "partners": lambda: partners(self.space(part), self.partners, device="cpu"),
            "subject": lambda: self.subject,
            "peers": lambda: self.peers(part),
            "profile": lambda: Profiles(from_bytes(self.images(1).x), lambda: self.profiled),
            "shape": lambda: tuple(self.images(1).x.shape[1:]),
        }
        built_method = part(
            **{name: able[name]() for name in part.given if name in able}, **options
        )
        assert isinstance(built_method, Method), f"{part.name} made a {type(built_method).__name__}"
        return built_method

    def space(self, part: Part) -> Space:
        """The space of the method's own family of generators; pixels where it has none."""
        return self.spaces[str(part.facts.get("generator", "pixels")).partition(":")[0]]

    def peers(self, part: Part) -> tuple[Model, ...]:
        """The other network, if the method compares networks."""
        return () if part.facts.get("peers", "none") == "none" else (self.peer,)

    def seeds(self, part: Part) -> Callable[[int], Images]:
        """Where the method's images come from: the data, or its generator."""
        return self.generated if part.facts.get("seeds") == "generator" else self.images


@cache
def toy_world() -> World:
    """The world in which laws are checked: every image is easy to make fail."""
    return World(
        subject=toy_subject(),
        peer=toy_peer(),
        images=toy_images,
        generated=generated_images,
        profiled=toy_images(40, seed=1),
        partners=toy_images(40, seed=2),
        spaces={
            "pixels": Pixels(),
            "vae": Latent(ToyAutoencoder()),
            "vqvae": Grid(ToyQuantiser()),
            "gan": _generator_space(ToyGenerator(), 4),
        },
    )


@cache
def digit_world() -> World:
    """Images of 28x28 pixels in ten classes, an untrained LeNet-5 and codes of 7x7 places."""

    def network(seed: int) -> Subject:
        net = build_classifier("lenet5", channels=1, size=28, classes=10, seed=seed)
        return Subject(net, classes=tuple("0123456789"), name="digits")

    return World(
        subject=network(0),
        peer=network(1),
        images=_noise,
        generated=generated_images,
        profiled=_often_answered(network(0), _noise(400)),
        partners=_noise(40),
        spaces={
            "pixels": Pixels(),
            "vae": Latent(ToyAutoencoder()),
            "vqvae": Grid(_Folded()),
            "gan": _generator_space(_digit_generator(), 10),
        },
    )


class _Folded(nn.Module):
    """Blocks of 4x4 pixels as the channels of a code grid."""

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        return nn.functional.pixel_unshuffle(x, 4)

    def decode(self, z: Float[Tensor, "m d i j"]) -> Float[Tensor, "m c h w"]:
        return nn.functional.pixel_shuffle(z, 4)


def _generator_space(generator: Staged, classes: int) -> Activations:
    return Activations(generator, early_places(generator, classes=classes), classes=classes)


def _digit_generator() -> Gan:
    """An untrained GAN whose stages nevertheless depend on the class."""
    with named_randomness(0, "digit generator"):
        net = small_gan(1, 28, 10, latent=32).eval().requires_grad_(False)
        for name, weight in net.named_parameters():
            if "shift" in name:
                weight.normal_()
    return net


def _often_answered(net: Subject, images: Images) -> Images:
    """Images of the classes that `net` answers often: no density can be estimated from a few."""
    answer = net(from_bytes(images.x)).logits.argmax(1)
    often = answer.bincount(minlength=len(images.classes)) >= 40
    return images.take(often[answer].nonzero().squeeze(1))


def _noise(count: int) -> Images:
    """Uniform noise with labels that mean nothing."""
    pixels = torch.rand(count, 1, 28, 28, generator=stream(0, "noise"))
    label = torch.arange(count) % 10
    names = tuple(f"noise/test/{i:05d}" for i in range(count))
    return Images(to_bytes(pixels), label, names, tuple("0123456789"), name="noise")
