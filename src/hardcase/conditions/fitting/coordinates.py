"""What a fit of conditions can find: coordinates, and how each of them is spread.

A coordinate's values are normal around a centre, cut off as a declaration cuts them off, or even
between two ends. What is fitted is counted in *sizes*: what a moderate change of that kind is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hardcase.conditions.declared import DECLARABLE, SIGMAS, Conditions, DeclaredRange, canonical
from hardcase.errors import HardcaseError

__all__ = ["Fittable", "Spread", "conditions_of", "declared_range", "fittable"]

LEAST_DEVIATION = 0.08
"""The smallest standard deviation of a coordinate, in sizes: less is invisible."""
FARTHEST = 4.0
"""How far a centre may lie from neutral, in sizes."""
WIDEST = 2.0
"""The greatest standard deviation, in sizes."""
NO_CENTRE = 0.02
"""A centre nearer to neutral, in sizes, is neutral."""
DIGITS = 3
"""Digits of what is fitted: what a declaration writes is what was rendered."""


@dataclass(frozen=True, slots=True)
class Fittable:
    """A coordinate that can be fitted.

    Args:
        name: The coordinate, a name of `DECLARABLE`.
        size: A moderate change in its unit; negative where more change is less of something.
        centred: Whether its centre stays at neutral, since it has a direction in the plane.
    """

    name: str
    size: float
    centred: bool = False

    @property
    def one_sided(self) -> bool:
        """Whether values lie on a single side of neutral."""
        row = DECLARABLE[self.name]
        return row.neutral in (row.least, row.most)

    def bounded(self, centre: float, deviation: float) -> tuple[float, float]:
        """Return the nearest centre and deviation, in sizes, that the fit allows."""
        low = 0.0 if self.one_sided else -FARTHEST
        centre = 0.0 if self.centred else min(max(centre, low), FARTHEST)
        return centre, min(max(deviation, LEAST_DEVIATION), WIDEST)


def _rows(sizes: Mapping[str, float], centred: Sequence[str]) -> Mapping[str, Fittable]:
    return {name: Fittable(name, size, name in centred) for name, size in sizes.items()}


_CENTRED = ("shift", "view")
FIGURES = _rows(
    {
        **{"rotation": 8, "scale": 10, "shift": 5, "shear": 12, "bend": 4, "stroke": 3},
        **{"fading": 25, "defocus": 3, "resolution": 0.5, "noise": 12},
    },
    _CENTRED,
)
"""Of small grey images: figures on a plain ground."""
GREY = _rows(
    {
        **{"rotation": 6, "scale": 10, "shift": 5, "view": 8, "exposure": 0.6, "contrast": 20},
        **{"shade": 0.5, "fog": 15, "defocus": 0.8, "motion": 2, "resolution": 0.8, "noise": 8},
        "jpeg": -25,
    },
    _CENTRED,
)
"""Of grey photographs."""
COLOUR = {**GREY, **_rows({"temperature": 0.3, "tint": 0.12}, ())}
"""Of photographs in colour."""


def fittable(shape: Sequence[int], names: Sequence[str] = ()) -> tuple[Fittable, ...]:
    """Return the coordinates that are fitted for images of a shape.

    Args:
        shape: Channels, height and width.
        names: Those that are wanted; by default all that suit such images.

    Raises:
        HardcaseError: For a coordinate that cannot be fitted for such images.
    """
    table = GREY
    if shape[0] == 3:
        table = COLOUR
    elif max(shape[1:]) <= 64:
        table = FIGURES
    every = {**COLOUR, **FIGURES, **table}
    if shape[0] == 1:
        every = {name: row for name, row in every.items() if not DECLARABLE[name].colour}
    wanted = [canonical(name) for name in names] or list(table)
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise HardcaseError(
            f"{unknown[0]} cannot be fitted for images of shape {tuple(shape)}.",
            f"known: {', '.join(every)}",
        )
    return tuple(every[name] for name in dict.fromkeys(wanted))


@dataclass(frozen=True, slots=True)
class Spread:
    """How a coordinate is spread, in its unit.

    Args:
        mean: The centre.
        deviation: The standard deviation.
        even: Whether all values between two ends are equally likely; else the distribution is
            normal.
    """

    mean: float
    deviation: float
    even: bool = False

    @classmethod
    def of(cls, row: Fittable, centre: float, deviation: float, even: bool = False) -> Spread:
        """Return the spread of a centre and a deviation in sizes, as far as the fit allows."""
        centre, deviation = row.bounded(centre, deviation)
        if abs(centre) < NO_CENTRE:
            centre = 0.0
        mean = DECLARABLE[row.name].neutral + rounded(centre * row.size)
        return cls(mean, rounded(deviation * abs(row.size)), even)

    def in_sizes(self, row: Fittable) -> tuple[float, float]:
        """Return centre and deviation in sizes."""
        neutral = DECLARABLE[row.name].neutral
        return (self.mean - neutral) / row.size, self.deviation / abs(row.size)


def rounded(value: float) -> float:
    """Return a number to as many digits as are written."""
    return float(f"{value:.{DIGITS}g}")


def declared_range(name: str, spread: Spread) -> DeclaredRange:
    """Return the line of a declaration that draws values spread so."""
    row = DECLARABLE[name]
    reach = math.sqrt(3.0) if spread.even else SIGMAS
    low = max(row.least, spread.mean - reach * spread.deviation)
    high = min(row.most, spread.mean + reach * spread.deviation)
    low = min(low, row.neutral)
    high = max(high, row.neutral)
    if spread.even:
        return DeclaredRange(name, rounded(low), rounded(high))
    return DeclaredRange(name, low, high, spread.mean, spread.deviation)


def conditions_of(spreads: Mapping[str, Spread], name: str = "field") -> Conditions:
    """Return the declaration of coordinates that are spread so, each by itself."""
    ranges = {key: declared_range(key, spread) for key, spread in spreads.items()}
    return Conditions(ranges, name=name)
