"""What a fit can say, and what it cannot: which coordinates are needed, how exactly, what is left.

An embedding is a mean over images, so its chance variation follows from the images themselves:
every image's part is multiplied by a random number, again and again (a multiplier bootstrap). A
coordinate is needed where fitting again without it leaves more than chance explains; the p-values
of all coordinates are corrected together (Holm). The part of the field that no coordinate explains
is compared with chance too, and with a small share of the total: the form of a distribution is
never met exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field as default
from functools import cached_property

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from torch import Tensor

from hardcase.conditions.fitting.coordinates import LEAST_DEVIATION, WIDEST, Fittable, Spread
from hardcase.conditions.fitting.embedding import (
    Matrix,
    Vector,
    class_embeddings,
    mixed_groups,
)
from hardcase.conditions.fitting.render import Candidate
from hardcase.conditions.fitting.search import Matching, Place, refined
from hardcase.statistics import holm

__all__ = [
    *("Chance", "ChanceOfField", "Found", "Unexplained", "detectable", "instead", "needed"),
    *("unexplained", "width", "widths"),
]

REPLICATES = 999
LEVEL = 0.05
POWER = 0.8
TAKEN_IN = 0.1
"""How likely chance may take a coordinate in that a test will then throw out."""
LEFT = 0.8
"""Share of fields in which chance leaves less than what ends a search."""
FORM = 0.12
"""Distance that the form of a distribution may leave, as a share of the field's from the images."""
NEARLY = 0.5
"""A signal that is this near to what is shown says at which width it would be."""
LOOKS = 3
"""How often a detectable width is rendered and corrected."""
ALTERNATIVES = 2
"""Other coordinates that are tried in place of a coordinate."""
AS_GOOD = 0.7
"""Share of its gain that another coordinate must promise to be tried in its place."""
_GRID = ndtri((np.arange(400) + 0.5) / 400)


def width(row: Fittable, centre: float, deviation: float, even: bool = False) -> float:
    """Return the root mean square of a change, in sizes: what counts as a coordinate's width."""
    around = _GRID
    if even:
        around = np.sqrt(3.0) * (2 * ndtr(_GRID) - 1)
    values = centre + deviation * around
    if row.one_sided:
        values = np.maximum(values, 0)
    return float(np.sqrt(np.square(values).mean()))


@dataclass(frozen=True)
class Chance:
    """The chance variation of an embedding's difference from that of the field.

    Args:
        matching: Measures candidates.
        place: Where.
        field: The embedding of each image of the field.
        seed: What the multipliers follow from.
    """

    matching: Matching
    place: Place
    field: Float[Tensor, "n e"]
    seed: int = 0

    @cached_property
    def differences(self) -> Matrix:
        """Random differences, a row each."""
        images = self.matching.renderer.images
        rows = self.matching.embedding.rows(self.matching.renderer(self.place.candidate))
        images_groups = mixed_groups(images)
        groups = images_groups.numpy()
        counts = np.bincount(groups, minlength=len(self.place.shares))
        weights = (self.place.shares / np.maximum(counts, 1))[groups]
        source = rows.numpy() - class_embeddings(rows, images_groups, len(counts))[groups]
        field = self.field.numpy() - self.field.numpy().mean(0)
        chance = np.random.default_rng(self.seed)
        ours = chance.standard_normal((REPLICATES, len(source)), dtype=np.float32)
        theirs = chance.standard_normal((REPLICATES, len(field)), dtype=np.float32)
        noise = theirs @ field / len(field) - (ours * weights.astype(np.float32)) @ source.astype(
            np.float32
        )
        return self.matching.embedding.measured(noise.astype(np.float64))


def gains(differences: Matrix, basis: Matrix, moves: Sequence[Vector]) -> Matrix:
    """Return by how much the best of these moves lowers the squared distance by chance.

    Args:
        differences: Random differences, a row each.
        basis: What is fitted along with the moves, orthonormal columns.
        moves: Directions in which the embedding can be moved, forwards alone.
    """
    columns = np.stack(moves, 1)
    columns = columns - basis @ (basis.T @ columns)
    lengths = np.linalg.norm(columns, axis=0)
    columns = columns[:, lengths > 1e-9] / lengths[lengths > 1e-9]
    if not columns.shape[1]:
        return np.zeros(len(differences))
    along = np.maximum(differences @ columns, 0).max(1)
    squares: Matrix = np.square(along)
    return squares


