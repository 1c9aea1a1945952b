"""VQ-VAE: images as a grid of discrete codes, and ARGUS's joint training."""

from __future__ import annotations

import copy
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.generators.quality import LAWS, Family, Settings, measure
from hardcase.randomness import named_randomness
from hardcase.registry import generator
from hardcase.tensors import from_bytes
from hardcase.training.cards import History, TrainingRecipe, pick
from hardcase.training.loop import Goal, Player, fit, train_adversarially
from hardcase.training.monitor import refuse_long
from hardcase.types import Images


def _train(
    net: VqVae, images: Images, recipe: TrainingRecipe, options: Settings, how: Settings
) -> History:
    """Reconstruction; with a `mix`, ARGUS's discriminators go on from the one that was begun."""
    reduction = options["reduction"] or "mean"
    if options["mix"]:
        if options["joint_epochs"] is not None:
            recipe = replace(recipe, epochs=options["joint_epochs"], steps=0)
        how = {**how, "name": f"vqvae with mix {options['mix']}"}
        weights = (options["latent_weight"], options["image_weight"])
        joint = partial(train_jointly, mix=options["mix"], weights=weights, reduction=reduction)
        # The generator that it goes on from may take minutes itself: whether the second training
        # will be refused is known before the first.
        forecast_jointly(joint, net, images, recipe, how)
        net.load_state_dict(options["begun"]().state_dict())
        history = joint(net, images, recipe, **how)
    else:
        start_linear(net, images)
        history = fit(net, images, reconstruct(images, reduction), recipe, **how)
    healthy(net, images)
    return history


TRIED = 4
"""Steps of a training that are timed before it begins; the first warms up."""


def forecast_jointly(
    joint: Callable[..., History],
    net: VqVae,
    images: Images,
    recipe: TrainingRecipe,
    how: Settings,
) -> None:
    """Time a few steps of joint training on a copy, and say or refuse what all of them take."""
    clock: list[float] = []
    joint(
        copy.deepcopy(net),
        images.first(recipe.batch),  # one step an epoch
        replace(recipe, epochs=TRIED, steps=0),
        device=how.get("device", "cpu"),
        on_step=lambda step: clock.append(time.monotonic()),
    )
    epochs, inside = recipe.rounds(len(images))
    pace = (clock[-1] - clock[0]) / max(len(clock) - 1, 1)
    refuse_long(pace * epochs * inside, f"{how['name']} on {images.name}")


_vqvae = partial(
    generator,
    family="vqvae",
    how=Family(
        "ema",
        _train,
        measure,
        {
            "mix": 0.0,
            "latent_weight": 0.01,
            "image_weight": 0.01,
            "joint_epochs": None,
            "reduction": None,
        },
    ),
    needs="square images whose side is a multiple of 4",
    latent=64,
    laws=LAWS,
)


# A. van den Oord, O. Vinyals, K. Kavukcuoglu, "Neural discrete representation learning", NeurIPS
# 2017. Codes start from encoder outputs and a code that nobody uses starts again from one: with
# random codes a VQ-VAE on digits collapses to black.


