"""Features of a network that was trained elsewhere: pooled outputs of several layers,
seen in several views.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import Problem, choice
from hardcase.models.subject import Subject
from hardcase.tensors import chunks

View = Callable[[Tensor], Tensor]


def plain(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """The image as it is."""
    return x


def flipped(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m c h w"]:
    """From left to right."""
    return x.flip(3)


def cropped(x: Float[Tensor, "m c h w"], share: float = 0.875) -> Float[Tensor, "m c h w"]:
    """The middle of the image, enlarged to its full size."""
    height, width = x.shape[2:]
    top = round((1 - share) / 2 * height)
    left = round((1 - share) / 2 * width)
    middle = x[:, :, top : height - top, left : width - left]
    return functional.interpolate(middle, size=(height, width), mode="bilinear", antialias=True)


def coarse(x: Float[Tensor, "m c h w"], share: float = 0.75) -> Float[Tensor, "m c h w"]:
    """Made smaller and larger again: fine changes are gone."""
    height, width = x.shape[2:]
    size = (max(1, round(share * height)), max(1, round(share * width)))
    small = functional.interpolate(x, size=size, mode="bilinear", antialias=True)
    return functional.interpolate(small, size=(height, width), mode="bilinear", antialias=True)


VIEWS: Mapping[str, View] = {
    "plain": plain,
    "flipped": flipped,
    "cropped": cropped,
    "coarse": coarse,
}
"""What an image is looked at as. One view costs one pass of every encoder."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an encoder makes of images: pooled features by layer, and the scores of its own head."""

    features: Mapping[str, Float[Tensor, "m _"]]
    logits: Float[Tensor, "m k"]

    @staticmethod
    def join(parts: list[Seen]) -> Seen:
        names = parts[0].features
        joined = {name: torch.cat([part.features[name] for part in parts]) for name in names}
        return Seen(joined, torch.cat([part.logits for part in parts]))


@dataclass(frozen=True, slots=True)
class Encoder:
    """A frozen network, the layers that are read, and what is known of where it comes from.

    Args:
        subject: The network with its normalisation.
        layers: Names of modules, from shallow to deep; see `depths`.
        lineage: Networks of one lineage are not independent of each other; empty where it is not
            known.
        spec: The words that name it.
        size: Side to which images are resized before the network sees them; 0: they stay.
    """

    subject: Subject
    layers: tuple[str, ...]
    lineage: str = ""
    spec: str = ""
    size: int = 0

    @property
    def hash(self) -> str:
        return self.subject.hash

    def __call__(self, x: Float[Tensor, "m c h w"]) -> Seen:
        answer = self.subject(_sized(x, self.size), dict.fromkeys(self.layers, pooled))
        return Seen(dict(answer.activations), answer.logits)

    @torch.no_grad()
    def ask(self, x: Float[Tensor, "m c h w"], *, view: str = "plain", batch: int = 32) -> Seen:
        """Features and scores of one view, in batches."""
        look = view_named(view)
        return Seen.join([self(look(x[rows])) for rows in chunks(len(x), batch)] or [self(look(x))])


def view_named(name: str) -> View:
    if name not in VIEWS:
        raise choice("view", name, tuple(VIEWS))
    return VIEWS[name]


def pooled(output: Tensor) -> Float[Tensor, "m _"]:
    """One row of numbers an image: means over the places of a map,
    first token and mean of the others, or as it is.
    """
    if output.ndim == 4:
        return output.mean((2, 3))
    if output.ndim == 3:
        return torch.cat([output[:, 0], output[:, 1:].mean(1)], 1)
    return output.flatten(1).clone()


def _sized(x: Float[Tensor, "m c h w"], size: int) -> Float[Tensor, "m c h w"]:
    if not size or x.shape[2:] == (size, size):
        return x
    return functional.interpolate(x, size=(size, size), mode="bilinear", antialias=True)


def encoder(
    net: Subject,
    x: Float[Tensor, "m c h w"],
    *,
    count: int = 3,
    lineage: str = "",
    spec: str = "",
    size: int = 0,
) -> Encoder:
    """An encoder of `net` that reads its `count` deepest resolutions; `x` is an example of the
    images.

    Args:
        net: The network with its normalisation.
        x: An image or more, to see which layers run.
        count: How many layers are read.
        lineage: See `Encoder`.
        spec: The words that name the network; its own name if empty.
        size: See `Encoder`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), *pool, nn.Linear(4, 2))
        >>> encoder(Subject(net), torch.rand(1, 3, 8, 8)).layers
        ('3',)
    """
    layers = depths(net, _sized(x, size), count=count)
    return Encoder(net, layers, lineage, spec or net.name, size)


@torch.no_grad()
def depths(net: Subject, x: Float[Tensor, "m c h w"], *, count: int = 3) -> tuple[str, ...]:
    """The last layer of each of the deepest resolutions, and the layer before the head:
    `count` layers in all.
    """
    fired = _fired(net, x)
    heads = [at for at, (_, module, _) in enumerate(fired) if isinstance(module, nn.Linear)]
    body = fired[: heads[-1]] if heads and heads[-1] else fired
    if not body:
        raise Problem(f"{net.name} has no layer whose output could be read as features.")
    *_, (before, _, shape) = body
    last = {row[2][1:]: row for row in body if len(row[2]) == 3}
    maps = [name for name, _, size in last.values() if name != before]
    if maps and len(shape) == 1 and [*last.values()][-1][2][0] == shape[0]:
        maps = maps[:-1]  # the mean over the last map is what stands before the head
    chosen = {*(maps[-(count - 1) :] if count > 1 else []), before}
    return tuple(name for name, _, _ in body if name in chosen)


Fired = tuple[str, nn.Module, tuple[int, ...]]
"""Name, module, and the shape of its output for one image, of which maps of one pixel count as
rows.
"""


def _fired(net: Subject, x: Tensor) -> list[Fired]:
    """Every layer with a tensor of its own as output, in the order in which they ran first."""
    fired = list[Fired]()

    def hook(name: str) -> Callable[[nn.Module, object, object], None]:
        def note(module: nn.Module, _: object, output: object) -> None:
            if (
                isinstance(output, Tensor)
                and output.ndim >= 2
                and name not in [row[0] for row in fired]
            ):
                pixel = output.ndim == 4 and output.shape[2:].numel() == 1
                fired.append(
                    (name, module, tuple(output.shape[1:2] if pixel else output.shape[1:]))
                )

        return note

    handles = [module.register_forward_hook(hook(name)) for name, module in net.layers().items()]
    try:
        net(x[:1])
    finally:
        for handle in handles:
            handle.remove()
    return fired
