"""What a space of appearance is made of: named coordinates with units and natural ranges, in groups
that can be said.

A code is in units of the range: 0 is the image as it is, 1 (or -1) is as far as a coordinate goes.
The physical value is ``rest + reach * z``: degrees, stops, pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from hardcase.errors import Problem

Shape = tuple[int, int, int]
"""Channels, height and width of the images."""

Values = Mapping[str, Tensor]
"""Physical values by name: one number a row for a coordinate, one row of numbers for a field of
control points.
"""

CLOSE = ("°", "")
"""Units that are written without a space after the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """One thing that changes about an image.

    Args:
        name: how it is called in tables.
        unit: of the physical value, for example "°" or "stops".
        reach: what a code of 1 adds to `rest`; the natural range.
        rest: the physical value of the unchanged image.
        signed: codes lie in [-1, 1] rather than in [0, 1].
        counts: part of the severity (a direction is not: it says where, not how much).
        plus: the words for a positive code. ``{}`` is the amount with its unit, other names in
            braces are coordinates of the same group. Empty: never said by itself.
        minus: the words for a negative code.
        digits: decimals of the amount. An amount that is 0 when rounded is not said.
    """

    name: str
    unit: str
    reach: float
    rest: float = 0.0
    signed: bool = True
    counts: bool = True
    plus: str = ""
    minus: str = ""
    digits: int = 0

    @property
    def low(self) -> float:
        """The smallest code."""
        return -1.0 if self.signed else 0.0

    def amount(self, value: float) -> str:
        """The size of a physical value with its unit, such as ``6°``."""
        number = f"{abs(value):.{self.digits}f}"
        return number + self.unit if self.unit in CLOSE else f"{number} {self.unit}"

    def words(self, value: float, others: Mapping[str, str]) -> str:
        """The value as words; empty where the change is too small to be said."""
        change = value - self.rest
        template = self.plus if change * self.reach > 0 else self.minus
        if round(abs(change), self.digits) == 0 or not template:
            return ""
        return template.format(self.amount(value), **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateGroup:
    """Coordinates that belong together: what is said, and taken away, at once.

    With `axes` above 0 the group is a *field*: equal coordinates at control points over the image,
    `axes` numbers at each (first all of one axis), said as the greatest length at any point.
    """

    name: str
    coordinates: tuple[Coordinate, ...]
    axes: int = 0

    @property
    def columns(self) -> int:
        return len(self.coordinates)

    def summary(self, values: Sequence[float]) -> dict[str, tuple[float, str]]:
        """Physical values with units, by name; a field gives the greatest length at any of its
        control points, which ends at the range.
        """
        if not self.axes:
            return {c.name: (value, c.unit) for c, value in zip(self.coordinates, values)}
        points = self.columns // self.axes
        lengths = [sum(v * v for v in values[i::points]) ** 0.5 for i in range(points)]
        first = self.coordinates[0]
        return {self.name: (min(max(lengths), first.reach), first.unit)}

    def words(self, values: Sequence[float]) -> list[str]:
        """What the group did to an image, such as ``["tilted 6° clockwise"]``; [] if too little."""
        summary = self.summary(values)
        if self.axes:
            said = [self.coordinates[0].words(summary[self.name][0], {})]
        else:
            texts = {c.name: c.amount(value) for c, value in zip(self.coordinates, values)}
            said = [c.words(value, texts) for c, value in zip(self.coordinates, values)]
        return [text for text in said if text]


def alone(coordinate: Coordinate) -> CoordinateGroup:
    """A group of one coordinate, under its name."""
    return CoordinateGroup(name=coordinate.name, coordinates=(coordinate,))


def check_options(part: Any) -> None:
    """Raise a `Problem` for options of a part (a dataclass of numbers) that are no sizes: negative,
    infinite, or fewer than two control points.
    """
    for option in fields(part):
        value = getattr(part, option.name)
        if value is None:
            continue
        if not (math.isfinite(value) and value >= 0):
            raise Problem(
                f"{part.name} has {option.name}={value}; ranges are finite and not negative."
            )
        if option.name == "points" and value < 2:
            raise Problem(
                f"{part.name} has points={value}; a field needs 2 or more along each axis.",
                fix=f"{part.name}(points=5)",
            )


@runtime_checkable
class ChangeFamily(Protocol):
    """A family of changes. `stage` orders parts as light does: the scene, the air, the lens, the
    sensor.
    """

    name: ClassVar[str]
    stage: ClassVar[int]

    def groups(self, shape: Shape) -> tuple[CoordinateGroup, ...]:
        """The coordinates for images of this shape."""
        ...


@runtime_checkable
class Geometry(ChangeFamily, Protocol):
    """A part that says where each pixel is taken from; several are composed into one resampling."""

    def move(
        self, places: Float[Tensor, "m 2 h w"], values: Values, shape: Shape
    ) -> Float[Tensor, "m 2 h w"]:
        """New places (rows, columns; pixels from the centre) for those of images of this shape."""
        ...


@runtime_checkable
class Optics(ChangeFamily, Protocol):
    """A part that changes what pixels show."""

    def render(
        self, x: Float[Tensor, "m c h w"], values: Values, seed: Float[Tensor, "m c h w"]
    ) -> Float[Tensor, "m c h w"]:
        """The changed images. `seed` are the untouched ones, from which fixed random patterns
        follow.
        """
        ...
