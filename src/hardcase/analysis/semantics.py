"""Measurable features of images, in batches: light, colour, strokes, place and detail; and tags,
plain words for what is measured, before any outcome is known.

An image is a background (the median of its border) and a figure (whatever differs from it, dark or
light, weighted by how much). Lengths are shares of the image's side; hue is a share of a turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional

from hardcase.errors import HardcaseError
from hardcase.tensors import chunks, from_bytes, per_row

EMPTY = 1e-6
FIVE_DEGREES = 0.087
PIXEL = 1 / 28
"""A pixel of the images by whose size a length is seen; larger ones are seen at the same size."""


class Feature(NamedTuple):
    """A number of an image, what moves and the words for its rise and fall, and the least change
    that a person can be expected to see. `turns`: it lies on a circle of length 1."""

    name: str
    what: str
    ways: tuple[str, str]
    noticeable: float
    measure: Callable[[_Parts], Tensor]
    turns: bool = False

    @property
    def up(self) -> str:
        return f"{self.what} {self.ways[0]}"

    @property
    def down(self) -> str:
        return f"{self.what} {self.ways[1]}"


class _Parts(NamedTuple):
    """What several features share."""

    x: Float[Tensor, "m c h w"]
    grey: Float[Tensor, "m h w"]
    background: Float[Tensor, " m"]
    ink: Float[Tensor, "m h w"]

    @staticmethod
    def of(x: Float[Tensor, "m c h w"]) -> _Parts:
        grey = x.mean(1)
        border = torch.ones(grey.shape[1:], dtype=torch.bool, device=x.device)
        border[2:-2, 2:-2] = False
        level = grey[:, border].median(1).values
        return _Parts(x, grey, level, (grey - level[:, None, None]).abs())

    @property
    def weight(self) -> Float[Tensor, "m h w"]:
        """Ink that sums to 1; even where there is none."""
        return (self.ink + EMPTY) / (self.ink + EMPTY).sum((1, 2), keepdim=True)

    def mean(self, values: Tensor) -> Float[Tensor, " m"]:
        """The mean of a value of each pixel, weighted by ink."""
        return (self.weight * values).sum((1, 2))

    def places(self) -> tuple[Tensor, Tensor]:
        """Columns to the right and rows downwards, from -0.5 to 0.5."""
        h, w = self.grey.shape[1:]
        down = (torch.arange(h, device=self.grey.device) + 0.5) / h - 0.5
        right = (torch.arange(w, device=self.grey.device) + 0.5) / w - 0.5
        return right.expand(h, w), down[:, None].expand(h, w)

    def centred(self) -> tuple[Tensor, Tensor]:
        right, down = self.places()
        return right - self.mean(right)[:, None, None], down - self.mean(down)[:, None, None]

    def figure(self) -> Bool[Tensor, "m h w"]:
        """Pixels with at least half of the strongest ink."""
        return self.ink > self.ink.amax((1, 2), keepdim=True).clamp_min(EMPTY) / 2


def _figure_level(p: _Parts) -> Tensor:
    inside = p.figure()
    return (p.grey * inside).sum((1, 2)) / inside.sum((1, 2)).clamp_min(1)


def _hue(p: _Parts) -> Tensor:
    """The direction of the mean colour on the circle red, green, blue; 0 for grey."""
    mean = p.x.mean((2, 3))
    if mean.shape[1] != 3:
        return torch.zeros_like(mean[:, 0])
    red, green, blue = mean.unbind(1)
    across = 3**0.5 * (green - blue)
    along = 2 * red - green - blue
    grey = across.abs() + along.abs() < 1e-4
    return torch.where(grey, 0.0, (torch.atan2(across, along) / (2 * torch.pi)) % 1)


def _saturation(p: _Parts) -> Tensor:
    top = p.x.amax(1)
    return (top - p.x.amin(1)).sum((1, 2)) / top.sum((1, 2)).clamp_min(EMPTY)


def _scale(p: _Parts) -> Tensor:
    right, down = p.centred()
    return p.mean(right.square() + down.square()).sqrt()


def _slant(p: _Parts) -> Tensor:
    """Columns to the right for each row upwards: the shear of the figure's second moments."""
    right, down = p.centred()
    shear = -(p.weight * right * down).sum((1, 2))
    return shear / p.mean(down.square()).clamp_min(EMPTY)


def _stroke(p: _Parts) -> Tensor:
    """Twice the area over the outline: the width of a long stroke."""
    figure = functional.pad(p.figure().float(), (1, 1, 1, 1))
    outline = figure.diff(dim=1).abs().sum((1, 2)) + figure.diff(dim=2).abs().sum((1, 2))
    return 2 * figure.sum((1, 2)) / outline.clamp_min(1) / p.grey.shape[2]


