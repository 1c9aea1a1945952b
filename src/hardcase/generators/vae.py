"""Variational autoencoders: linear, convolutional and conditional."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.generators.quality import LAWS, Family, Settings, measure
from hardcase.registry import generator
from hardcase.tensors import from_bytes
from hardcase.training.cards import History, TrainingRecipe
from hardcase.training.loop import Goal, fit
from hardcase.types import Images

_SINVAD = "Kang, Feldt and Yoo, TOSEM 2024"
_DENSE = TrainingRecipe(epochs=10, steps=1500, batch=64, lr=1e-3)


def _train(
    net: nn.Module, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    goal = reconstruct(images, beta=options["beta"])
    return fit(net, images, goal, recipe, **how)


_vae = partial(
    generator, family="vae", laws=LAWS, how=Family("linear", _train, measure, {"beta": 1.0})
)


# D. Kingma, M. Welling, "Auto-encoding variational Bayes", ICLR 2014; the sizes of S. Kang, R.
# Feldt, S. Yoo, "Deceiving humans and machines alike", TOSEM 2024 (SINVAD). The conditional form:
# K. Sohn, H. Lee, X. Yan, "Learning structured output representation using deep conditional
# generative models", NeurIPS 2015.
#
# Loss: binary cross-entropy and KL divergence, each summed over an image, the latter times `beta`.
# SINVAD's code trains with Adam at 2e-4 for 100 epochs (the paper says 50); the recipes here are
# shorter at a larger, falling rate.


class Vae(nn.Module):
    """An encoder to (mean, logvar) and a decoder to images in [0, 1].

    Args:
        encoder: Images to mean and log variance.
        decoder: Codes to images in [0, 1].
        shape: Channels, height and width.
        latent: Length of the code.
        labels: Number of classes that both are told about; 0: labels are ignored.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        *,
        shape: tuple[int, int, int],
        latent: int,
        labels: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.shape = shape
        self.latent = latent
        self.labels = labels

    def encode(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """Mean and logarithm of the variance of the code of each image."""
        mean, logvar = self.encoder(self.with_label(x, y)).chunk(2, dim=1)
        return mean, logvar

    def decode(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The image that each code stands for."""
        return torch.sigmoid(self.pixel_logits(z, y))

    def pixel_logits(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The logits of the pixels, which training compares with images."""
        pixels: Tensor = self.decoder(self.with_label(z, y))
        return pixels.reshape(len(z), *self.shape)

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction: the image of the mean code."""
        return self.decode(self.encode(x, y)[0], y)

    def with_label(
        self, values: Float[Tensor, "m *d"], y: Int[Tensor, " m"] | None
    ) -> Float[Tensor, "m *e"]:
        """Values beside their label, one place for each class, where labels are told."""
        if not self.labels:
            return values
        if y is None:
            raise HardcaseError(
                "a conditional VAE needs the label of every image.",
                fix="encode(x, y) and decode(z, y)",
            )
        indicator = y[:, None] == torch.arange(self.labels, device=y.device)
        return torch.cat([values.flatten(1), indicator.to(values.dtype)], dim=1)


@_vae(
    "vae-linear",
    kind="linear",
    needs="square images",
    paper=_SINVAD,
    cite="kang2024sinvad",
    latent=400,
    recipe=_DENSE,
)
def linear(channels: int, size: int, classes: int, latent: int, *, hidden: int = 1600) -> Vae:
    """Variational autoencoder with one hidden layer of 1600 units on either side.

    784-1600-400 for SINVAD's digits.
    """
    return _dense(channels, size, latent, hidden, labels=0)


@_vae(
    "vae-conditional",
    kind="conditional",
    needs="square images with labels",
    paper="Sohn, Lee and Yan, NeurIPS 2015; named as future work by SINVAD, TOSEM 2024",
    cite=("sohn2015cvae", "kang2024sinvad"),
    latent=400,
    recipe=_DENSE,
)
def conditional(channels: int, size: int, classes: int, latent: int, *, hidden: int = 1600) -> Vae:
    """Linear variational autoencoder that is told the label when it encodes and decodes.

    The label, one place for each class, stands beside the pixels and beside the code.
    """
    return _dense(channels, size, latent, hidden, labels=classes)


def _dense(channels: int, size: int, latent: int, hidden: int, *, labels: int) -> Vae:
    pixels = channels * size**2
    encoder = OrderedDict[str, nn.Module](
        flatten=nn.Flatten(),
        hidden=nn.Linear(pixels + labels, hidden),
        relu=nn.ReLU(),
        code=nn.Linear(hidden, 2 * latent),
    )
    decoder = OrderedDict[str, nn.Module](
        hidden=nn.Linear(latent + labels, hidden), relu=nn.ReLU(), pixels=nn.Linear(hidden, pixels)
    )
    shape = (channels, size, size)
    return Vae(
        nn.Sequential(encoder), nn.Sequential(decoder), shape=shape, latent=latent, labels=labels
    )


_WIDTHS = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (64, 1), (64, 1), (64, 1))
"""Channels and stride of the eight convolutions of the encoder;
the decoder goes through them backwards.
"""


@_vae(
    "vae-conv",
    kind="conv",
    needs="square images of 4x4 or more",
    paper=_SINVAD,
    cite="kang2024sinvad",
    latent=800,
    recipe=TrainingRecipe(epochs=10, steps=1200, batch=64, lr=3e-3, schedule="warm"),
)
def conv(channels: int, size: int, classes: int, latent: int) -> Vae:
    """Variational autoencoder with eight convolutions on either side.

    3x3 convolutions, two of which halve (or double) the image, and a dense layer at the code. The
    paper gives only their number; widths, strides and batch normalisation are ours. The authors'
    code has another, residual network for SVHN.
    """
    if size < 4:
        raise HardcaseError(
            f"a convolutional VAE halves its images twice; {size}x{size} pixels are too few (4x4 or"
            " more)."
        )
    half = (size + 1) // 2
    quarter = (half + 1) // 2
    widths = (channels, *(width for width, _ in _WIDTHS))
    flat = widths[-1] * quarter**2
    encoder = OrderedDict[str, nn.Module]()
    for number, (_, stride) in enumerate(_WIDTHS, 1):
        _layer(encoder, number, widths[number - 1], widths[number], stride)
    encoder |= {"flatten": nn.Flatten(), "code": nn.Linear(flat, 2 * latent)}
    decoder = OrderedDict[str, nn.Module](
        spread=nn.Linear(latent, flat), picture=nn.Unflatten(1, (widths[-1], quarter, quarter))
    )
    sides = iter((half, size))
    for number, (_, stride) in reversed(list(enumerate(_WIDTHS, 1))):
        if stride == 2:
            decoder[f"grow{number}"] = nn.Upsample(size=next(sides))
        if number > 1:
            _layer(decoder, number, widths[number], widths[number - 1], 1)
    decoder["pixels"] = nn.Conv2d(widths[1], channels, 3, padding=1)
    return Vae(
        nn.Sequential(encoder), nn.Sequential(decoder), shape=(channels, size, size), latent=latent
    )


def _layer(
    layers: OrderedDict[str, nn.Module], number: int, before: int, width: int, stride: int
) -> None:
    layers[f"conv{number}"] = nn.Conv2d(before, width, 3, stride, 1, bias=False)
    layers[f"norm{number}"] = nn.BatchNorm2d(width)
    layers[f"relu{number}"] = nn.ReLU()


def reconstruct(images: Images, *, beta: float = 1.0) -> Goal:
    """The negative lower bound per image; ignoring the input gives the mean image."""

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, Vae)
        mean, logvar = net.encode(x, y)
        z = mean + torch.exp(logvar / 2) * torch.randn(
            mean.shape, generator=noise, device=mean.device
        )
        error = functional.binary_cross_entropy_with_logits(
            net.pixel_logits(z, y), x, reduction="sum"
        )
        divergence = (mean.square() + logvar.exp() - 1 - logvar).sum() / 2
        return (error + beta * divergence) / len(x)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        decoded: Tensor = net(x, y)
        return decoded.flatten(1)

    average = from_bytes(images.x).mean(0)
    chance = float(functional.binary_cross_entropy(average, average, reduction="sum"))
    return Goal(loss, answer, chance)
