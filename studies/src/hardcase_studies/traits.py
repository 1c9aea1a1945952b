"""Traits that have nothing to do with the class: drawn into coloured digits, or measured in any data.

An image that is drawn is a framed digit: the frame has stripes and a mark in its corner, the ground a tint; the digit has a
brightness, a colour, a stroke, a slant and a place. Each of these eight traits is a number from 0 to 1, drawn freely or tied to
the class, and each can be measured in the image again. In other data nothing is drawn: images are selected by what a measure of
the user's own says of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from hardcase.analysis.semantics import FEATURES, measured
from hardcase.errors import HardcaseError, file_member, guarded
from hardcase.randomness import stream
from hardcase.tensors import from_bytes, to_bytes
from hardcase.types import Images

SIDE = 28
FRAME = 4
INNER = slice(FRAME, SIDE - FRAME)
LOW = 0.3
HIGH = 0.7
"""A trait tied to the class lies below the one for the first class, above the other for the second.
"""


@dataclass(frozen=True, slots=True)
class Trait:
    """`fault`: what a network does that tells two classes apart by it.

    `unit` is what one is of the measure times `scale`.
    """

    name: str
    fault: str
    measure: Callable[[Tensor], Tensor]
    unit: str = "of the measure"
    scale: float = 1.0


def _figure(x: Tensor) -> Tensor:
    return measured(_green(x))[:, _column("figure")]


def _shape(name: str) -> Callable[[Tensor], Tensor]:
    """A feature of the digit's shape: of its ink after smoothing,
    as the noise of single pixels has no shape.
    """

    def measure(x: Tensor) -> Tensor:
        smooth = _smooth(x)
        ground, top = _levels(smooth)
        ink = (smooth - ground) / (top - ground).clamp_min(1e-6)
        return measured((4 * ink - 1.5).clamp(0, 1))[:, _column(name)]

    return measure


def _thickness(x: Tensor) -> Tensor:
    """How much of the image is ink.

    Only means over many pixels are taken, in which the noise of single ones cancels.
    """
    green = _green(x)
    smooth = _smooth(x)
    ground, top = _levels(smooth)
    digit = smooth > ground + 0.75 * (top - ground)
    around = smooth < ground + 0.25 * (top - ground)
    high, low = (
        (green * part).sum((1, 2, 3)) / part.sum((1, 2, 3)).clamp_min(1) for part in (digit, around)
    )
    return (green.mean((1, 2, 3)) - low) / (high - low).clamp_min(1e-6)


def _green(x: Tensor) -> Tensor:
    """The digit on its ground, from the channel that no tint touches."""
    return x[:, 1:2, INNER, INNER]


def _smooth(x: Tensor) -> Tensor:
    return functional.avg_pool2d(functional.pad(_green(x), (1, 1, 1, 1), mode="replicate"), 3, 1)


def _levels(smooth: Tensor) -> tuple[Tensor, Tensor]:
    """What the ground and the digit's strongest places look like."""
    ground, top = smooth.flatten(1).quantile(torch.tensor([0.2, 0.97], device=smooth.device), dim=1)
    return ground[:, None, None, None], top[:, None, None, None]


def _column(name: str) -> int:
    return [feature.name for feature in FEATURES].index(name)


def _tint(x: Tensor) -> Tensor:
    inner = x[:, :, INNER, INNER]
    ground = (
        torch.cat([inner[:, :, 0], inner[:, :, -1], inner[:, :, :, 0], inner[:, :, :, -1]], 2)
        .median(2)
        .values
    )
    return ground[:, 2] - ground[:, 0]


def _saturation(x: Tensor) -> Tensor:
    inner = x[:, :, INNER, INNER]
    digit = inner[:, 1] > inner[:, 1].amax((1, 2), keepdim=True) * 0.7
    blue, green = ((inner[:, i] * digit).sum((1, 2)) for i in (2, 1))
    return 1 - blue / green.clamp_min(1e-6)


def _mark(x: Tensor) -> Tensor:
    return x[:, :, :FRAME, :FRAME].mean((1, 2, 3))


def _texture(x: Tensor) -> Tensor:
    band = x[:, :, -FRAME:].mean((1, 2))
    return band[:, _stripes()].mean(1) - band[:, ~_stripes()].mean(1)


def _stripes() -> Bool[Tensor, " w"]:
    return torch.arange(SIDE) % 4 < 2


FEW = 10
"""Images that a share, or a network to be taught, needs at least."""
GREY = 255.0
"""Grey levels in a brightness of 1."""
TRAITS = (
    Trait("tint", "by the colour of the background", _tint, "levels of blue over red", GREY),
    Trait("brightness", "by how bright the digit is", _figure, "grey levels", GREY),
    Trait(
        "saturation", "by how strong the digit's colour is", _saturation, "% of full colour", 100
    ),
    Trait("mark", "by a mark in the corner", _mark, "grey levels", GREY),
    Trait("thickness", "by the width of the strokes", _thickness, "% of the image inked", 100),
    Trait("slant", "by the way the digit leans", _shape("slant"), "columns a row"),
    Trait("position", "by where the digit stands", _shape("x"), "pixels", SIDE - 2 * FRAME),
    Trait("texture", "by stripes in the frame", _texture, "grey levels", GREY),
)
NAMES = tuple(trait.name for trait in TRAITS)