@dataclass(frozen=True)
class ChanceOfField:
    """What chance does to an embedding, as the search asks for it (`ByChance`).

    Args:
        matching: Measures candidates.
        field: The embedding of each image of the field.
        seed: What chance follows from.
    """

    matching: Matching
    field: Float[Tensor, "n e"]
    seed: int = 0
    _explained: dict[str, bool] = default(default_factory=dict, init=False, repr=False)

    @cached_property
    def _gains(self) -> Matrix:
        start = self.matching.place(Candidate())
        differences = Chance(self.matching, start, self.field, self.seed).differences
        basis = start.within()
        each = [
            gains(differences, basis, first_moves(self.matching, row.name, start))
            for row in self.matching.coordinates
        ]
        return np.concatenate(each)

    def gain(self, count: int) -> float:
        """Return the gain that the best of `count` coordinates exceeds by chance in 10 % of
        fields."""
        return float(np.quantile(self._gains, 1 - TAKEN_IN / count))

    def explains(self, place: Place) -> bool:
        """Return whether what is left at a place is no more than chance leaves in most fields."""
        key = place.candidate.key
        if key not in self._explained:
            differences = Chance(self.matching, place, self.field, self.seed).differences
            basis = place.within()
            left = differences - (differences @ basis) @ basis.T
            usual = float(np.quantile(np.square(left).sum(1), LEFT))
            self._explained[key] = place.square <= usual
        return self._explained[key]


def first_moves(matching: Matching, name: str, start: Place) -> list[Vector]:
    """Return how the first trials of a coordinate moved the embedding of unchanged images."""
    places = [matching.place(Candidate({name: spread})) for spread in matching.tried(name)]
    return [start.shares @ place.classes - start.embedding for place in places]


@dataclass(frozen=True, slots=True)
class Found:
    """The evidence for a coordinate that the field needs.

    Args:
        name: The coordinate.
        spread: How it is spread.
        width: The root mean square of the change, in its unit.
        low: The lower end of its 95 % interval.
        high: The upper end.
        p: Holm's p-value of its not being needed.
        instead: Sets of coordinates that explain the field as well, without this coordinate.
    """

    name: str
    spread: Spread
    width: float
    low: float
    high: float
    p: float
    instead: tuple[tuple[str, ...], ...] = ()


def needed(
    matching: Matching, place: Place, field: Float[Tensor, "n e"], seed: int = 0
) -> tuple[Place, dict[str, float]]:
    """Return the place with the coordinates that the field needs, and Holm's p-value of each.

    A coordinate that is not needed is left out, the least needed first, and the others are fitted
    again.
    """
    every = len(matching.coordinates)
    while place.candidate.spreads:
        names = list(place.candidate.spreads)
        raw = [_p_without(matching, place, name, field, seed) for name in names]
        tested = [*raw, *[1.0] * (every - len(raw))]
        values = dict(zip(names, holm(tested)))
        worst = max(names, key=lambda name: values[name])
        if values[worst] <= LEVEL:
            return place, values
        place = refined(matching, matching.place(place.candidate.without(worst)), steps=2)
    return place, {}


def _p_without(
    matching: Matching, place: Place, name: str, field: Float[Tensor, "n e"], seed: int
) -> float:
    """How often chance alone explains as much as a coordinate does."""
    less = refined(matching, matching.place(place.candidate.without(name)), steps=2)
    names, columns = matching.tangents(less)
    basis = less.within(list(columns.T)) if names else less.within()
    start = matching.place(Candidate())
    moves = [*first_moves(matching, name, start), place.embedding - less.embedding]
    by_chance = gains(Chance(matching, less, field, seed).differences, basis, moves)
    gain = less.square - place.square
    return float((1 + (by_chance >= gain).sum()) / (1 + len(by_chance)))


def widths(
    matching: Matching, place: Place, differences: Matrix
) -> dict[str, tuple[float, float, float]]:
    """Return the width of each coordinate and its 95 % interval, in its unit."""
    names, columns = matching.tangents(place)
    if not names:
        return {}
    basis = place.within()
    # Changes of the mix of classes are projected out of both sides: what they can explain is no
    # evidence on a width. Each chance difference then gives one least-squares step, and the steps
    # are a bootstrap sample of the fitted widths.
    free = columns - basis @ (basis.T @ columns)
    moved = differences - (differences @ basis) @ basis.T
    steps = np.linalg.lstsq(free, moved.T, rcond=1e-6)[0]
    intervals = dict[str, tuple[float, float, float]]()
    for name, spread in place.candidate.spreads.items():
        row = matching.rows(name)
        now = np.array(spread.in_sizes(row))[:, None].repeat(steps.shape[1], 1)
        for i, (owner, which) in enumerate(names):
            if owner == name:
                now[which] += steps[i]
        now[1] = now[1].clip(LEAST_DEVIATION, WIDEST)
        if row.one_sided:
            now[0] = now[0].clip(0)
        drawn = [width(row, a, b, spread.even) for a, b in now.T]
        value = width(row, *spread.in_sizes(row), spread.even)
        low, high = np.quantile(drawn, (0.025, 0.975))
        size = abs(row.size)
        intervals[name] = (value * size, min(low, value) * size, max(high, value) * size)
    return intervals