class Codebook(nn.Module):
    """`size` codes of `width` numbers, learnt as averages (`ema`) or by `gradient`."""

    codes: Tensor
    count: Tensor
    total: Tensor
    started: Tensor

    def __init__(self, size: int, width: int, *, learned: str = "ema", decay: float = 0.99) -> None:
        super().__init__()
        self.learned = learned
        self.decay = decay
        codes = torch.randn(size, width)
        if learned == "gradient":
            self.codes = nn.Parameter(codes)
        else:
            self.register_buffer("codes", codes)
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", codes.detach().clone())
        self.register_buffer("started", torch.zeros(1, dtype=torch.bool))

    def nearest(self, z: Float[Tensor, "m d h w"]) -> Int[Tensor, "m h w"]:
        """The code nearest to each position."""
        flat = z.movedim(1, -1).reshape(-1, z.shape[1])
        # argmax of <z, c> - |c|^2 / 2 is argmin of |z - c|^2, without a table of differences
        score = flat @ self.codes.T - self.codes.square().sum(1) / 2
        return score.argmax(1).reshape(len(z), *z.shape[2:])

    def embed(self, index: Int[Tensor, "m h w"]) -> Float[Tensor, "m d h w"]:
        return self.codes[index].movedim(-1, 1)

    def quantise(self, z: Float[Tensor, "m d h w"]) -> Float[Tensor, "m d h w"]:
        """The nearest codes; gradients pass to `z` unchanged, also in evaluation."""
        return z + (self.embed(self.nearest(z)) - z).detach()

    @torch.no_grad()
    def learn(self, z: Float[Tensor, "m d h w"], rng: torch.Generator) -> Int[Tensor, "m h w"]:
        """One step of the moving averages; codes start from `z` and unused ones start again from
        it. Returns the codes that were nearest before it.
        """
        flat = z.detach().movedim(1, -1).reshape(-1, z.shape[1])
        if not bool(self.started):
            self._place(torch.arange(len(self.codes), device=z.device), flat, rng)
            self.started.fill_(True)
        nearest = self.nearest(z)
        index = nearest.reshape(-1)
        used = index.bincount(minlength=len(self.codes)).to(flat.dtype)
        self.count.mul_(self.decay).add_(used, alpha=1 - self.decay)
        self.total.mul_(self.decay).index_add_(0, index, flat, alpha=1 - self.decay)
        if self.learned == "ema":
            self.codes.copy_(self.total / self.count.clamp_min(1e-5)[:, None])
        self._place((self.count < 0.01).nonzero().squeeze(1), flat, rng)
        return nearest

    def _place(
        self, which: Int[Tensor, " r"], flat: Float[Tensor, "s d"], rng: torch.Generator
    ) -> None:
        if not len(which):
            return
        drawn = flat[
            torch.randint(len(flat), (len(which),), generator=rng, device=rng.device).to(
                flat.device
            )
        ]
        self.codes.data[which] = drawn
        self.total[which] = drawn
        self.count[which] = 1.0