def render(
    digits: Float[Tensor, "n 1 28 28"], traits: Float[Tensor, "n f"]
) -> Float[Tensor, "n 3 28 28"]:
    """Grey digits as images with these traits, in the order of `TRAITS`."""
    tint, light, colour, mark, thick, slant, place, texture = (
        column[:, None, None] for column in traits.unbind(1)
    )
    ink = _placed(digits, thick, slant, place).clamp(0, 1)
    level = 0.45 + 0.55 * light
    figure = torch.stack(
        [level.expand_as(ink), level.expand_as(ink), (level * (1 - 0.9 * colour)).expand_as(ink)], 1
    )
    ground = torch.stack([0.6 * (1 - tint), torch.full_like(tint, 0.05), 0.6 * tint], 1)
    inner = ground * (1 - ink[:, None]) + figure * ink[:, None]
    sign = torch.where(_stripes(), 1.0, -1.0)
    x = (0.5 + 0.4 * texture * sign).expand(-1, SIDE, SIDE)[:, None].repeat(1, 3, 1, 1)
    x[:, :, INNER, INNER] = inner
    x[:, :, :FRAME, :FRAME] = (0.1 + 0.85 * mark)[:, None]
    return x


def _placed(
    digits: Tensor, thick: Tensor, slant: Tensor, place: Tensor
) -> Float[Tensor, "n 20 20"]:
    """The digit with broader strokes, leaning, and moved sideways."""
    broad = functional.max_pool2d(digits, 3, 1, 1)
    x = digits + (broad - digits) * thick[:, None]
    lean = 0.8 * (slant - 0.5).flatten()
    move = 0.5 * (0.5 - place).flatten()
    zero = torch.zeros(len(x))
    rows = torch.stack([zero + 1.15, lean * 1.15, move, zero, zero + 1.15, zero], 1).reshape(
        -1, 2, 3
    )
    grid = functional.affine_grid(
        rows, [len(x), 1, SIDE - 2 * FRAME, SIDE - 2 * FRAME], align_corners=False
    )
    return functional.grid_sample(x, grid, align_corners=False).squeeze(1)


def world(
    digits: Images,
    pair: tuple[int, int],
    *,
    tied: str | None = None,
    swapped: bool = False,
    mislabelled: float = 0.0,
    copies: int = 4,
    seed: int = 0,
) -> Images:
    """Each digit of the two classes `copies` times with free traits; `tied` follows the class, or
    the other one if `swapped`.

    A share of `mislabelled` images shows the other class's digit, so that a tied trait is the one
    thing to go by.
    """
    chosen = digits.take(
        ((digits.y == pair[0]) | (digits.y == pair[1])).nonzero().squeeze(1).repeat(copies)
    )
    wrong = (
        torch.rand(len(chosen), generator=stream(seed, "mislabelled", digits.split)) < mislabelled
    )
    label = ((chosen.y == pair[1]) ^ wrong).long()
    traits = torch.rand(
        len(label), len(TRAITS), generator=stream(seed, "traits", digits.split, tied or "free")
    )
    if tied is not None:
        column = NAMES.index(tied)
        high = (label == 1) ^ swapped
        traits[:, column] = torch.where(
            high, HIGH + (1 - HIGH) * traits[:, column], LOW * traits[:, column]
        )
    names = tuple(f"{name}/{i}" for i, name in enumerate(chosen.id))
    x = to_bytes(render(from_bytes(chosen.x), traits))
    return Images(
        x,
        label,
        names,
        tuple(digits.classes[c] for c in pair),
        f"faults-{tied or 'free'}",
        digits.split,
    )


def measures(x: Float[Tensor, "m c h w"], traits: Sequence[Trait] = TRAITS) -> Float[Tensor, "m f"]:
    """What the traits look like in the images, in their order."""
    if not len(x):
        return x.new_zeros(0, len(traits))
    return torch.stack([trait.measure(x).to(x.dtype) for trait in traits], 1)


def own_trait(spec: str) -> Trait:
    """The trait that ``FILE.py:FUNCTION`` measures: images (m, c, h, w) in [0, 1] to m numbers."""
    path, _, member = spec.partition(":")
    function = file_member(Path(path), member)
    name = getattr(function, "__name__", member)

    def measure(x: Tensor) -> Tensor:
        with guarded(f"the measure {spec}"):
            values = torch.as_tensor(function(x))
        if values.shape != (len(x),) or not bool(values.isfinite().all()):
            raise HardcaseError(
                f"{spec} gave a result of shape {tuple(values.shape)} for {len(x)} images; one"
                " finite number for each is wanted."
            )
        return values.double()

    return Trait(name, f"by {spec}", measure)


def selected(
    images: Images,
    pair: tuple[int, int],
    trait: Trait,
    *,
    tied: bool,
    swapped: bool = False,
    mislabelled: float = 0.0,
    seed: int = 0,
) -> Images:
    """Images of two classes; with `tied`, only those whose trait is low for the first class and
    high for the second, or the other way round if `swapped`.

    Low and high are the lowest and the highest 30 % of both classes together.
    """
    chosen = images.take(((images.y == pair[0]) | (images.y == pair[1])).nonzero().squeeze(1))
    label = (chosen.y == pair[1]).long()
    wrong = torch.rand(len(chosen), generator=stream(seed, "own", images.split)) < mislabelled
    label = torch.where(wrong, 1 - label, label)
    if tied:
        value = trait.measure(from_bytes(chosen.x)).double()
        low, high = value.quantile(torch.tensor([LOW, HIGH], dtype=torch.float64)).tolist()
        upper = (label == 1) ^ swapped
        kept = torch.where(upper, value >= high, value <= low).nonzero().squeeze(1)
        chosen = chosen.take(kept)
        label = label[kept]
    if len(label) < FEW or len(set(label.tolist())) < 2:
        raise HardcaseError(
            f"only {len(label)} images of {images.name} have {trait.name} tied to their class; a"
            " network cannot be taught by so few.",
            fix="more data, or two classes that both vary in it",
        )
    names = tuple(images.classes[c] for c in pair)
    word = f"own-{trait.name}-{tied}-{swapped}"
    return replace(chosen, y=label, classes=names, name=word, context={})
