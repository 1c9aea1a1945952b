"""How images are laid out for a model that is only known by the shape it declares, and what its answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem

Array = npt.NDArray[np.generic]
SURE = 30.0
"""The lead in logits of a class that is all a model names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """How images become a model's input: normalised per channel; whole numbers 0..255 where the model takes bytes."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise Problem(
                f"mean has {len(self.mean)} values and std has {list(self.std)}; they need equal lengths and std above 0."
            )

    def array(self, x: Float[Tensor, "m c h w"], shape: Sequence[int | None], kind: np.dtype[np.generic]) -> Array:
        """`x` as an array of `kind` in the layout that `shape` (with its batch axis; None is any size) asks for."""
        pixels = x.detach().float().cpu()
        if kind.kind in "iu":
            return _laid_out((pixels * 255).round(), shape).astype(kind)
        mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) for values in (self.mean, self.std))
        return _laid_out((pixels - mean) / std, shape).astype(kind)


def _laid_out(x: Tensor, shape: Sequence[int | None]) -> Array:
    """Channels first, channels last, without channels, or flat: whatever fits the declared shape."""
    forms = (x, x.permute(0, 2, 3, 1), x.flatten(1), *([x[:, 0]] if x.shape[1] == 1 else []))
    for form in forms:
        if form.ndim == len(shape) and all(want in (None, -1, size) for want, size in zip(shape[1:], form.shape[1:])):
            return np.ascontiguousarray(form.numpy())
    declared = " x ".join("any" if size in (None, -1) else str(size) for size in shape[1:])
    raise Problem(
        f"the model takes inputs of {declared}; the images are {' x '.join(map(str, x.shape[1:]))}.",
        "Tried channels first, channels last and flat.",
        fix="data of the model's own size, or a model that resizes inside",
    )


def to_logits(answer: Array, rows: int, *, classes: int, outputs: str) -> Float[Tensor, "m k"]:
    """A model's answer for `rows` images as logits; whole numbers are labels, of which only the class is known."""
    if answer.dtype.kind in "iu":
        labels = torch.from_numpy(answer.reshape(rows, -1).astype(np.int64))
        if labels.shape[1] != 1 or int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ValueError(f"labels of shape {answer.shape} from {answer.min()} to {answer.max()}")
        return SURE * torch.nn.functional.one_hot(labels[:, 0], classes).float()
    if answer.ndim < 2 or answer.shape[0] != rows or answer.size == 0:
        raise ValueError(f"an answer of shape {answer.shape} for {rows} images; it must be (images, classes)")
    scores = torch.from_numpy(answer.reshape(rows, -1).astype(np.float32))
    return scores.clamp_min(torch.finfo(torch.float32).tiny).log() if outputs == "probabilities" else scores