def _detail(p: _Parts) -> Tensor:
    """The share of the image's variance at waves shorter than four pixels."""
    h, w = p.grey.shape[1:]
    power = torch.fft.rfft2(p.grey - p.grey.mean((1, 2), keepdim=True)).abs().square()
    power[:, :, 1 : (w + 1) // 2] *= 2  # stand for their mirror images too
    down = torch.fft.fftfreq(h, device=p.grey.device)
    right = torch.fft.rfftfreq(w, device=p.grey.device)
    fine = (down[:, None].square() + right.square()).sqrt() > 0.25
    share: Tensor = (power * fine).sum((1, 2)) / power.sum((1, 2)).clamp_min(EMPTY)
    return share


LEVELS = 10 / 255
_BRIGHTNESS = ("got brighter", "got darker")
FEATURES = (
    Feature("brightness", "the image", _BRIGHTNESS, LEVELS, lambda p: p.grey.mean((1, 2))),
    Feature("contrast", "the contrast", ("rose", "fell"), LEVELS, lambda p: p.grey.std((1, 2))),
    Feature("background", "the background", _BRIGHTNESS, LEVELS, lambda p: p.background),
    Feature("figure", "the figure", _BRIGHTNESS, LEVELS, _figure_level),
    Feature(
        "hue",
        "the colour turned from",
        ("red towards green and blue", "blue towards green and red"),
        10 / 360,
        _hue,
        turns=True,
    ),
    Feature("saturation", "the colours got", ("stronger", "paler"), 0.1, _saturation),
    Feature("stroke", "the strokes got", ("thicker", "thinner"), PIXEL / 2, _stroke),
    Feature("slant", "the figure leaned further to the", ("right", "left"), FIVE_DEGREES, _slant),
    Feature(
        "x", "the figure moved to the", ("right", "left"), PIXEL, lambda p: p.mean(p.places()[0])
    ),
    Feature("y", "the figure moved", ("down", "up"), PIXEL, lambda p: p.mean(p.places()[1])),
    Feature("scale", "the figure", ("grew", "shrank"), PIXEL / 2, _scale),
    Feature("detail", "fine detail", ("rose", "fell"), 0.1, _detail),
)
OF_FIGURES = ("background", "figure", "stroke", "slant", "x", "y", "scale")
"""Features of a figure on a plain ground; a photograph in colour has none."""


def fitting(channels: int) -> list[int]:
    """The positions of the features that mean something in images of so many channels."""
    return [
        i for i, feature in enumerate(FEATURES) if channels == 1 or feature.name not in OF_FIGURES
    ]


def noticeable() -> Float[Tensor, " f"]:
    """The least change of each of `FEATURES` that counts as moved, in the units of `measured`."""
    return torch.tensor([feature.noticeable for feature in FEATURES])


def measured(x: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
    """Every feature of `FEATURES`, in its order.

    Args:
        x: Images in [0, 1].
    """
    if not len(x):
        return x.new_zeros(0, len(FEATURES))
    parts = _Parts.of(x)
    return torch.stack([feature.measure(parts) for feature in FEATURES], 1)


def moved(seeds: Float[Tensor, "m c h w"], tests: Float[Tensor, "m c h w"]) -> Float[Tensor, "m f"]:
    """By how much each feature of an image is above that of its original; hue by the shorter way
    round.

    Args:
        seeds: Images before.
        tests: The same after.
    """
    change = measured(tests) - measured(seeds)
    turns = torch.tensor([feature.turns for feature in FEATURES], device=change.device)
    return torch.where(turns, (change + 0.5) % 1 - 0.5, change)


def equal_noise(
    seeds: Float[Tensor, "m c h w"], tests: Float[Tensor, "m c h w"], *, rng: torch.Generator
) -> Float[Tensor, "m c h w"]:
    """The images with Gaussian noise of the tests' L2 distance: what a test shares with that is due
    to how much was changed, not to what."""
    noise = torch.randn(seeds.shape, generator=rng).to(seeds)
    lengths = [part.flatten(1).norm(dim=1) for part in (tests - seeds, noise)]
    scale = per_row(lengths[0] / lengths[1], noise)
    return torch.clamp(seeds + scale * noise, 0, 1)


# Tags. A measure is a number of an image; its tags are its lowest and its highest third of the
# images given. Columns of a user's data become tags too: one for each value of a column of words,
# thirds of a column of numbers. Tags describe *originals*: those of found images enter no rate.

Column = Sequence[str] | Sequence[bool] | Sequence[float] | Tensor
Kind = Literal["figure", "photograph"]
TOGETHER = 2**22
"""Numbers of the images that are measured at a time, at most: 27 photographs of 224 pixels."""
LEAST_SHARE = 0.02
"""A value of a column of words is a tag if at least this share of the images has it, and some have
not."""
EDGE = 0.25
"""Strength of a Sobel gradient from which a pixel counts as an edge."""


@dataclass(frozen=True, slots=True)
class Tags:
    """Yes or no for each image (axis `n`) and tag (axis `t`).

    Args:
        names: The tags, in words.
        family: What each was made from; two tags of one family are never joined.
        has: Which image has which tag.
    """

    names: tuple[str, ...]
    family: tuple[str, ...]
    has: Bool[Tensor, "n t"]

    def __len__(self) -> int:
        return len(self.names)


def join(*parts: Tags) -> Tags:
    """The tags of the same images, side by side."""
    lengths = {len(part.has) for part in parts}
    if len(lengths) != 1:
        raise HardcaseError(
            f"tags of {sorted(lengths)} images cannot be joined; they must be of the same images."
        )
    names = tuple(name for part in parts for name in part.names)
    family = tuple(name for part in parts for name in part.family)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise HardcaseError(f"two tags have the name {twice[0]!r}.", fix="rename a column")
    return Tags(names, family, torch.cat([part.has for part in parts], 1))


WORDS: Mapping[str, tuple[str, str]] = {
    "brightness": ("dark", "bright"),
    "contrast": ("low contrast", "high contrast"),
    "background": ("dark background", "bright background"),
    "figure": ("dark figure", "bright figure"),
    "saturation": ("pale colours", "strong colours"),
    "stroke": ("thin strokes", "thick strokes"),
    "slant": ("leaning left", "leaning right"),
    "x": ("figure left", "figure right"),
    "y": ("figure high", "figure low"),
    "scale": ("small figure", "large figure"),
    "detail": ("little detail", "fine detail"),
    "sharpness": ("blurred", "sharp"),
    "colourfulness": ("colourless", "colourful"),
    "edges": ("few edges", "many edges"),
    "claimed size": ("small claimed object", "large claimed object"),
    "claimed x": ("claimed object left", "claimed object right"),
    "claimed y": ("claimed object high", "claimed object low"),
}
"""Words for the lowest and the highest third of a measure; another measure gets "low NAME" and
"high NAME"."""


def thirds(values: Mapping[str, Float[Tensor, " n"]]) -> Tags:
    """Two tags a measure: its lowest and its highest third of these images. Constant measures give
    none."""
    tags = list[tuple[str, str, Tensor]]()
    for name, value in values.items():
        finite = value[value.isfinite()]
        if not len(finite) or bool(finite.amin() == finite.amax()):
            continue
        low, high = finite.double().quantile(
            torch.tensor([1 / 3, 2 / 3], dtype=torch.float64, device=value.device)
        )
        words = WORDS.get(name, (f"low {name}", f"high {name}"))
        sides = zip(words, (value < low, value > high))
        tags += [(word, name, has) for word, has in sides if bool(has.any())]
    if not tags:
        column = next(iter(values.values()), torch.zeros(0))
        return Tags((), (), torch.zeros(len(column), 0, dtype=torch.bool, device=column.device))
    names, family, columns = zip(*tags)
    return Tags(names, family, torch.stack(columns, 1))


def columns(table: Mapping[str, Column], *, least: float = LEAST_SHARE) -> Tags:
    """Tags from what else is known of each image."""
    count = len(next(iter(table.values()), ()))
    none = Tags((), (), torch.zeros(count, 0, dtype=torch.bool))
    return join(none, *(_column(name, column, least) for name, column in table.items()))


def _column(name: str, column: Column, least: float) -> Tags:
    values = column.tolist() if isinstance(column, Tensor) else list(column)
    if all(isinstance(value, bool) for value in values):
        return Tags((name,), (name,), torch.tensor(values, dtype=torch.bool)[:, None])
    if all(isinstance(value, (int, float)) for value in values):
        return thirds({name: torch.tensor(values, dtype=torch.float64)})
    words = [str(value) for value in values]
    kinds = [kind for kind in sorted(set(words)) if least <= words.count(kind) / len(words) < 1]
    has = torch.tensor([[word == kind for kind in kinds] for word in words], dtype=torch.bool)
    names = tuple(f"{name}: {kind}" for kind in kinds)
    return Tags(names, (name,) * len(kinds), has.reshape(len(words), len(kinds)))


def figure_measures(x: Float[Tensor, "m c h w"]) -> dict[str, Float[Tensor, " m"]]:
    """Measures of figures on a plain ground: those of `semantics`, without hue."""
    values = measured(x)
    return {feature.name: values[:, i] for i, feature in enumerate(FEATURES) if not feature.turns}


def photograph_measures(x: Float[Tensor, "m c h w"]) -> dict[str, Float[Tensor, " m"]]:
    """Measures of photographs: light, contrast, sharpness, colour and edges.

    Sharpness is the logarithm of the variance of the Laplacian (J. L. Pech-Pacheco et al., ICPR
    2000), colourfulness that of D. Hasler and S. Süsstrunk (2003), edges the share of pixels whose
    Sobel gradient is 0.25 or more."""
    grey = x.mean(1, keepdim=True)
    laplacian = _filtered(grey, (0, 1, 0), (1, -4, 1), (0, 1, 0))
    sobel = ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1))
    slopes = [_filtered(grey, *kernel) / 4 for kernel in (sobel, tuple(zip(*sobel)))]
    edges = (slopes[0].square() + slopes[1].square()).sqrt() >= EDGE
    measures = {
        "brightness": grey.mean((1, 2, 3)),
        "contrast": grey.flatten(1).std(1),
        "sharpness": laplacian.flatten(1).var(1).clamp_min(1e-12).log(),
        "edges": edges.to(grey.dtype).mean((1, 2, 3)),
    }
    if x.shape[1] == 3:
        red, green, blue = x.unbind(1)
        across = red - green
        along = (red + green) / 2 - blue
        spread = (across.flatten(1).var(1) + along.flatten(1).var(1)).sqrt()
        shift = (across.mean((1, 2)).square() + along.mean((1, 2)).square()).sqrt()
        measures["colourfulness"] = spread + 0.3 * shift
        measures["saturation"] = ((x.amax(1) - x.amin(1)) / x.amax(1).clamp_min(1e-6)).mean((1, 2))
    return measures


