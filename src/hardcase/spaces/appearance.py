"""Spaces of appearance: the same object, bent, from another viewpoint, in another light, through
another camera.

No generator and no training: a code holds the amount of each change of the seed's image. Code 0
is the image itself, byte for byte; every coordinate has a name, a unit and a natural range, so that
words can describe a failure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError, choice
from hardcase.imaging.noise import WORD, content_key
from hardcase.imaging.resample import centred_places, resample
from hardcase.randomness import Rng
from hardcase.registry import space
from hardcase.spaces.coordinates import (
    ChangeFamily,
    Coordinate,
    CoordinateGroup,
    Geometry,
    Optics,
    Shape,
)
from hardcase.spaces.parts import Camera, Focus, Light, Sensor, Stroke, Warp, Weather
from hardcase.tensors import constant, in_tiles, length
from hardcase.types import Encoded, Seeds

PARTS: Mapping[str, type[ChangeFamily]] = {
    part.name: part for part in (Warp, Camera, Stroke, Light, Weather, Focus, Sensor)
}
"""The parts that `appearance` knows, in the order in which an image passes through them."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """What follows from the parts and the images' shape, worked out once for all steps."""

    groups: tuple[CoordinateGroup, ...]
    coordinates: tuple[Coordinate, ...]
    widths: list[int]
    """Columns of each group."""
    columns: dict[str, dict[str, int | slice]]
    """The position of a part's values in a code, by part and name: a number, or a field."""
    neutral: tuple[float, ...]
    reach: tuple[float, ...]
    lowest: tuple[float, ...]
    weights: tuple[float, ...]
    """What a code adds to its group's severity."""
    moving: tuple[Geometry, ...]
    """In the order in which places pass through them: from the sensor back to the scene."""
    rendering: tuple[Optics, ...]
    patterned: bool
    """Whether a part has random patterns: grain, drops, flakes."""


@lru_cache(maxsize=64)
def _layout(parts: tuple[ChangeFamily, ...], shape: Shape) -> _Layout:
    groups = list[CoordinateGroup]()
    columns = dict[str, dict[str, int | slice]]()
    start = 0
    for part in parts:
        places = columns.setdefault(part.name, {})
        for group in part.groups(shape):
            if group.axes:
                places[group.name] = slice(start, start + group.columns)
            else:
                places.update({c.name: start + i for i, c in enumerate(group.coordinates)})
            groups.append(group)
            start += group.columns
    coordinates = tuple(c for group in groups for c in group.coordinates)
    counted = [sum(c.counts for c in group.coordinates) ** 0.5 for group in groups]
    inward = sorted(parts, key=lambda part: part.stage)
    return _Layout(
        groups=tuple(groups),
        coordinates=coordinates,
        widths=[group.columns for group in groups],
        columns=columns,
        neutral=tuple(c.neutral for c in coordinates),
        reach=tuple(c.reach for c in coordinates),
        lowest=tuple(c.lowest_code for c in coordinates),
        weights=tuple(
            c.counts / root for group, root in zip(groups, counted) for c in group.coordinates
        ),
        moving=tuple(part for part in reversed(inward) if isinstance(part, Geometry)),
        rendering=tuple(part for part in inward if isinstance(part, Optics)),
        patterned=any(part.patterned for part in parts),
    )


