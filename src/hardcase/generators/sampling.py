"""Fresh labelled images from a conditional generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hardcase.errors import NO_SEEDS, Problem
from hardcase.randomness import stream
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images


@runtime_checkable
class Sampler(Protocol):
    """A conditional generator: fresh codes of given classes, and their images."""

    @property
    def latent(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def sample(self, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]: ...


Accept = Callable[[Tensor, Tensor], Bool[Tensor, " m"]]


def fresh(
    net: Sampler,
    classes: tuple[str, ...],
    count: int,
    *,
    accept: Accept,
    labels: Int[Tensor, " l"] | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Images:
    """`count` samples, classes taking turns, each with its latent code as context.

    A sample that `accept` (8-bit image in [0, 1], label) refuses is replaced by another of its class; after twenty rounds a
    class that is never accepted is an error. `labels` restricts the classes.
    """
    device = torch.device(device)
    labels = torch.arange(len(classes)) if labels is None else labels
    wanted = labels[torch.arange(count) % len(labels)].to(device)
    rng = stream(seed, "fresh seeds", device=device)
    x = torch.zeros(count, *net.shape, dtype=torch.uint8, device=device)
    z = torch.zeros(count, net.latent, device=device)
    open_ = torch.arange(count, device=device)
    with torch.no_grad():
        for _ in range(20):
            code, image = net.sample(wanted[open_], rng)
            x[open_], z[open_] = to_bytes(image), code
            open_ = open_[~accept(from_bytes(x[open_]), wanted[open_])]
            if not len(open_):
                break
    if len(open_):
        names = sorted({classes[c] for c in wanted[open_].tolist()})
        raise Problem(
            f"the subject rejects the generator's samples of {', '.join(names)} twenty times over.",
            "A search needs seeds that the subject gets right.",
            fix="a better generator (more --epochs), or another model",
            code=NO_SEEDS,
        )
    ids = tuple(f"generated/{seed}/{i:05d}" for i in range(count))
    return Images(x.cpu(), wanted.cpu(), ids, classes, name="generated", context={"latent": z.cpu()})
