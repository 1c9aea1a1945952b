"""Other generators with places: a VAE's decoder, VQ-VAE reconstructions, any module."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hardcase.errors import Problem, guarded
from hardcase.generators.gan import NormalCodes
from hardcase.generators.vae import Vae
from hardcase.generators.vqvae import VqVae
from hardcase.tensors import from_bytes
from hardcase.types import Images

Meet = Callable[[int, Tensor], Tensor]


class Decoder(NormalCodes):
    """The decoder of a conditional VAE: place 0 is the code, place 1 the hidden layer, and so on.

    Args:
        vae: A VAE that is told labels.
    """

    def __init__(self, vae: Vae) -> None:
        super().__init__()
        if not vae.labels:
            raise Problem(
                "this VAE is not told the class, so it cannot make labelled seeds.",
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


class Recalled(nn.Module):
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
        >>> z, x = hc.generators.Recalled(net, images).sample(label, torch.Generator())
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
            some = net.encode(from_bytes(images.x[:64].to(_device(net))))
        self.unit = float(some.std().clamp_min(1e-6))

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
            raise Problem("there is a class without an image to begin with.")
        drawn = torch.rand(2, len(y), generator=rng, device=y.device)
        near, far = order[(counts.cumsum(0) - counts)[y] + (drawn * counts[y]).long()]
        share = torch.rand(len(y), 1, generator=rng, device=y.device) / 10
        z = (1 - share) * self._codes(near) + share * self._codes(far)
        return z, self(z, y)

    def _codes(self, rows: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
        x = from_bytes(self.images.x[rows.cpu()].to(rows.device))
        return self.net.encode(x).flatten(1) / self.unit


class Supplied(NormalCodes):
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
        >>> hc.generators.Supplied(Dense()).shape
        (1, 8, 8)
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        latent = getattr(net, "latent", None)
        layers = getattr(net, "layers", None)
        if not isinstance(latent, int) or not isinstance(layers, list | tuple):
            raise Problem(
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
                raise Problem(
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
            def change(layer: nn.Module, given: Any, features: Tensor) -> Tensor:
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
                raise Problem(
                    f"layer {name!r} of the generator never ran, so it cannot be perturbed."
                )
        return image

    def _image(self, z: Tensor, y: Tensor) -> Float[Tensor, "m c h w"]:
        with guarded(f"generator {type(self.net).__name__}"):
            image: Tensor = self.net(z, y.to(z.device))
        if image.ndim != 4 or len(image) != len(z):
            raise Problem(
                f"the generator gave {tuple(image.shape)} for {len(z)} codes; images are (m, c,"
                " h, w)."
            )
        return image


def _device(net: nn.Module) -> torch.device:
    return next((p.device for p in net.parameters()), torch.device("cpu"))
