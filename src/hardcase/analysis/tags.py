"""Tags of images: plain words for what is measured of them, before any outcome is known.

A measure is a number of an image; its tags are its lowest and its highest third of the images
given. Columns of a user's data become tags too: one for each value of a column of words, thirds of
a column of numbers. Tags describe *seeds*: those of found images enter no rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from hardcase.analysis.semantics import FEATURES, measured
from hardcase.errors import Problem
from hardcase.tensors import chunks

Column = Sequence[str] | Sequence[bool] | Sequence[float] | Tensor
Kind = Literal["figure", "photograph"]
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
        raise Problem(
            f"tags of {sorted(lengths)} images cannot be joined; they must be of the same images."
        )
    names = tuple(name for part in parts for name in part.names)
    family = tuple(name for part in parts for name in part.family)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Problem(f"two tags have the name {twice[0]!r}.", fix="rename a column")
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
    found = list[tuple[str, str, Tensor]]()
    for name, value in values.items():
        known = value[value.isfinite()]
        if not len(known) or bool(known.amin() == known.amax()):
            continue
        low, high = known.double().quantile(
            torch.tensor([1 / 3, 2 / 3], dtype=torch.float64, device=value.device)
        )
        words = WORDS.get(name, (f"low {name}", f"high {name}"))
        sides = zip(words, (value < low, value > high))
        found += [(word, name, has) for word, has in sides if bool(has.any())]
    if not found:
        some = next(iter(values.values()), torch.zeros(0))
        return Tags((), (), torch.zeros(len(some), 0, dtype=torch.bool, device=some.device))
    names, family, columns = zip(*found)
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
    grey = x.mean(1)
    border = torch.cat([grey[:, 0], grey[:, -1], grey[:, :, 0], grey[:, :, -1]], 1)
    level = border.median(1, keepdim=True).values
    plain = ((border - level).abs() < 0.1).to(grey.dtype).mean(1) > 0.9
    return "figure" if bool(plain.to(grey.dtype).mean() > 0.5) else "photograph"


def measure(
    x: Float[Tensor, "n c h w"],
    *,
    kind: Kind | Literal["auto"] = "auto",
    table: Mapping[str, Column] | None = None,
    batch: int = 256,
) -> Tags:
    """Every tag of some seeds.

    Args:
        x: Seeds in [0, 1].
        kind: Which measures suit them.
        table: Columns of the data, or whatever else is known of each seed: the class it is nearest
            to beside its own, the size of its object.
        batch: Images measured at once.
    """
    if not len(x):
        raise Problem("there are no images to tag.")
    how = MEASURES[kind_of(x) if kind == "auto" else kind]
    pieces = [how(x[part]) for part in chunks(len(x), batch)]
    values = {name: torch.cat([piece[name] for piece in pieces]).cpu() for name in pieces[0]}
    return join(thirds(values), columns(table)) if table else thirds(values)
