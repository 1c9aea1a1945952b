"""Spaces of appearance: the same thing, bent, seen from elsewhere, in another light, through
another camera.

No generator and no training: a code says how much of what is done to the seed's own image. Code 0
is the image itself, byte for byte; every coordinate has a name, a unit and a natural range, so that
a finding can be told in words.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import Problem, choice
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
from hardcase.spaces.geometry import Camera, Warp, centred_places, resample
from hardcase.spaces.optics import Focus, Light, Weather
from hardcase.spaces.sensor import Sensor
from hardcase.tensors import constant, length, tiled
from hardcase.types import Seeds

PARTS: Mapping[str, type[ChangeFamily]] = {
    part.name: part for part in (Warp, Camera, Light, Weather, Focus, Sensor)
}
"""The parts that `appearance` knows, in the order in which an image passes through them."""


@space("appearance", needs="nothing", paper="ours")
@dataclass(frozen=True, slots=True)
class Appearance:
    """Warp, camera, light, weather, focus and sensor changes of the seed's own image, or products.

    A product's code is the concatenation of its parts' codes, as they are written. Images pass
    through parts as light does, whatever order they are written in: scene, camera, light, weather,
    lens, sensor. Geometric parts make one resampling. Codes are in units of each coordinate's
    range, so `project` clamps to [-1, 1] (or [0, 1] for what has no opposite, such as blur).

    Args:
        parts: the factors, each kind at most once.
        shape: channels, height and width of the images.

    Example:
        >>> space = appearance("camera*light", shape=(3, 32, 32))
        >>> z = torch.zeros(1, space.size)
        >>> z[0, space.names.index("rotation")] = 0.5
        >>> z[0, space.names.index("exposure")] = -0.7
        >>> space.words(z)
        ['tilted 6° clockwise, 0.7 stops darker']
    """

    parts: tuple[ChangeFamily, ...]
    shape: Shape
    keeps_code: bool = True

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        if not names:
            raise Problem(
                "a space of appearance needs a part.",
                f"known: {', '.join(PARTS)}",
                fix="camera*light",
            )
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Problem(
                f"{'*'.join(names)} has {twice[0]!r} twice.", fix="*".join(dict.fromkeys(names))
            )
        if self.shape[0] not in (1, 3):
            raise Problem(
                f"images have {self.shape[0]} channels.",
                "spaces of appearance know grey images (1) and colour images (3).",
            )

    @property
    def name(self) -> str:
        return "*".join(part.name for part in self.parts)

    @property
    def groups(self) -> tuple[CoordinateGroup, ...]:
        """What is said, and can be taken away, at once; in the order of the code."""
        return tuple(group for groups in _groups(self.parts, self.shape) for group in groups)

    @property
    def coordinates(self) -> tuple[Coordinate, ...]:
        """The columns of a code."""
        return tuple(coordinate for group in self.groups for coordinate in group.coordinates)

    @property
    def names(self) -> list[str]:
        return [coordinate.name for coordinate in self.coordinates]

    @property
    def size(self) -> int:
        """The length of a code."""
        return len(self.coordinates)

    def encode(
        self, x: Float[Tensor, "n c h w"], y: Int[Tensor, " n"], rng: Rng
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        self._check(x)
        return torch.zeros(len(x), self.size, device=x.device, dtype=x.dtype), {}

    def decode(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m c h w"]:
        self._check(origin.x)
        return tiled(self._rendered, z, origin.x.detach())

    def _rendered(self, z: Tensor, seed: Tensor) -> Tensor:
        """Images of whole tiles of rows: the last bits of a vectorised function depend on its
        place.
        """
        values = self._by_part(self.values(z))
        x = self._moved(seed, values)
        for part in sorted(self.parts, key=lambda part: part.stage):
            if isinstance(part, Optics):
                x = part.render(x, values[part.name], seed)
        return x

    def project(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, "m d"]:
        low = self._column("low", z)
        return torch.minimum(torch.maximum(z, low), torch.ones_like(low))

    def distance(self, z: Float[Tensor, "m d"], origin: Seeds) -> Float[Tensor, " m"]:
        """The L2 norm of the severities of all groups: 1 is one kind of change at the end of its
        natural range.
        """
        return length(self.severity(z))

    def severity(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m g"]:
        """How much of each group: the root mean square of its codes, 0 for none and 1 for all at
        the end of the range.

        Coordinates that only say a direction (the angle of a motion) do not count.
        """
        shares = [
            c.counts / sum(other.counts for other in group.coordinates) ** 0.5
            for group in self.groups
            for c in group.coordinates
        ]
        weighed = z * constant(tuple(shares), z.dtype, z.device)
        return torch.stack([length(piece) for piece in self._split(weighed)], 1)

    def removed(self, z: Float[Tensor, "m d"], mask: Bool[Tensor, "m g"]) -> Float[Tensor, "m d"]:
        """Codes without the groups that `mask` names, row by row: what a search for the smallest
        sufficient change tries.
        """
        counts = torch.tensor([group.columns for group in self.groups], device=z.device)
        return z.masked_fill(mask.repeat_interleave(counts, dim=1, output_size=self.size), 0)

    def values(self, z: Float[Tensor, "m d"]) -> Float[Tensor, "m d"]:
        """Physical values of every coordinate, in its unit."""
        return self._column("rest", z) + z * self._column("reach", z)

    def _column(self, name: str, z: Tensor) -> Float[Tensor, " d"]:
        """One property of every coordinate, beside codes."""
        values = tuple(getattr(coordinate, name) for coordinate in self.coordinates)
        return constant(values, z.dtype, z.device)

    def describe(self, z: Float[Tensor, "m d"]) -> list[dict[str, tuple[float, str]]]:
        """Row by row, values with units by name; a field of control points gives its greatest
        length.

        Example:
            >>> appearance("camera", shape=(1, 28, 28)).describe(torch.ones(1, 7))[0]["rotation"]
            (11.0, '°')
        """
        rows = self._split_rows(z)
        return [
            {
                name: said
                for group, values in zip(self.groups, row)
                for name, said in group.summary(values).items()
            }
            for row in rows
        ]

    def words(self, z: Float[Tensor, "m d"]) -> list[str]:
        """Row by row, what was done to the image, such as ``tilted 6° clockwise, 0.7 stops
        darker``.
        """
        groups = self.groups
        said = [
            [text for group, values in zip(groups, row) for text in group.words(values)]
            for row in self._split_rows(z)
        ]
        return [", ".join(texts) or "unchanged" for texts in said]

    def to_record(self) -> dict[str, Any]:
        """What run.json keeps of this space; `from_record` makes it again."""
        return {"text": "*".join(map(_text, self.parts)), "shape": list(self.shape)}

    @staticmethod
    def from_record(record: Mapping[str, Any]) -> Appearance:
        """The space that `to_record` wrote.

        Example:
            >>> space = appearance("warp(points=4)*light", shape=(1, 28, 28))
            >>> Appearance.from_record(space.to_record()) == space
            True
        """
        return appearance(str(record["text"]), shape=tuple(map(int, record["shape"])))

    def _moved(self, seed: Tensor, values: Mapping[str, Mapping[str, Tensor]]) -> Tensor:
        moving = [
            part
            for part in sorted(self.parts, key=lambda p: -p.stage)
            if isinstance(part, Geometry)
        ]
        if not moving:
            return seed
        places = centred_places(self.shape, seed).expand(len(seed), -1, -1, -1)
        for part in moving:
            places = part.move(places, values[part.name], self.shape)
        return resample(seed, places)

    def _by_part(self, values: Float[Tensor, "m d"]) -> dict[str, dict[str, Tensor]]:
        pieces = iter(self._split(values))
        found = dict[str, dict[str, Tensor]]()
        for part, groups in zip(self.parts, _groups(self.parts, self.shape)):
            own = found.setdefault(part.name, {})
            for group in groups:
                piece = next(pieces)
                if group.axes:
                    own[group.name] = piece
                else:
                    own.update({c.name: piece[:, i] for i, c in enumerate(group.coordinates)})
        return found

    def _split(self, z: Float[Tensor, "m d"]) -> tuple[Tensor, ...]:
        return torch.split(z, [group.columns for group in self.groups], dim=1)

    def _split_rows(self, z: Float[Tensor, "m d"]) -> list[list[list[float]]]:
        """Physical values as plain numbers: rows, groups, coordinates."""
        pieces = [piece.tolist() for piece in self._split(self.values(z.detach()))]
        return [[piece[row] for piece in pieces] for row in range(len(z))]

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self.shape:
            raise Problem(
                f"this space is for images of shape {self.shape}, not {tuple(x.shape[1:])}.",
                fix=f"appearance({self.name!r}, shape={tuple(x.shape[1:])})",
            )


@lru_cache(maxsize=64)
def _groups(
    parts: tuple[ChangeFamily, ...], shape: Shape
) -> tuple[tuple[CoordinateGroup, ...], ...]:
    """The groups of each part, made once: every decoded batch asks for them."""
    return tuple(part.groups(shape) for part in parts)


def appearance(text: str, *, shape: tuple[int, ...]) -> Appearance:
    """The space that a text names: parts joined by ``*``, options in brackets.

    Args:
        text: for example ``"warp*light"`` or ``"warp(points=5, reach=0.03)*light(stops=0.5)"``.
        shape: channels, height and width of the images.

    Raises:
        Problem: for a name or an option that does not exist; it lists those that do.

    Example:
        >>> appearance("warp(points=4)*light", shape=(1, 28, 28)).size
        51
    """
    if len(shape) != 3:
        raise Problem(
            f"shape is {shape}; it is channels, height and width.", fix="shape=(3, 224, 224)"
        )
    factors = re.findall(r"[^*(]+(?:\([^)]*\)\s*)?", text)
    if "*".join(factors) != text:
        raise Problem(
            f"{text!r} is not a product of parts.", f"known: {', '.join(PARTS)}", fix="camera*light"
        )
    return Appearance(tuple(_part(factor) for factor in factors), (shape[0], shape[1], shape[2]))


def _text(part: ChangeFamily) -> str:
    """A part as `appearance` reads it, with the options that differ from its defaults."""
    usual: Any = PARTS[part.name]()
    own = [field.name for field in fields(usual)]
    options = [
        f"{name}={getattr(part, name)!r}"
        for name in own
        if getattr(part, name) != getattr(usual, name)
    ]
    return f"{part.name}({', '.join(options)})" if options else part.name


def _part(text: str) -> ChangeFamily:
    name, _, rest = (piece.strip() for piece in text.partition("("))
    if name not in PARTS:
        raise choice("part of appearance", name, list(PARTS))
    made: Any = PARTS[name]
    known = {field.name: "int" in str(field.type) for field in fields(made)}
    options = dict[str, float]()
    for pair in filter(None, (piece.strip() for piece in rest.rstrip(" )").split(","))):
        key, _, value = (piece.strip() for piece in pair.partition("="))
        if key not in known:
            raise choice(f"option of {name}", key, list(known))
        options[key] = _number(name, key, value, whole=known[key])
    part: ChangeFamily = made(**options)
    return part


def _number(part: str, key: str, text: str, *, whole: bool) -> float:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Problem(
            f"{part} has {key}={text!r}, which is not a number.", fix=f"{part}({key}=0.05)"
        )
    if whole and not isinstance(value, int):
        raise Problem(f"{part} has {key}={text}, which is not a whole number.")
    return value
