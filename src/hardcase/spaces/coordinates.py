"""Coordinates of a space of appearance: their names, units and natural ranges, in groups with a
description.

A code is in units of the range: 0 is the image as it is, 1 (or -1) is as far as a coordinate goes.
The physical value is ``neutral + reach * code``: degrees, stops, pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import product
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError, choice

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""

Batch = Float[Tensor, "m c h w"]
Places = Float[Tensor, "m 2 h w"]
"""Where the pixels of images are read: rows and columns, in pixels from the centre."""

Values = Mapping[str, Tensor]
"""Physical values by name: a number per row for a coordinate, a row of numbers for a field of
control points.
"""

CLOSE = ("°", "")
"""Units that are written without a space after the number."""

OF_THE_SIDE = "% of the side"
"""The unit of lengths: of the shorter side."""


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A property of an image that can change.

    Args:
        name: its name in tables.
        unit: of the physical value, for example "°" or "stops".
        reach: what a code of 1 adds to `neutral`, in the unit; below 0 where more change is less of
            something (JPEG quality).
        neutral: the physical value of the unchanged image.
        signed: codes lie in [-1, 1] rather than in [0, 1].
        counts: part of the distance (a direction is not: it says where, not how much).
        side: pixels of the shorter side, for a length in pixels that may also be in % of it.
        plus: the words for a positive code. ``{}`` is the amount with its unit, other names in
            braces are coordinates of the same group. Empty: never described by itself.
        minus: the words for a negative code.
        digits: decimals of the amount. An amount that is 0 when rounded is left out.

    Example:
        >>> quality = Coordinate("JPEG quality", "", -80.0, neutral=100.0, signed=False)
        >>> quality.low, quality.high, quality.value(0.5), quality.code(60.0)
        (20.0, 100.0, 60.0, 0.5)
    """

    name: str
    unit: str
    reach: float
    _: KW_ONLY
    neutral: float = 0.0
    signed: bool = True
    counts: bool = True
    side: int | None = None
    plus: str = ""
    minus: str = ""
    digits: int = 0

    @property
    def lowest_code(self) -> float:
        """-1 for a coordinate with an opposite, 0 for others (blur)."""
        return -float(self.signed)

    @property
    def low(self) -> float:
        """The smallest physical value of the natural range."""
        return min(self.value(self.lowest_code), self.value(1.0))

    @property
    def high(self) -> float:
        """The greatest physical value of the natural range."""
        return max(self.value(self.lowest_code), self.value(1.0))

    def value(self, code: float) -> float:
        """The physical value of a code."""
        return self.neutral + self.reach * code

    def code(self, value: float, unit: str | None = None) -> float:
        """The code of a physical value; beyond [-1, 1] where it is outside the natural range.

        Args:
            value: in `unit`.
            unit: by default that of the coordinate; "% of the side" for any length.

        Raises:
            HardcaseError: for a unit that the coordinate does not have, or a range of 0.
        """
        if unit not in (None, self.unit):
            if unit != OF_THE_SIDE or self.side is None:
                raise choice(f"unit of {self.name}", str(unit), [self.unit])
            value = value * self.side / 100
        if self.reach == 0:
            raise HardcaseError(f"{self.name} has a range of 0: only {self.neutral:g} {self.unit}.")
        return (value - self.neutral) / self.reach

    def amount(self, value: float) -> str:
        """The size of a physical value with its unit, such as ``6°``."""
        number = f"{abs(value):.{self.digits}f}"
        if self.unit in CLOSE:
            return number + self.unit
        return f"{number} {self.unit}"

    def words(self, value: float, others: Mapping[str, str]) -> str:
        """The value as words; empty where the change rounds to 0."""
        change = value - self.neutral
        template = self.minus
        if change * self.reach > 0:
            template = self.plus
        if round(abs(change), self.digits) == 0 or not template:
            return ""
        return template.format(self.amount(value), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateGroup:
    """Coordinates that are described, and removed, together.

    With `axes` above 0 the group is a *field*: equal coordinates at control points over the image,
    `axes` numbers at each (first all of one axis), described by the greatest length at any point.
    """

    name: str
    coordinates: tuple[Coordinate, ...]
    axes: int = 0

    @property
    def columns(self) -> int:
        return len(self.coordinates)

    def table(self) -> list[dict[str, Any]]:
        """Name, unit, natural range and meaning of each coordinate; a single row for a field."""
        named = {coordinate.name: coordinate for coordinate in self.coordinates}
        if self.axes:
            named = {self.name: self.coordinates[0]}
        return [
            {
                "coordinate": name,
                "unit": coordinate.unit,
                "neutral": coordinate.neutral,
                "low": coordinate.low,
                "high": coordinate.high,
                "counts": coordinate.counts,
                "columns": self.columns // len(named),
            }
            for name, coordinate in named.items()
        ]

    def summary(self, values: Sequence[float]) -> dict[str, tuple[float, str]]:
        """Physical values with units, by name; of a field the greatest length at any point."""
        if not self.axes:
            return {c.name: (value, c.unit) for c, value in zip(self.coordinates, values)}
        points = self.columns // self.axes
        lengths = [sum(v * v for v in values[i::points]) ** 0.5 for i in range(points)]
        first = self.coordinates[0]
        return {self.name: (min(max(lengths), first.reach), first.unit)}

    def words(self, values: Sequence[float]) -> list[str]:
        """What the group did to an image, such as ``["tilted 6° clockwise"]``; [] if too little."""
        if self.axes:
            longest, _ = self.summary(values)[self.name]
            texts = [self.coordinates[0].words(longest, {})]
        else:
            amounts = {c.name: c.amount(value) for c, value in zip(self.coordinates, values)}
            texts = [c.words(value, amounts) for c, value in zip(self.coordinates, values)]
        return [text for text in texts if text]


def alone(name: str, unit: str, reach: float, **how: Any) -> CoordinateGroup:
    """A group of a single coordinate, under its name; the arguments are those of `Coordinate`."""
    return CoordinateGroup(name=name, coordinates=(Coordinate(name, unit, reach, **how),))


def control_points(
    name: str, unit: str, reach: float, *, points: int, axes: Sequence[str], plus: str
) -> CoordinateGroup:
    """A field: a coordinate at each of `points` x `points` places, for each of the named axes."""
    places = [f"{row},{column}" for row, column in product(range(1, points + 1), repeat=2)]
    names = [" ".join(filter(None, (name, axis, place))) for axis, place in product(axes, places)]
    field = tuple(Coordinate(each, unit, reach, plus=plus, digits=1) for each in names)
    return CoordinateGroup(name=name, coordinates=field, axes=len(axes))


@runtime_checkable
class ChangeFamily(Protocol):
    """A family of changes. `stage` orders parts as light does: the scene, the air, the lens, the
    sensor. `patterned`: something in it is random (grain, drops, flakes).
    """

    name: ClassVar[str]
    stage: ClassVar[int]
    patterned: ClassVar[bool]

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        """The coordinates for images of this shape."""
        ...


@runtime_checkable
class Geometry(ChangeFamily, Protocol):
    """A part that gives the source position of each pixel; such parts are composed into a single
    resampling."""

    def move(self, places: Places, values: Values, shape: Shape) -> Places:
        """New places for those of images of this shape."""
        ...


@runtime_checkable
class Optics(ChangeFamily, Protocol):
    """A part that changes what pixels show."""

    def render(self, x: Batch, values: Values, key: Int[Tensor, " m"]) -> Batch:
        """The changed images. `key` is what random patterns (grain, drops) of a row follow from."""
        ...