def detectable(matching: Matching, place: Place, differences: Matrix) -> dict[str, float]:
    """Return the smallest width of each coordinate that so many images show in four of five fields.

    A width is guessed from what a trial moved, rendered, and corrected by what that moved. It is
    infinite where even the widest trial would not be shown. What the least change moves does not
    count: to read an image between its pixels blurs it a little, by whatever angle it is turned.
    """
    start = matching.place(Candidate())
    names, columns = matching.tangents(place)
    tests = len(matching.coordinates)
    smallest = dict[str, float]()
    for row in matching.coordinates:
        fitted = [columns[:, i] for i, (owner, _) in enumerate(names) if owner != row.name]
        # what other coordinates do alike is no sign of this one
        fitted += [
            first_moves(matching, other.name, start)[0]
            for other in matching.coordinates
            if other.name != row.name
        ]
        basis = place.within(fitted)
        none = Spread.of(row, 0.0, LEAST_DEVIATION)
        least = matching.place(Candidate({row.name: none}))
        scale = 1.0
        for _ in range(LOOKS):
            centre, deviation = _trial(row, scale)
            spread = Spread.of(row, centre, deviation)
            there = matching.place(Candidate({row.name: spread}))
            move = start.shares @ (there.classes - least.classes)
            signal = _signal(move - basis @ (basis.T @ move), differences, tests)
            interval = width(row, *spread.in_sizes(row))
            # A signal grows about with the square of the width, so the root of the shortfall is the
            # factor to the width that would just be shown. Rendering at it corrects the guess.
            scale = min(max(scale / max(signal, 1e-3) ** 0.5, 2 * LEAST_DEVIATION), WIDEST)
        reached = interval / min(signal, 1.0) ** 0.5 if signal > NEARLY else math.inf
        smallest[row.name] = reached * abs(row.size)
    return smallest


def _trial(row: Fittable, scale: float) -> tuple[float, float]:
    """Centre and deviation of a change of `size` sizes, as far from neutral as its width."""
    return (scale * 0.8, scale * 0.5) if row.one_sided else (0.0, scale)


def _signal(move: Vector, differences: Matrix, tests: int) -> float:
    """How far a move reaches, as a share of what is shown in four of five fields."""
    size = float(np.linalg.norm(move))
    if size < 1e-12:
        return 0.0
    noise = float((differences @ move).std()) / size
    needed_length = float(ndtri(1 - LEVEL / tests) + ndtri(POWER)) * noise
    return size / max(needed_length, 1e-12)


@dataclass(frozen=True, slots=True)
class Unexplained:
    """What of the field's distance is left.

    Args:
        distance: The distance of the field from the labelled images, less the part of chance.
        left: What is left of it under the fitted conditions.
        share: The share of the squared distance that is left.
        p: How likely at least as much is left by chance and by the form of distributions.
    """

    distance: float
    left: float
    share: float
    p: float

    @property
    def rejects(self) -> bool:
        """Whether something is left that no fitted condition explains."""
        return self.p <= LEVEL


def unexplained(matching: Matching, place: Place, differences: Matrix) -> Unexplained:
    """Return what no coordinate explains."""
    start = matching.place(Candidate())
    before, _ = _beyond_chance(start.rest, start.within(), differences)
    _, columns = matching.tangents(place)
    basis = place.within(list(columns.T))
    left, rest = _beyond_chance(place.rest, basis, differences)
    length = float(np.linalg.norm(rest))
    allowed = rest * (FORM * before / max(length, 1e-12))
    drawn = differences - (differences @ basis) @ basis.T + allowed
    p = float((1 + (np.square(drawn).sum(1) >= length**2).sum()) / (1 + len(drawn)))
    share = min(left**2 / before**2, 1.0) if before > 0 else 0.0
    return Unexplained(before, left, share, p)


def _beyond_chance(rest: Vector, basis: Matrix, differences: Matrix) -> tuple[float, Vector]:
    """The length of a difference less the part of chance, and the difference itself."""
    rest = rest - basis @ (basis.T @ rest)
    noise = differences - (differences @ basis) @ basis.T
    square = float(rest @ rest) - float(np.square(noise).sum(1).mean())
    return max(square, 0.0) ** 0.5, rest


def instead(
    matching: Matching, place: Place, name: str, differences: Matrix
) -> tuple[tuple[str, ...], ...]:
    """Return sets of coordinates that explain the field as well without this coordinate."""
    start = matching.place(Candidate())
    less = matching.place(place.candidate.without(name))
    gain = less.square - place.square
    promise = dict[str, float]()
    for row in matching.coordinates:
        if row.name in place.candidate.spreads:
            continue
        moves = first_moves(matching, row.name, start)
        promise[row.name] = max(_best_gain(less.rest, move) for move in moves)
    tried = sorted(promise, key=lambda option: -promise[option])
    alternatives = list[tuple[str, ...]]()
    for other in [option for option in tried if promise[option] >= AS_GOOD * gain][:ALTERNATIVES]:
        trials = [
            matching.place(less.candidate.having(other, option)) for option in matching.tried(other)
        ]
        there = refined(matching, matching.best(trials), steps=2)
        along = there.rest - place.rest
        by_chance = 2 * differences @ along
        if there.square - place.square <= np.quantile(by_chance, 1 - LEVEL):
            alternatives.append(tuple(there.candidate.spreads))
    return tuple(alternatives)


def _best_gain(rest: Vector, move: Vector) -> float:
    """By how much a move of the best length would lower the squared distance."""
    along = max(float(rest @ move), 0.0)
    return along**2 / max(float(move @ move), 1e-12)