def _filtered(grey: Float[Tensor, "m 1 h w"], *kernel: tuple[float, ...]) -> Tensor:
    return functional.conv2d(grey, torch.tensor(kernel).to(grey)[None, None])


MEASURES: Mapping[Kind, Callable[[Tensor], dict[str, Tensor]]] = {
    "figure": figure_measures,
    "photograph": photograph_measures,
}
"""What is measured of images of a kind."""


def kind_of(x: Float[Tensor, "m c h w"]) -> Kind:
    """`figure` where most images have a border of one colour, else `photograph`."""
    return _kind(_framed(x))


def _framed(x: Float[Tensor, "m c h w"]) -> Bool[Tensor, " m"]:
    """Which images have a border of one colour."""
    grey = x.mean(1)
    border = torch.cat([grey[:, 0], grey[:, -1], grey[:, :, 0], grey[:, :, -1]], 1)
    level = border.median(1, keepdim=True).values
    return ((border - level).abs() < 0.1).to(grey.dtype).mean(1) > 0.9


def _kind(framed: Bool[Tensor, " m"]) -> Kind:
    return "figure" if 2 * int(framed.sum()) > len(framed) else "photograph"


def measure(
    x: Float[Tensor, "n c h w"] | UInt8[Tensor, "n c h w"],
    *,
    kind: Kind | Literal["auto"] = "auto",
    table: Mapping[str, Column] | None = None,
    batch: int = 256,
) -> Tags:
    """Every tag of some seeds.

    Args:
        x: Originals in [0, 1], or of 8 bits.
        kind: Which measures suit them.
        table: Columns of the data, or whatever else is known of each seed: the class it is nearest
            to beside its own, the size of its object.
        batch: Images measured at once, at most.
    """
    if not len(x):
        raise HardcaseError("there are no images to tag.")
    size = min(batch, images_together(x.shape))
    return measure_parts(lambda: (x[part] for part in chunks(len(x), size)), kind=kind, table=table)


def images_together(shape: Sequence[int]) -> int:
    """How many images of this shape are measured at a time."""
    return max(1, min(256, TOGETHER // math.prod(shape[-3:])))


def measure_parts(
    parts: Callable[[], Iterable[Tensor]],
    *,
    kind: Kind | Literal["auto"] = "auto",
    table: Mapping[str, Column] | None = None,
) -> Tags:
    """Return the tags of images in parts; a second pass follows where the first part is of the
    rarer kind.
    """
    chosen = kind
    while True:
        framed = list[Tensor]()
        pieces = list[dict[str, Tensor]]()
        for images in parts():
            x = images if images.is_floating_point() else from_bytes(images)
            framed.append(_framed(x))
            if chosen == "auto":
                chosen = _kind(framed[0])
            pieces.append(MEASURES[chosen](x))
        of_most = _kind(torch.cat(framed)) if kind == "auto" else kind
        if of_most == chosen:
            break
        chosen = of_most
    values = {name: torch.cat([piece[name] for piece in pieces]).cpu() for name in pieces[0]}
    return join(thirds(values), columns(table)) if table else thirds(values)