@space("appearance", needs="nothing", paper="ours")
@dataclass(frozen=True, slots=True)
class Appearance:
    """Warp, camera, stroke, light, weather, focus and sensor changes of the original's image, or
    products of them.

    A product's code is the concatenation of its parts' codes, as they are written. Images pass
    through parts as light does, whatever order they are written in: scene, camera, light, weather,
    lens, sensor. Geometric parts are composed into a single resampling. Codes are in units of each
    coordinate's range, so `project` clamps to [-1, 1] (or [0, 1] for what has no opposite, such as
    blur).

    Args:
        parts: the factors, each kind at most once.
        shape: channels, height and width of the images.

    Example:
        >>> space = appearance("camera*light", shape=(3, 32, 32))
        >>> z = torch.zeros(1, space.size)
        >>> z[0, space.names.index("rotation")] = 0.5
        >>> z[0, space.names.index("exposure")] = -0.7
        >>> space.words(z)
        ['0.7 stops darker, tilted 6° clockwise']
    """

    parts: tuple[ChangeFamily, ...]
    shape: Shape
    keeps_code: ClassVar[bool] = True
    _layout: _Layout = field(init=False, repr=False, compare=False)

    @staticmethod
    def read(x: Tensor, places: Tensor) -> Tensor:
        """Return images as they are read at places; see `hardcase.imaging.resample.resample`."""
        return resample(x, places)

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not names:
            raise HardcaseError(
                "a space of appearance needs a part.",
                f"known: {', '.join(PARTS)}",
                fix="camera*light",
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise HardcaseError(
                f"{'*'.join(names)} has {twice[0]!r} twice.", fix="*".join(dict.fromkeys(names))
            )
        if self.shape[0] not in (1, 3):
            raise HardcaseError(
                f"images have {self.shape[0]} channels.",
                "spaces of appearance know grey images (1) and colour images (3).",
            )
        object.__setattr__(self, "_layout", _layout(self.parts, self.shape))

    @property
    def name(self) -> str:
        return "*".join(part.name for part in self.parts)

    @property
    def groups(self) -> tuple[CoordinateGroup, ...]:
        """Groups of coordinates that are described, and removed, together; in the order of the
        code."""
        return self._layout.groups

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The columns of a code."""
        return self._layout.coordinates

    @property
    def names(self) -> list[str]:
        return [coordinate.name for coordinate in self._layout.coordinates]

    @property
    def size(self) -> int:
        """The length of a code."""
        return len(self._layout.coordinates)

    def table(self) -> list[dict[str, Any]]:
        """Part, coordinate, unit, neutral value and natural range, row by row."""
        return [
            {"part": part.name, **row}
            for part in self.parts
            for group in part.groups(self.shape)
            for row in group.table()
        ]

    def encode(self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng) -> Encoded:
        self._check(x)
        return torch.zeros(len(x), self.size, device=x.device, dtype=x.dtype), {}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        self._check(origin.x)
        layout = self._layout
        none = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        pattern = origin.context.get("pattern", none)
        seeds = origin.x.detach()
        images = list[Tensor]()
        # whole tiles of rows: a vectorised function's last bits depend on its place
        for code, x, key, count in in_tiles(z, seeds, pattern):
            values = self._by_part(code)
            if (
                layout.patterned
            ):  # patterns follow from the original's own pixels, and from a sample
                key = (content_key(x) + key) & WORD
            if layout.moving:
                places = centred_places(*self.shape[1:], code).expand(len(code), -1, -1, -1)
                for part in layout.moving:
                    places = part.move(places, values[part.name], self.shape)
                x = self.read(x, places)
            for optics in layout.rendering:
                x = optics.render(x, values[optics.name], key)
            images.append(x[:count])
        return images[0] if len(images) == 1 else torch.cat(images)

    def places(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m 2 h w"] | None:
        """Where each pixel of a changed image is read (down, right), in pixels from the centre;
        None where nothing moves.
        """
        if not self._layout.moving:
            return None
        values = self._by_part(z)
        places = centred_places(*self.shape[1:], z).expand(len(z), -1, -1, -1)
        for part in self._layout.moving:
            places = part.move(places, values[part.name], self.shape)
        return places

    def _by_part(self, z: Float[Tensor, "m d"]) -> dict[str, dict[str, Tensor]]:
        physical = self.values(z)
        return {
            part: {name: physical[:, place] for name, place in places.items()}
            for part, places in self._layout.columns.items()
        }

    def project(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m d"]:
        low = constant(self._layout.lowest, z.dtype, z.device)
        return torch.minimum(torch.maximum(z, low), torch.ones_like(low))

    def distance(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, " m"]:
        """The L2 norm of all groups' severities: 1 is one change at its range's end."""
        return length(self.severity(z))

    def severity(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m g"]:
        """How much of each group: the root mean square of its codes, 1 at the end of the range."""
        weighed = z * constant(self._layout.weights, z.dtype, z.device)
        pieces = torch.split(weighed, self._layout.widths, dim=1)
        return torch.stack([length(piece) for piece in pieces], 1)

    def removed(self, z: Float[Tensor, "m d"], mask: Bool[Tensor, "m g"]) -> Float[Tensor, "m d"]:
        """Codes without the groups that `mask` names, row by row."""
        counts = torch.tensor(self._layout.widths, device=z.device)
        return z.masked_fill(mask.repeat_interleave(counts, dim=1, output_size=self.size), 0)

    def values(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        """Physical values of every coordinate, in its unit."""
        neutral = constant(self._layout.neutral, z.dtype, z.device)
        return neutral + z * constant(self._layout.reach, z.dtype, z.device)

    def describe(self, z: Float[Tensor, "m d"]) -> list[dict[str, tuple[float, str]]]:
        """Row by row, values with units by name; of a field the greatest length."""
        return [
            {
                name: amount
                for group, values in zip(self.groups, row)
                for name, amount in group.summary(values).items()
            }
            for row in self._grouped_values(z)
        ]

    def words(self, z: Float[Tensor, "m d"]) -> list[str]:
        """By row, what was done to the image, the largest change first, each as a part of what is
        possible: ``0.7 stops darker, tilted 6° clockwise``."""
        pieces = torch.split(z.detach().abs(), self._layout.widths, dim=1)
        sizes = torch.stack([piece.amax(1) for piece in pieces], dim=1).tolist()
        return [
            ", ".join(self._row_words(row, size)) or "unchanged"
            for row, size in zip(self._grouped_values(z), sizes)
        ]

    def _row_words(self, row: Sequence[Sequence[float]], sizes: Sequence[float]) -> list[str]:
        """The change of an image by each group, the largest first."""
        order = sorted(range(len(sizes)), key=lambda group: -sizes[group])
        return [text for group in order for text in self.groups[group].words(row[group])]

    def _grouped_values(self, z: Float[Tensor, "m d"]) -> list[tuple[Sequence[float], ...]]:
        """Physical values as plain numbers: rows, groups, coordinates."""
        pieces = torch.split(self.values(z.detach()), self._layout.widths, dim=1)
        return list(zip(*(piece.tolist() for piece in pieces)))

    def to_record(self) -> dict[str, Any]:
        """What run.json keeps of this space; `from_record` makes it again."""
        return {"text": "*".join(map(_text, self.parts)), "shape": list(self.shape)}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Appearance:
        """The space that `to_record` wrote."""
        return appearance(str(record["text"]), shape=tuple(map(int, record["shape"])))

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self.shape:
            raise HardcaseError(
                f"this space is for images of shape {self.shape}, not {tuple(x.shape[1:])}.",
                fix=f"appearance({self.name!r}, shape={tuple(x.shape[1:])})",
            )


def appearance(text: str, *, shape: tuple[int, ...]) -> Appearance:
    """The space that a text names: parts joined by ``*``, options in brackets.

    Args:
        text: for example ``"warp*light"`` or ``"warp(points=5, reach=0.03)*light(stops=0.5)"``.
        shape: channels, height and width of the images.

    Raises:
        HardcaseError: for a name or an option that does not exist; it lists those that do.

    Example:
        >>> appearance("warp(points=4)*light", shape=(1, 28, 28)).size
        51
    """
    if len(shape) != 3:
        raise HardcaseError(
            f"shape is {shape}; it is channels, height and width.", fix="shape=(3, 224, 224)"
        )
    factors = re.findall(r"[^*(]+(?:\([^)]*\)\s*)?", text)
    if "*".join(factors) != text:
        raise HardcaseError(
            f"{text!r} is not a product of parts.", f"known: {', '.join(PARTS)}", fix="camera*light"
        )
    return Appearance(tuple(_part(factor) for factor in factors), (shape[0], shape[1], shape[2]))


def _text(part: ChangeFamily) -> str:
    """A part as `appearance` reads it, with the options that differ from its defaults."""
    usual: Any = PARTS[part.name]()
    options = [
        f"{option.name}={getattr(part, option.name)!r}"
        for option in fields(usual)
        if getattr(part, option.name) != getattr(usual, option.name)
    ]
    if not options:
        return part.name
    return f"{part.name}({', '.join(options)})"


def _part(text: str) -> ChangeFamily:
    name, _, rest = (piece.strip() for piece in text.partition("("))
    if name not in PARTS:
        problem = choice("part of appearance", name, list(PARTS))
        raise HardcaseError(
            problem.what, *problem.why, "A space of your own: file.py:Name.", fix=problem.fix
        )
    family: Any = PARTS[name]
    types = {option.name: "int" in str(option.type) for option in fields(family)}
    options = dict[str, float]()
    for pair in filter(None, (piece.strip() for piece in rest.rstrip(" )").split(","))):
        key, _, value = (piece.strip() for piece in pair.partition("="))
        if key not in types:
            raise choice(f"option of {name}", key, list(types))
        options[key] = _number(name, key, value, whole=types[key])
    part: ChangeFamily = family(**options)
    return part


def _number(part: str, key: str, text: str, *, whole: bool) -> float:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise HardcaseError(
            f"{part} has {key}={text!r}, which is not a number.", fix=f"{part}({key}=0.05)"
        )
    if whole and not isinstance(value, int):
        raise HardcaseError(f"{part} has {key}={text}, which is not a whole number.")
    return value
