"""What others have made, behind the interface of our generators: codes of images, images of codes,
and places inside.

What a generator may offer, and who asks for it:

* ``encode(x)`` or ``encode(x, y)`` to a code of any shape (or to a tuple that begins with it), and
  ``decode(z)`` or ``decode(z, y)`` to images in [0, 1]: SINVAD, ARGUS, crossings;
* ``sample(y, rng)`` to codes and images of given classes, ``latent`` and ``layers`` (its places):
  feature perturbation, see `UserGenerator`, and for autoencoders of ours `Decoder` and
  `CachedCodes`;
* only ``forward(z, y)`` with ``latent``, as GANs have it: codes of images are found by descent.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hardcase.errors import HardcaseError, guarded, reading
from hardcase.generators.gan import NormalCodes
from hardcase.generators.vae import Vae
from hardcase.generators.vqvae import VqVae
from hardcase.randomness import stream
from hardcase.tensors import digest_tensors, from_bytes
from hardcase.types import Images

STEPS = 200
"""Steps of the descent to an image's code."""
STARTS = 16
"""Codes among which the descent of each image begins at the best."""


class Coder(nn.Module):
    """A module with ``encode`` and ``decode`` of its own, as an autoencoder of ours.

    Args:
        net: The module; images in [0, 1] go in and come out.
        shape: Channels, height and width of the images.
        classes: Number of classes, which it is told where its ``decode`` takes two arguments.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> class Negative(torch.nn.Module):
        ...     def encode(self, x):
        ...         return 1 - x
        ...     def decode(self, z):
        ...         return 1 - z
        >>> coder = hc.generators.Coder(Negative(), shape=(1, 2, 2), classes=3)
        >>> float(coder(torch.full((1, 1, 2, 2), 0.25)).mean())
        0.25
    """

    net: Any

    def __init__(self, net: nn.Module, *, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.net = net
        self.shape = shape
        self.labels = classes * _takes(self.net.decode, 2)

    def encode(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The code of each image, and (as VAEs give) the logarithm of a variance, which is 0."""
        arguments = (x, y)[: 1 + _takes(self.net.encode, 2)]
        with guarded(f"generator {type(self.net).__name__}"):
            code = _code(self.net.encode(*arguments))
        return code, torch.zeros_like(code)

    def decode(self, z: Tensor, y: Int[Tensor, " m"] | None = None) -> Float[Tensor, "m c h w"]:
        """The image that each code stands for."""
        decoder_arguments = (z, y)[: 1 + bool(self.labels)]
        with guarded(f"generator {type(self.net).__name__}"):
            decoded = self.net.decode(*decoder_arguments)
        image = getattr(decoded, "sample", decoded)
        if not isinstance(image, Tensor) or tuple(image.shape) != (len(z), *self.shape):
            shape = tuple(getattr(image, "shape", ())) or type(image).__name__
            raise HardcaseError(
                f"the generator decoded {len(z)} codes to {shape}; images of the data are"
                f" {(len(z), *self.shape)}."
            )
        return image.clamp(0, 1)

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction."""
        return self.decode(self.encode(x, y)[0], y)


class Inverted(nn.Module):
    """A generator without an encoder, with codes found by descent from the best of a few starts.

    Args:
        net: A module ``z, y -> images in [0, 1]`` with an attribute `latent`.
        shape: Channels, height and width of the images.
        classes: Number of classes.
        steps: Steps of the descent.
    """

    def __init__(
        self, net: nn.Module, *, shape: tuple[int, int, int], classes: int, steps: int = STEPS
    ) -> None:
        super().__init__()
        self.net = net
        self.shape = shape
        self.labels = classes
        self.latent = int(net.latent)  # type: ignore[arg-type]  # the family's own attribute
        self.steps = steps

    def encode(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]
    ) -> tuple[Float[Tensor, "m d"], Float[Tensor, "m d"]]:
        """The code whose image is nearest to each image, and zeros."""
        starts = torch.randn(STARTS, self.latent, generator=stream(0, "inversion")).to(x.device)
        with torch.no_grad():
            gaps = torch.stack([self._gap(start.expand(len(x), -1), x, y) for start in starts], 1)
        with torch.enable_grad():
            z = starts[gaps.argmin(1)].clone().requires_grad_()
            descent = torch.optim.Adam([z], lr=0.05)
            for _ in range(self.steps):
                (z.grad,) = torch.autograd.grad(self._gap(z, x, y).sum(), z)
                descent.step()
        code = z.detach()
        return code, torch.zeros_like(code)

    def decode(self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
        """The image that each code stands for."""
        with guarded(f"generator {type(self.net).__name__}"):
            image: Tensor = self.net(z, y)
        return image.clamp(0, 1)

    def forward(
        self, x: Float[Tensor, "m c h w"], y: Int[Tensor, " m"]
    ) -> Float[Tensor, "m c h w"]:
        """The reconstruction."""
        return self.decode(self.encode(x, y)[0], y)

    def _gap(self, z: Tensor, x: Tensor, y: Tensor) -> Float[Tensor, " m"]:
        return (self.decode(z, y) - x).square().flatten(1).mean(1)


def coder(net: nn.Module, *, shape: tuple[int, int, int], classes: int) -> Coder | Inverted:
    """`net` with codes of images: by its own encoder, else by descent.

    Args:
        net: A generator of somebody else's.
        shape: Channels, height and width of the images.
        classes: Number of classes of the data.
    """
    if callable(getattr(net, "encode", None)) and callable(getattr(net, "decode", None)):
        return Coder(net, shape=shape, classes=classes)
    if isinstance(getattr(net, "latent", None), int):
        return Inverted(net, shape=shape, classes=classes)
    raise HardcaseError(
        f"the generator {type(net).__name__} gives images no code.",
        "It needs encode(x) and decode(z), or forward(z, y) and an attribute latent (the length of"
        " z).",
    )


def from_diffusers(folder: Path) -> nn.Module:
    """An autoencoder that the library diffusers has stored: AutoencoderKL or VQModel."""
    try:
        diffusers = import_module("diffusers")
    except ImportError as error:
        raise HardcaseError("diffusers is not installed.", fix="pip install diffusers") from error
    with reading(f"{folder} holds no model of diffusers"):
        name = json.loads((folder / "config.json").read_text(encoding="utf-8"))["_class_name"]
    if name not in ("AutoencoderKL", "VQModel"):
        raise HardcaseError(
            f"{folder} holds a {name}; only AutoencoderKL and VQModel give images a code here."
        )
    net = getattr(diffusers, name).from_pretrained(
        str(folder), local_files_only=True, use_safetensors=True
    )
    return _Signed(net.eval())


class _Signed(nn.Module):
    """An autoencoder of images in [-1, 1], as those of diffusers, as one of images in [0, 1]."""

    net: Any

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def encode(self, x: Float[Tensor, "m c h w"]) -> Tensor:
        return _code(self.net.encode(2 * x - 1))

    def decode(self, z: Tensor) -> Tensor:
        decoded = self.net.decode(z)
        image: Tensor = getattr(decoded, "sample", decoded)
        return (image + 1) / 2


def _takes(method: Callable[..., Any], count: int) -> bool:
    """Whether so many arguments without a default, or named `y`, can be given by place."""
    parameters = list(inspect.signature(method).parameters.values())[:count]
    needed = [
        parameter
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty or parameter.name == "y"
    ]
    return len(needed) == count and all(
        parameter.kind is not parameter.KEYWORD_ONLY for parameter in needed
    )


def _code(arguments: Any) -> Tensor:
    """The code in whatever an encoder gives: a tensor, a tuple's first, or that of diffusers."""
    if hasattr(arguments, "latent_dist"):
        arguments = arguments.latent_dist.mode()
    arguments = getattr(arguments, "latents", arguments)
    first = arguments[0] if isinstance(arguments, tuple | list) and arguments else arguments
    if not isinstance(first, Tensor):
        raise HardcaseError(f"the generator's encode gave a {type(first).__name__}, not a tensor.")
    return first


def supplied_card(net: nn.Module, name: str) -> dict[str, Any]:
    """What is known of a generator of the user's own before it is measured."""
    weights = digest_tensors(dict(net.state_dict()))
    return {"kind": "supplied", "name": name, "weights": weights}


# Generators with places: a VAE's decoder, VQ-VAE reconstructions, any module.

Meet = Callable[[int, Tensor], Tensor]


class Decoder(NormalCodes):
    """The decoder of a conditional VAE: place 0 is the code, place 1 the hidden layer, and so on.

    Args:
        vae: A VAE that is told labels.
    """

    def __init__(self, vae: Vae) -> None:
        super().__init__()
        if not vae.labels:
            raise HardcaseError(
                "this VAE does not know the class, so it cannot generate labelled images.",
                fix="--generator vae:conditional",
            )
        self.vae = vae
        self.shape = vae.shape
        self.latent = vae.latent

    early = (0, 1)

    def forward(self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
        return self.vae.decode(z, y)

    def walk(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"], meet: Meet
    ) -> Float[Tensor, "m c h w"]:
        """The image, where `meet` may change the code and every layer's output but the last."""
        decoder = self.vae.decoder
        assert isinstance(decoder, nn.Sequential)
        last = max(i for i, layer in enumerate(decoder) if any(True for _ in layer.parameters()))
        h = self.vae.with_label(meet(0, z), y)
        place = 0
        for i, layer in enumerate(decoder):
            h = layer(h)
            if i < last and any(True for _ in layer.parameters()):
                place += 1
                h = meet(place, h)
        return torch.sigmoid(h).reshape(len(z), *self.shape)


class CachedCodes(nn.Module):
    """A VQ-VAE as a generator of given classes: its samples are real images as it gives them back.

    A sample is the code of an image of its class, moved up to a tenth of the way to that of another
    one. Place 0 is the code, in units of its spread, place 1 the quantised code that is decoded.

    Args:
        net: A trained VQ-VAE.
        images: What is recalled.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images
        >>> images = toy_images(8)
        >>> net = hc.generators.VqVae(1, images.x.shape[2], width=4, code=2, book=4).eval()
        >>> label = torch.tensor([2])
        >>> z, x = hc.generators.CachedCodes(net, images).sample(label, torch.Generator())
        >>> x.shape == (1, *images.x.shape[1:])
        True
    """

    def __init__(self, net: VqVae, images: Images) -> None:
        super().__init__()
        self.net = net
        self.images = images
        self.shape = net.shape
        self.latent = math.prod(net.code_shape)
        with torch.no_grad():
            codes = net.encode(from_bytes(images.x[:64].to(_device(net))))
        self.unit = float(codes.std().clamp_min(1e-6))

    early = (1,)

    def forward(self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
        return self.walk(z, y, lambda place, features: features)

    def walk(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"], meet: Meet
    ) -> Float[Tensor, "m c h w"]:
        """The image, where `meet` may change the code and what becomes of it."""
        code = self.unit * meet(0, z).reshape(len(z), *self.net.code_shape)
        return self.net.render(meet(1, self.net.book.quantise(code))).clamp(0, 1)

    def sample(self, y: Int[Tensor, " m"], rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Codes of images of these classes, and what they give back."""
        order = self.images.y.argsort(stable=True).to(y.device)
        counts = self.images.y.bincount(minlength=len(self.images.classes)).to(y.device)
        if bool((counts[y] == 0).any()):
            raise HardcaseError("there is a class without an image to begin with.")
        drawn = torch.rand(2, len(y), generator=rng, device=y.device)
        near, far = order[(counts.cumsum(0) - counts)[y] + (drawn * counts[y]).long()]
        share = torch.rand(len(y), 1, generator=rng, device=y.device) / 10
        z = (1 - share) * self._codes(near) + share * self._codes(far)
        return z, self(z, y)

    def _codes(self, rows: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
        x = from_bytes(self.images.x[rows.cpu()].to(rows.device))
        return self.net.encode(x).flatten(1) / self.unit


class UserGenerator(NormalCodes):
    """A generator of somebody else's: a module ``z, y -> images in [0, 1]`` with two attributes.

    `latent` is the length of its code, `layers` are the names of submodules, in the order in which
    they run, whose outputs may be perturbed: tensors with a row for each image. Place 0 is the
    code, place i the output of layer i.

    Args:
        net: The module.

    Example:
        >>> import torch
        >>> import hardcase as hc
        >>> class Dense(torch.nn.Module):
        ...     latent, layers = 4, ("stem",)
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.stem = torch.nn.Linear(4, 64)
        ...     def forward(self, z, y):
        ...         return self.stem(z).sigmoid().reshape(-1, 1, 8, 8)
        >>> hc.generators.UserGenerator(Dense()).shape
        (1, 8, 8)
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        latent = getattr(net, "latent", None)
        layers = getattr(net, "layers", None)
        if not isinstance(latent, int) or not isinstance(layers, list | tuple):
            raise HardcaseError(
                "a generator of your own needs two attributes: latent (the length of its code) and"
                " layers (names of submodules).",
                fix="self.latent = 128; self.layers = ['linear', 'blocks.0']",
            )
        self.net = net.eval().requires_grad_(False)
        self.latent = latent
        self.layers = tuple(map(str, layers))
        inner = dict(net.named_modules())
        for name in self.layers:
            if name not in inner:
                raise HardcaseError(
                    f"the generator has no layer {name!r}.",
                    f"layers: {', '.join(filter(None, inner))}",
                )
        self.modules_met = [inner[name] for name in self.layers]
        with torch.no_grad():
            codes = torch.zeros(2, latent, device=_device(net))
            image = self._image(codes, torch.zeros(2, dtype=torch.int64))
        self.shape = tuple(image.shape[1:])

    @property
    def early(self) -> tuple[int, ...]:
        return tuple(range(len(self.layers) + 1))

    def forward(self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"]) -> Float[Tensor, "m c h w"]:
        return self._image(z, y)

    def walk(
        self, z: Float[Tensor, "m d"], y: Int[Tensor, " m"], meet: Meet
    ) -> Float[Tensor, "m c h w"]:
        fired = set[int]()

        def hook(place: int) -> Callable[[nn.Module, Any, Tensor], Tensor]:
            def change(layer: nn.Module, strength: Any, features: Tensor) -> Tensor:
                fired.add(place)
                return meet(place, features)

            return change

        hooks = [
            layer.register_forward_hook(hook(i)) for i, layer in enumerate(self.modules_met, 1)
        ]
        try:
            image = self._image(meet(0, z), y)
        finally:
            for handle in hooks:
                handle.remove()
        for i, name in enumerate(self.layers, 1):
            if i not in fired:
                raise HardcaseError(
                    f"layer {name!r} of the generator never ran, so it cannot be perturbed."
                )
        return image

    def _image(self, z: Tensor, y: Tensor) -> Float[Tensor, "m c h w"]:
        with guarded(f"generator {type(self.net).__name__}"):
            image: Tensor = self.net(z, y.to(z.device))
        if image.ndim != 4 or len(image) != len(z):
            raise HardcaseError(
                f"the generator gave {tuple(image.shape)} for {len(z)} codes; images are (m, c,"
                " h, w)."
            )
        return image


def _device(net: nn.Module) -> torch.device:
    return next((p.device for p in net.parameters()), torch.device("cpu"))
