"""The table of corruptions: constants at the severities 0 to 5, and the one function that applies
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.corruptions import effects
from hardcase.corruptions.draws import Draws
from hardcase.errors import Problem, choice

SIDE = 224
"""The side in pixels of the images for which lengths were published."""
MOST = 5.0
Effect = Callable[[Tensor, Tensor, Draws, float], Tensor]
Lengths = Literal["relative", "pixels"]


@dataclass(frozen=True, slots=True)
class Corruption:
    """One corruption.

    Args:
        name: As in ImageNet-C.
        kind: ``noise``, ``blur``, ``weather`` or ``digital``.
        nodes: Constants at severity 0 (at which nothing changes) and at the published severities 1
            to 5.
        effect: What it does, from images, constants of each row, draws and the unit of length.
        extra: One of the four that ImageNet-C keeps apart from the fifteen of its mean corruption
            error.
    """

    name: str
    kind: str
    nodes: tuple[tuple[float, ...], ...]
    effect: Effect
    extra: bool = False

    def constants(self, severity: Float[Tensor, " m"]) -> Float[Tensor, "m p"]:
        """The constants of any severity, linear between the published ones."""
        table = torch.tensor(self.nodes, device=severity.device, dtype=severity.dtype)
        below = severity.floor().clamp(0, len(table) - 2)
        start = below.long()
        return table[start].lerp(table[start + 1], (severity - below)[:, None])


def _one(*values: float) -> tuple[tuple[float, ...], ...]:
    return tuple((value,) for value in values)


_SNOW = (
    (0.1, 0.3, 3, 0.5, 10, 4, 1, 0),
    (0.1, 0.3, 3, 0.5, 10, 4, 0.8, 1),
    (0.2, 0.3, 2, 0.5, 12, 4, 0.7, 1),
    (0.55, 0.3, 4, 0.9, 12, 8, 0.7, 1),
    (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65, 1),
    (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55, 1),
)
_SPATTER = (
    (0.65, 0.3, 4, 0.69, 0.6, 0, 0),
    (0.65, 0.3, 4, 0.69, 0.6, 0, 0.22),
    (0.65, 0.3, 3, 0.68, 0.6, 0, 0.28),
    (0.65, 0.3, 2, 0.68, 0.5, 0, 0.32),
    (0.65, 0.3, 1, 0.65, 1.5, 1, 0.32),
    (0.67, 0.4, 1, 0.65, 1.5, 1, 0.32),
)
"""The last column, how bright a drop is, is ours: it makes the mean effect that of the
reference."""
_GLASS = (
    (0, 0, 0, 0),
    (0.7, 1, 2, 1),
    (0.9, 2, 1, 1),
    (1, 2, 3, 1),
    (1.1, 3, 2, 1),
    (1.5, 4, 2, 1),
)
_JPEG = ((0, 0), *((50 / quality, 1) for quality in (25, 18, 15, 10, 7)))
_TABLE = (
    Corruption(
        "gaussian_noise", "noise", _one(0, 0.08, 0.12, 0.18, 0.26, 0.38), effects.gaussian_noise
    ),
    Corruption(
        "shot_noise", "noise", _one(0, 1 / 60, 1 / 25, 1 / 12, 1 / 5, 1 / 3), effects.shot_noise
    ),
    Corruption(
        "impulse_noise", "noise", _one(0, 0.03, 0.06, 0.09, 0.17, 0.27), effects.impulse_noise
    ),
    Corruption(
        "speckle_noise",
        "noise",
        _one(0, 0.15, 0.2, 0.35, 0.45, 0.6),
        effects.speckle_noise,
        extra=True,
    ),
    Corruption(
        "defocus_blur",
        "blur",
        ((0, 0), (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
        effects.defocus_blur,
    ),
    Corruption("glass_blur", "blur", _GLASS, effects.glass_blur),
    Corruption(
        "motion_blur",
        "blur",
        ((10, 0), (10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
        effects.motion_blur,
    ),
    Corruption(
        "zoom_blur",
        "blur",
        ((0, 12), (0.11, 12), (0.15, 16), (0.2, 11), (0.24, 13), (0.3, 11)),
        effects.zoom_blur,
    ),
    Corruption("gaussian_blur", "blur", _one(0, 1, 2, 3, 4, 6), effects.gaussian_blur, extra=True),
    Corruption("snow", "weather", _SNOW, effects.snow),
    Corruption(
        "fog", "weather", ((0, 2), (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)), effects.fog
    ),
    Corruption("spatter", "weather", _SPATTER, effects.spatter, extra=True),
    Corruption("brightness", "weather", _one(0, 0.1, 0.2, 0.3, 0.4, 0.5), effects.brightness),
    Corruption("contrast", "digital", _one(1, 0.4, 0.3, 0.2, 0.1, 0.05), effects.contrast),
    Corruption(
        "saturate",
        "digital",
        ((1, 0), (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        effects.saturate,
        extra=True,
    ),
    Corruption(
        "elastic_transform", "digital", _one(0, 12.5, 16.25, 21.25, 25, 30), effects.elastic
    ),
    Corruption("pixelate", "digital", _one(1, 0.6, 0.5, 0.4, 0.3, 0.25), effects.pixelate),
    Corruption("jpeg_compression", "digital", _JPEG, effects.jpeg),
)
CORRUPTIONS: Mapping[str, Corruption] = {one.name: one for one in _TABLE}
"""The nineteen of ImageNet-C less frost, which pastes photographs. `saturate` first pales and then
deepens: it passes the image itself between severities 2 and 3."""


def corruption(name: str) -> Corruption:
    """The corruption of that name."""
    if name not in CORRUPTIONS:
        raise choice("corruption", name, tuple(CORRUPTIONS))
    return CORRUPTIONS[name]


def corrupt(
    x: Float[Tensor, "m c h w"],
    name: str,
    severity: Float[Tensor, " m"],
    keys: Int[Tensor, " m"],
    *,
    lengths: Lengths = "relative",
) -> Float[Tensor, "m c h w"]:
    """Corrupt a batch.

    Args:
        x: Images in [0, 1] of one or three channels.
        name: One of `CORRUPTIONS`.
        severity: From 0 (nothing changes) to 5, one a row; whole numbers are the published
            severities.
        keys: What a row's random numbers are hashed from, such as the number of its seed: equal
            keys, equal noise.
        lengths: ``relative``: the lengths published for 224 pixels scale with the shorter side.
            ``pixels``: they do not.

    Returns:
        Images in [0, 1], not rounded to 8 bits.

    Example:
        >>> x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> y = corrupt(x, "fog", torch.tensor([0.0, 2.5]), torch.tensor([7, 7]))
        >>> bool((y[0] == x[0]).all()), bool((y[1] == x[1]).all())
        (True, False)
    """
    chosen = corruption(name)
    if x.shape[1] not in (1, 3) or min(x.shape[2:]) < 8:
        raise Problem(
            f"images of shape {tuple(x.shape[1:])} cannot be corrupted.",
            fix="one or three channels and at least 8 pixels a side",
        )
    if not bool(((severity >= 0) & (severity <= MOST)).all()):
        low = float(severity.min())
        high = float(severity.max())
        raise Problem(
            f"severities lie between 0 and 5; given are {low:g} to {high:g}.",
            fix="severity.clamp(0, 5)",
        )
    if not len(x):
        return x
    unit = min(x.shape[2:]) / SIDE if lengths == "relative" else 1.0
    constants = chosen.constants(severity.to(x))
    changed = chosen.effect(x, constants, Draws(keys.to(x.device)), unit).clamp(0, 1)
    return torch.where((severity.to(x.device) == 0)[:, None, None, None], x, changed)
