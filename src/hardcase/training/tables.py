"""The optimisers, schedules and augmentations that a recipe may name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hardcase.errors import choice

Optimiser = Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer]
Schedule = Callable[[float], float]
"""The share of the training that is done (0 to 1) gives the factor of the learning rate."""
Augment = Callable[[Tensor, torch.Generator], Tensor]
_Row = TypeVar("_Row")


def pick(kind: str, name: str, table: dict[str, _Row]) -> _Row:
    """The row called `name`, or an error that lists the names there are."""
    if name not in table:
        raise choice(kind, name, list(table))
    return table[name]


def _adam(parameters: Iterable[nn.Parameter], lr: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay, fused=True)


def _sgd(parameters: Iterable[nn.Parameter], lr: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, weight_decay=decay, momentum=0.9, nesterov=True, fused=True)


def _adadelta(parameters: Iterable[nn.Parameter], lr: float, decay: float) -> torch.optim.Optimizer:
    return torch.optim.Adadelta(parameters, lr=lr, weight_decay=decay)


OPTIMISERS: dict[str, Optimiser] = {"adam": _adam, "sgd": _sgd, "adadelta": _adadelta}


def _constant(done: float) -> float:
    return 1.0


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _warm(done: float, rise: float = 0.1) -> float:
    """Up in the first tenth, then down along a cosine."""
    return (done + 0.01) / (rise + 0.01) if done < rise else _cosine((done - rise) / (1 - rise))


def _stairs(done: float) -> float:
    """A tenth after two and after four fifths, as ARGUS's every 20 of 50 epochs."""
    return 0.1 ** int(done / 0.4 + 1e-9)


SCHEDULES: dict[str, Schedule] = {"constant": _constant, "cosine": _cosine, "warm": _warm, "stairs": _stairs}


def crop(x: Float[Tensor, "m c h w"], reach: int, rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every image moved by up to `reach` pixels each way, black coming in at the edges."""
    count, _, height, width = x.shape
    offset = torch.randint(0, 2 * reach + 1, (2, count, 1), generator=rng, device=x.device)
    rows = offset[0] + torch.arange(height, device=x.device)
    columns = offset[1] + torch.arange(width, device=x.device)
    image = torch.arange(count, device=x.device)[:, None, None]
    padded = functional.pad(x, (reach, reach, reach, reach)).permute(0, 2, 3, 1)
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def flip(x: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "m c h w"]:
    """Every other image, by chance, seen in a mirror."""
    mirrored = torch.rand(len(x), 1, 1, 1, generator=rng, device=x.device) < 0.5
    return torch.where(mirrored, x.flip(3), x)


def _none(x: Tensor, rng: torch.Generator) -> Tensor:
    return x


def _shift(x: Tensor, rng: torch.Generator) -> Tensor:
    return crop(x, 2, rng)


def _crop_flip(x: Tensor, rng: torch.Generator) -> Tensor:
    return flip(crop(x, 4, rng), rng)


AUGMENTS: dict[str, Augment] = {"none": _none, "shift": _shift, "flip": flip, "crop-flip": _crop_flip}