class Codebooks(nn.Module):
    """Several codebooks in a hierarchy: each quantises what those before it have left.

    D. Lee, C. Kim, S. Kim, M. Cho, W.-S. Han, "Autoregressive image generation using residual
    quantization", CVPR 2022. Difference: every level has codes of its own.
    """

    learned = "ema"

    def __init__(self, depth: int, size: int, width: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(Codebook(size, width) for _ in range(depth))

    @property
    def codes(self) -> Tensor:
        """Those of the coarsest level."""
        return self._books()[0].codes

    def nearest(self, z: Float[Tensor, "m d h w"]) -> Int[Tensor, "m r h w"]:
        """The codes of every level nearest to what is left of each position."""
        codes = list[Tensor]()
        left = z
        for book in self._books():
            codes.append(book.nearest(left))
            left = left - book.embed(codes[-1])
        return torch.stack(codes, 1)

    def embed(self, index: Int[Tensor, "m r h w"]) -> Float[Tensor, "m d h w"]:
        parts = [book.embed(index[:, level]) for level, book in enumerate(self._books())]
        return torch.stack(parts).sum(0)

    def quantise(self, z: Float[Tensor, "m d h w"]) -> Float[Tensor, "m d h w"]:
        """The nearest sums of codes; gradients pass to `z` unchanged, also in evaluation."""
        return z + (self.embed(self.nearest(z)) - z).detach()

    @torch.no_grad()
    def learn(self, z: Float[Tensor, "m d h w"], rng: torch.Generator) -> None:
        """One step of the moving averages of every level, on what those before it leave."""
        left = z.detach()
        for book in self._books():
            left = left - book.embed(book.learn(left, rng))

    def _books(self) -> list[Codebook]:
        return [book for book in self.levels if isinstance(book, Codebook)]


# A. van den Oord et al., "Neural discrete representation learning", NeurIPS 2017; ARGUS (B. Duan,
# M. Dwyer, G. Yang, 2025) adds a latent and an image discriminator (three dense layers; five
# convolutions and two dense layers) and states neither architecture, codebook size nor the weights
# of the adversarial losses; those are ours.
#
# The output is linear and clamped: with a sigmoid the reconstruction of digits collapses to black
# at the paper's rate.

FEW = 4
"""A codebook of which fewer codes are in use has collapsed."""


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.body(x)
        return out


class _Patchwise(nn.Module):
    """A linear map of every patch, and what `deep` layers add to it."""

    def __init__(self, linear: nn.Conv2d | nn.ConvTranspose2d, deep: nn.Sequential) -> None:
        super().__init__()
        self.linear = linear
        self.deep = deep
        last = deep[-1]
        assert isinstance(last, nn.Conv2d | nn.ConvTranspose2d)
        assert last.bias is not None
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + self.deep(x)
        return out


class VqVae(nn.Module):
    """`encode` gives the continuous code before quantisation, `decode` quantises and renders.

    Args:
        channels: Colour channels of the images.
        size: Side of the square images in pixels.
        width: Channels of the hidden layers.
        code: Length of a codebook entry.
        book: Codebook entries.
        halvings: How often the side is halved.
        learned: How the codebook is learnt: ``ema`` or by its ``loss``.
        levels: Codebooks, each for what the ones before it have left.
        shortcut: Whether patches are also coded and decoded linearly; see `start_linear`.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> net = hc.generators.VqVae(1, 28, width=8, code=4, book=16)
        >>> net.eval().encode(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 4, 7, 7])
    """

    def __init__(
        self,
        channels: int,
        size: int,
        *,
        width: int = 64,
        code: int = 32,
        book: int = 256,
        halvings: int = 2,
        learned: str = "ema",
        levels: int = 1,
        shortcut: bool = False,
    ) -> None:
        super().__init__()
        if size % 2**halvings:
            raise HardcaseError(
                f"a VQ-VAE halves its images {halvings} times; {size}x{size} pixels cannot be"
                " halved so often."
            )
        patch = 2**halvings
        self.shape = (channels, size, size)
        self.code_shape = (code, size // patch, size // patch)
        into = _encoder(channels, width, code, halvings)
        self.book: Codebook | Codebooks = Codebook(book, code, learned=learned)
        if levels > 1:
            self.book = Codebooks(levels, book, code)
        back = _decoder(channels, width, code, halvings)
        self.encoder: nn.Module = into
        self.decoder: nn.Module = back
        if shortcut:
            self.encoder = _Patchwise(nn.Conv2d(channels, code, patch, patch), into)
            self.decoder = _Patchwise(nn.ConvTranspose2d(code, channels, patch, patch), back)

    def encode(self, x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m d i j"]:
        z: Tensor = self.encoder(x)
        return z

    def decode(self, z: Float[Tensor, "m d i j"]) -> Float[Tensor, "m c h w"]:
        return self.render(self.book.quantise(z)).clamp(0, 1)

    def render(self, q: Float[Tensor, "m d i j"]) -> Float[Tensor, "m c h w"]:
        """The image of quantised codes, before it is clamped."""
        x: Tensor = self.decoder(q)
        return x

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction."""
        return self.decode(self.encode(x))


def _encoder(channels: int, width: int, code: int, halvings: int) -> nn.Sequential:
    layers = OrderedDict[str, nn.Module]()
    before = channels
    for number in range(1, halvings + 1):
        layers[f"halve{number}"] = nn.Conv2d(before, width, 4, 2, 1)
        layers[f"relu{number}"] = nn.ReLU()
        before = width
    layers["conv"] = nn.Conv2d(width, width, 3, padding=1)
    layers |= {
        "residual1": _Residual(width),
        "residual2": _Residual(width),
        "code": nn.Conv2d(width, code, 1),
    }
    return nn.Sequential(layers)


def _decoder(channels: int, width: int, code: int, halvings: int) -> nn.Sequential:
    layers = OrderedDict[str, nn.Module](conv=nn.Conv2d(code, width, 3, padding=1))
    layers |= {"residual1": _Residual(width), "residual2": _Residual(width), "relu": nn.ReLU()}
    for number in range(1, halvings):
        layers[f"double{number}"] = nn.ConvTranspose2d(width, width, 4, 2, 1)
        layers[f"relu{number}"] = nn.ReLU()
    layers["pixels"] = nn.ConvTranspose2d(width, channels, 4, 2, 1)
    return nn.Sequential(layers)


@_vqvae(
    "vqvae-ema",
    kind="ema",
    paper="van den Oord et al., NeurIPS 2017; as ARGUS uses it",
    cite=("oord2017vqvae", "duan2025argus"),
    recipe=TrainingRecipe(epochs=15, steps=1500, batch=64, lr=1e-3),
)
def ema(channels: int, size: int, classes: int, latent: int) -> VqVae:
    """Discrete codes on a grid; codebook updated by exponential moving averages.

    The grid has a quarter of the image's side (half of a small colour one). `latent` is the width
    of a code.
    """
    return VqVae(channels, size, code=latent, **_measure(channels, size))


@_vqvae(
    "vqvae-gradient",
    kind="gradient",
    paper="Duan, Dwyer and Yang, 2025 (ARGUS)",
    cite="duan2025argus",
    recipe=TrainingRecipe(epochs=50, steps=1500, batch=64, lr=1e-3, schedule="stairs"),
)
def gradient(channels: int, size: int, classes: int, latent: int) -> VqVae:
    """Discrete codes on a grid; codebook trained by the loss, as ARGUS states it.

    The loss weighs the encoder by .25 and the codes by .75.
    """
    return VqVae(channels, size, code=latent, learned="gradient", **_measure(channels, size))


@_vqvae(
    "vqvae-hierarchical",
    kind="hierarchical",
    paper="Lee, Kim, Kim, Cho and Han, CVPR 2022; van den Oord et al., NeurIPS 2017",
    cite=("lee2022rqvae", "oord2017vqvae"),
    latent=48,
    recipe=TrainingRecipe(epochs=1, steps=200, most=500, batch=32, lr=2e-3),
)
def hierarchical(channels: int, size: int, classes: int, latent: int) -> VqVae:
    """Discrete codes in a hierarchy of sixteen codebooks on a grid; the default for colour.

    The grid has 14 to 31 places a side for images of 28 to 248 pixels. `latent` is the width of a
    code.
    """
    halvings = 1
    while size % 2 ** (halvings + 1) == 0 and size >= 32 * 2**halvings:
        halvings += 1
    return VqVae(channels, size, code=latent, book=64, halvings=halvings, levels=16, shortcut=True)


def _measure(channels: int, size: int) -> dict[str, Any]:
    """Small colour images keep half of their side and get more codes, for their details."""
    if channels > 1 and size <= 32:
        return {"halvings": 1, "width": 128, "book": 512}
    return {}


def latent_discriminator(net: VqVae, hidden: int = 256) -> nn.Module:
    """Three dense layers on the encoder's output."""
    size = net.code_shape[0] * net.code_shape[1] * net.code_shape[2]
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, 1),
    )


def image_discriminator(net: VqVae, width: int = 32) -> nn.Module:
    """Five convolutions and two dense layers on the image."""
    layers: list[nn.Module] = []
    before = net.shape[0]
    size = net.shape[1]
    for number in range(5):
        stride = 1 + (number < 3)
        layers += [nn.Conv2d(before, width * min(2**number, 4), 3, stride, 1), nn.LeakyReLU(0.2)]
        before = width * min(2**number, 4)
        size = -(-size // stride)
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(before * size**2, 128),
        nn.LeakyReLU(0.2),
        nn.Linear(128, 1),
    )


def own_loss(
    net: VqVae,
    x: Float[Tensor, "m c h w"],
    rng: torch.Generator,
    *,
    z: Float[Tensor, "m d i j"] | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Reconstruction and commitment; where the codebook has gradients, the codes' loss too."""
    if z is None:
        z = net.encode(x)
    if net.training:
        net.book.learn(z, rng)
    q = net.book.embed(net.book.nearest(z))
    error = ERRORS[reduction]
    loss = error(net.render(z + (q - z).detach()), x) + 0.25 * error(z, q.detach())
    if net.book.learned == "gradient":
        return loss + 0.75 * error(q, z.detach())
    return loss


def _squared_norm(first: Tensor, second: Tensor) -> Tensor:
    """The mean over images of the squared norm of their difference."""
    return (first - second).square().flatten(1).sum(1).mean()


ERRORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": functional.mse_loss,
    "sum": _squared_norm,
}
"""How the losses of a VQ-VAE add up what differs."""


def reconstruct(images: Images, reduction: str = "mean") -> Goal:
    """Train to give images back; ignoring the input gives the mean image."""
    pick("reduction", reduction, ERRORS)

    def loss(net: nn.Module, x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        assert isinstance(net, VqVae)
        return own_loss(net, x, noise, reduction=reduction)

    def answer(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        decoded: Tensor = net(x)
        return decoded.flatten(1)

    chance = from_bytes(images.x).var(0, correction=0)
    return Goal(loss, answer, float({"sum": chance.sum(), "mean": chance.mean()}[reduction]))


@torch.no_grad()
def start_linear(net: VqVae, images: Images, *, most: int = 1000) -> None:
    """Begin with the principal components of the images' patches, the best that linear maps can do;
    training adds codebooks and what deep layers see beyond. Without shortcuts nothing is done.
    """
    if not (isinstance(net.encoder, _Patchwise) and isinstance(net.decoder, _Patchwise)):
        return
    into = net.encoder.linear
    back = net.decoder.linear
    assert into.bias is not None
    assert back.bias is not None
    x = from_bytes(images.x[:: max(1, len(images) // most)])
    patch = into.kernel_size[0]
    mean = x.mean((0, 2, 3))
    centred = functional.unfold(x - mean[:, None, None], patch, stride=patch)  # n, c p p, places
    rows = centred.movedim(1, -1).flatten(0, 1)
    _, axes = torch.linalg.eigh(rows.T @ rows / len(rows))
    count = min(len(axes), len(into.weight))
    maps = torch.zeros(len(into.weight), len(axes))
    maps[:count] = axes.T.flip(0)[:count]
    into.weight.copy_(maps.reshape(into.weight.shape))
    back.weight.copy_(maps.reshape(back.weight.shape))
    into.bias.copy_(-maps @ mean.repeat_interleave(patch**2))
    back.bias.copy_(mean)


def healthy(net: VqVae, images: Images) -> None:
    """A collapsed codebook or a black picture is an error, not a result."""
    x = from_bytes(images.x[:256]).to(net.book.codes.device)
    with torch.no_grad():
        codes = net.book.nearest(net.encode(x))
        decoded = net(x)
    used = len(set(codes.flatten().tolist()))
    if used < FEW or float(decoded.std(0).mean()) < 0.1 * float(x.std(0).mean()):
        raise HardcaseError(
            f"the VQ-VAE has collapsed: {used} of {len(net.book.codes)} codes in use,"
            f" reconstructions vary by {float(decoded.std(0).mean()):.3g} where images vary by"
            f" {float(x.std(0).mean()):.3g}.",
            "Nothing can be tested with images that are all alike; nothing was kept.",
            fix="a smaller learning rate, or --kind ema",
        )


# ARGUS's second stage: interpolated codes learn to look real to two discriminators.


def train_jointly(
    net: VqVae,
    images: Images,
    recipe: TrainingRecipe,
    *,
    mix: float,
    weights: tuple[float, float] = (0.01, 0.01),
    reduction: str = "mean",
    seed: int = 0,
    device: torch.device | str = "cpu",
    **how: Any,
) -> History:
    """Train a VQ-VAE further, so that interpolated codes look real to two discriminators."""
    with named_randomness(seed, "discriminators"):
        latent = latent_discriminator(net).to(device)
        image = image_discriminator(net).to(device)

    def generator(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        z = net.encode(x)
        loss = own_loss(net, x, noise, z=z, reduction=reduction)
        code = _mixed(z, y, mix, noise)
        picture = net.render(net.book.quantise(code)).clamp(0, 1)  # as the discriminator sees it
        fooled = weights[0] * functional.softplus(-latent(code)).mean()
        return loss + fooled + weights[1] * functional.softplus(-image(picture)).mean()

    def discriminate(x: Tensor, y: Tensor, noise: torch.Generator) -> Tensor:
        with torch.no_grad():
            z = net.encode(x)
            code = _mixed(z, y, mix, noise)
            decoded = net.decode(code)
        codes = functional.softplus(-latent(z)).mean() + functional.softplus(latent(code)).mean()
        return (
            codes
            + functional.softplus(-image(x)).mean()
            + functional.softplus(image(decoded)).mean()
        )

    players = (
        Player(nets=[net], loss=generator, lr=recipe.lr),
        Player(nets=[latent, image], loss=discriminate, lr=recipe.lr),
    )
    return train_adversarially(players, images, recipe, seed=seed, device=device, **how)


def _mixed(z: Tensor, y: Int[Tensor, " m"], mix: float, noise: torch.Generator) -> Tensor:
    return (1 - mix) * z + mix * z[_partners(y, noise)]


def _partners(y: Int[Tensor, " m"], noise: torch.Generator) -> Int[Tensor, " m"]:
    """A random row of another class for each row (of any class where the batch has only one)."""
    score: Float[Tensor, "m m"] = torch.rand(len(y), len(y), generator=noise, device=y.device)
    # rows of the own class rank below all others, and still among themselves
    return torch.where(y[:, None] == y[None, :], score - 2, score).argmax(1)
