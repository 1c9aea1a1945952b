"""Small worlds whose answers are known: a subject that names the brightest quarter, images, an exact auto-encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.tensors import to_bytes
from hardcase.types import Answer, Images, Model, Offer, Tap

SIZE, CLASSES = 8, ("north-west", "north-east", "south-west", "south-east")


class Quarters(nn.Module):
    """Logits are the mean brightness of the four quarters of the image, through one hidden layer; failures are easy to make."""

    def __init__(self, sharpness: float = 20.0) -> None:
        super().__init__()
        self.mean = nn.Linear(SIZE * SIZE, 4, bias=False)
        self.relu = nn.ReLU()
        self.out = nn.Linear(4, 4, bias=False)
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
    return Subject(Quarters(sharpness), classes=CLASSES, name="toy")


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
        return (z / 8 + 0.5).flip(1).reshape(-1, 1, SIZE, SIZE)


class ToyQuantiser(nn.Module):
    """A code on a grid of its own: the pixels, centred and scaled, rounded when they are decoded."""

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
        return (x - 0.5) * 8

    def decode(self, z: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
        nearest = (z * 128).round() / 128
        return (z + (nearest - z).detach()) / 8 + 0.5


class ToyPainter(nn.Module):
    """A staged generator of toy images: a dim picture with the class's quarter brighter, moved by the code's own numbers."""

    latent = 16

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([_Spread(), _Brighten()])

    early = (0, 1)

    def walk(self, z: Tensor, y: Tensor, meet: Callable[[int, Tensor], Tensor]) -> Tensor:
        for number, stage in enumerate(self.stages):
            z = stage(meet(number, z), y)
        return z


def painted_images(count: int = 5, seed: int = 0) -> Images:
    """Samples of `ToyPainter` with their latent codes, as a generator's fresh seeds come."""
    images, painter = toy_images(count, seed), ToyPainter()
    latent = torch.randn(count, painter.latent, generator=stream(seed, "toy painter"))
    image = painter.walk(latent, images.y, lambda number, features: features)
    return replace(images, x=to_bytes(image), context={"latent": latent})


class _Spread(nn.Module):
    """Sixteen numbers become a picture of 2x2 blocks."""

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        return z.reshape(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3) * 0.03 + 0.4


class _Brighten(nn.Module):
    def forward(self, h: Tensor, y: Tensor) -> Tensor:
        half = torch.arange(SIZE, device=h.device) // (SIZE // 2)
        quarter = half[:, None] * 2 + half[None, :]
        return (h + 0.15 * (quarter[None, None] == y[:, None, None, None])).clamp(0, 1)


class Counting:
    """A model that counts the rows it is given and can refuse gradients or raise after a number of calls."""

    def __init__(
        self, model: Model, *, offers: Offer | None = None, raise_after: int | None = None
    ) -> None:
        self.model, self.raise_after = model, raise_after
        self.name, self.hash = model.name, model.hash
        self.offers: Offer = offers or model.offers
        self.rows = self.calls = 0

    @property
    def device(self) -> torch.device:
        return self.model.device

    def __call__(
        self, x: Float[Tensor, "m c h w"], taps: Mapping[str, Tap] | None = None
    ) -> Answer:
        self.rows, self.calls = self.rows + len(x), self.calls + 1
        if self.raise_after is not None and self.calls > self.raise_after:
            raise RuntimeError("the model broke")
        if x.requires_grad and self.offers != "gradients":
            raise AssertionError("a black-box method asked for gradients")
        return self.model(x, taps)
