"""The search for conditions under which labelled images look like the field's.

Coordinates are added in turn, first the coordinate that brings the sets nearest, and all chosen
coordinates are then moved
together: the embedding is nearly linear in centres and deviations, so a bounded
least-squares step of its differences gives the move (Gauss and Newton). A coordinate can stay at
zero, and leaves where it does not help. Rendered embeddings are cached by name, so that an
interrupted search continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field as default
from itertools import combinations
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from scipy.optimize import lsq_linear

from hardcase.cache import write_atomically
from hardcase.conditions.fitting.coordinates import (
    FARTHEST,
    LEAST_DEVIATION,
    WIDEST,
    Fittable,
    Spread,
    rounded,
)
from hardcase.conditions.fitting.embedding import (
    Embedding,
    Matrix,
    Vector,
    class_directions,
    class_embeddings,
    class_mix,
    mixed_groups,
)
from hardcase.conditions.fitting.render import Candidate, Renderer
from hardcase.tensors import digest

__all__ = ["ByChance", "Kept", "Matching", "Place", "refined", "search"]

FIRST = ((0.0, 0.4), (0.0, 1.0), (1.0, 0.3), (-1.0, 0.3))
"""Centres and deviations, in sizes, with which a coordinate of two sides is tried."""
FIRST_ONE_SIDED = ((0.4, 0.3), (1.0, 0.5), (2.0, 0.7))
TRIED = 3
"""Coordinates that are rendered before a choice, the most promising first."""
MOST = 5
"""Chosen coordinates, at most."""
BEGINNING = 0.2
"""The standard deviation, in sizes, with which all coordinates begin together."""
STEPS = 2
"""Steps of least squares, at most."""
CHANGES = 2
"""How often a coordinate may be added, or exchanged for another, at the end."""
NEARER = 0.05
"""By how much of its squared distance a place must be nearer for an exchange."""
STEP = 0.25
"""Step of a finite difference, in sizes."""
HALVINGS = 2
EVEN = 0.85
"""Standard deviation of an even spread that looks like a normal spread, as a share of that
spread's."""
TOGETHER = (-0.8, -0.5, 0.5, 0.8)
"""How far two coordinates may go together."""


class Kept:
    """Arrays by name: in memory, and in `folder` if set, so that nothing is lost.

    Args:
        folder: Where they are written; None: nowhere.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._arrays = dict[str, Matrix]()

    def get(self, name: str, make: Callable[[], Matrix]) -> Matrix:
        """Return the array `name`, computed now unless it is cached."""
        if name in self._arrays:
            return self._arrays[name]
        path = None
        if self.folder is not None:
            path = self.folder / f"{digest([name])[:24]}.npy"
            array = _read(path)
            if array is not None:
                self._arrays[name] = array
                return array
        array = make()
        self._arrays[name] = array
        if path is not None:
            write_atomically(path, lambda target: np.save(target, array), flush=False)
        return array


def _read(path: Path) -> Matrix | None:
    """A stored array; None where there is none that can be read."""
    try:
        array: Matrix = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a candidate relative to the field.

    Args:
        candidate: The conditions.
        classes: The embedding of each class of the images under them.
        shares: The mix of classes that is nearest.
        rest: The field's embedding minus that of this mixture.
    """

    candidate: Candidate
    classes: Matrix
    shares: Vector
    rest: Vector

    @property
    def square(self) -> float:
        """The squared distance."""
        return float(self.rest @ self.rest)

    @property
    def embedding(self) -> Vector:
        """The embedding of the mixture."""
        mixture: Vector = self.shares @ self.classes
        return mixture

    def within(self, others: Sequence[Vector] = ()) -> Matrix:
        """Return an orthonormal basis of where another mix of classes, and what `others` say, move
        the embedding.
        """
        columns = [*class_directions(self.classes, self.shares), *others]
        if not columns:
            return np.zeros((len(self.rest), 0))
        left, sizes, _ = np.linalg.svd(np.stack(columns, 1), full_matrices=False)
        basis: Matrix = left[:, sizes > 1e-6 * max(sizes.max(), 1e-12)]
        return basis


@runtime_checkable
class ByChance(Protocol):
    """What chance does to an embedding."""

    def gain(self, count: int) -> float:
        """Return by how much the best of these coordinates lowers the squared distance."""
        ...

    def explains(self, place: Place) -> bool:
        """Return whether what is left at a place is no more than chance leaves."""
        ...


@dataclass(frozen=True)
class Matching:
    """Measures candidates against the field.

    Args:
        renderer: Shows the labelled images under a candidate.
        embedding: What is measured of images.
        field: The field's embedding.
        coordinates: What can be fitted.
        kept: What was measured before.
        on_progress: Called with how many candidates were measured.
    """

    renderer: Renderer
    embedding: Embedding
    field: Vector
    coordinates: tuple[Fittable, ...]
    kept: Kept = default(default_factory=Kept)
    on_progress: Callable[[int], None] = lambda count: None

    def rows(self, name: str) -> Fittable:
        """Return the evidence for a coordinate."""
        return next(row for row in self.coordinates if row.name == name)

    def place(self, candidate: Candidate) -> Place:
        """Return where a candidate lies."""
        groups = mixed_groups(self.renderer.images)
        count = int(groups.max()) + 1

        def embedded() -> Matrix:
            rows = self.embedding.rows(self.renderer(candidate))
            return self.embedding.measured(class_embeddings(rows, groups, count))

        classes = self.kept.get(candidate.key, embedded)
        self.on_progress(len(self.kept._arrays))
        usual = np.bincount(groups.numpy(), minlength=count) / len(groups)
        shares = class_mix(self.field, classes, usual)
        return Place(candidate, classes, shares, self.field - shares @ classes)

    def tried(self, name: str) -> Iterator[Spread]:
        """Yield the spreads with which a coordinate is tried at first."""
        row = self.rows(name)
        first = FIRST_ONE_SIDED if row.one_sided else FIRST
        for centre, deviation in first:
            if not (row.centred and centre):
                yield Spread.of(row, centre, deviation)

    def best(self, places: Sequence[Place]) -> Place:
        """Return the nearest place; of equally near ones the first."""
        return min(places, key=lambda place: place.square)

    def tangents(self, place: Place) -> tuple[list[tuple[str, int]], Matrix]:
        """Return how centre and deviation of every coordinate move the embedding, per size.

        The first value names the columns: a coordinate, and 0 for its centre or 1 for its
        deviation.
        """
        names, columns = list[tuple[str, int]](), list[Vector]()
        for name, spread in place.candidate.spreads.items():
            row = self.rows(name)
            now = spread.in_sizes(row)
            for which in (0, 1):
                if which == 0 and row.centred:
                    continue
                moved = list(now)
                moved[which] += STEP
                other = Spread.of(row, moved[0], moved[1], spread.even)
                step = other.in_sizes(row)[which] - now[which]
                if abs(step) < STEP / 2:  # at the end of what is allowed
                    moved[which] -= 2 * STEP
                    other = Spread.of(row, moved[0], moved[1], spread.even)
                    step = other.in_sizes(row)[which] - now[which]
                there = self.place(place.candidate.having(name, other))
                names.append((name, which))
                columns.append((place.shares @ there.classes - place.embedding) / step)
        return names, np.stack(columns, 1) if columns else np.zeros((len(self.field), 0))


def search(matching: Matching, chance: ByChance) -> Place:
    """Return the nearest place that the search finds.

    Coordinates are added in turn, until the rest is within chance. Where it is not, the
    search begins again with all coordinates at once and drops those that do not help: a coordinate
    that resembles another alone need not do so together with it. At last single ones are exchanged.

    Args:
        matching: Measures candidates.
        chance: What chance does to an embedding.
    """
    start = matching.place(Candidate())
    first = {
        row.name: [
            matching.place(Candidate({row.name: spread})) for spread in matching.tried(row.name)
        ]
        for row in matching.coordinates
    }
    best = _one_by_one(matching, start, start, first, chance)
    if not chance.explains(best):
        other = _narrowed(matching, _everything(matching), chance.gain(len(first)))
        best = matching.best([best, _one_by_one(matching, other, start, first, chance)])
    for _ in range(CHANGES):
        if chance.explains(best):
            break
        other = _exchanged(matching, best, start, first)
        if other is best:
            break
        best = _one_by_one(matching, other, start, first, chance)
    return _shaped(matching, _without_needless(matching, best, chance), chance)


def _one_by_one(
    matching: Matching, here: Place, start: Place, first: First, chance: ByChance
) -> Place:
    """The place with further coordinates, as long as each gains more than chance does."""
    while len(here.candidate.spreads) < MOST and not chance.explains(here):
        more = _with_one_more(matching, here, start, first)
        if here.square - more.square < chance.gain(len(first)):
            break
        here = refined(matching, more, steps=2)
    return here


First = Mapping[str, Sequence[Place]]
"""Where each coordinate's first trials lie."""


def _everything(matching: Matching) -> Place:
    """The place with every coordinate, all of them moved together."""
    spreads = {row.name: Spread.of(row, 0.0, BEGINNING) for row in matching.coordinates}
    return refined(matching, matching.place(Candidate(spreads)), steps=STEPS)


def _narrowed(matching: Matching, place: Place, least: float) -> Place:
    """The place without the coordinates that a linear model says are of no use, refined.

    The least useful coordinate goes first, and the others are refitted before the next choice.
    """
    names, columns = matching.tangents(place)
    basis = place.within()
    free = columns - basis @ (basis.T @ columns)
    amounts = [place.candidate.spreads[n].in_sizes(matching.rows(n))[w] for n, w in names]
    # the embedding of unchanged images, as the linear model sees it, and what is to be reached
    wanted = place.rest - basis @ (basis.T @ place.rest) + free @ np.array(amounts)
    left = list(place.candidate.spreads)
    while left:
        costs = {
            name: _left_over(names, free, wanted, [n for n in left if n != name]) for name in left
        }
        full_cost = _left_over(names, free, wanted, left)
        least_useful = min(left, key=lambda name: costs[name])
        if costs[least_useful] - full_cost >= least and len(left) <= MOST:
            break
        left.remove(least_useful)
    spreads = {name: place.candidate.spreads[name] for name in left}
    return refined(matching, matching.place(Candidate(spreads)), steps=STEPS)


def _left_over(
    names: Sequence[tuple[str, int]], free: Matrix, wanted: Vector, left: Sequence[str]
) -> float:
    """The squared distance that these coordinates leave, by a linear model."""
    chosen = [i for i, (name, _) in enumerate(names) if name in left]
    if not chosen:
        return float(wanted @ wanted)
    low = np.array([-np.inf if names[i][1] == 0 else 0.0 for i in chosen])
    solution = lsq_linear(free[:, chosen], wanted, (low, np.inf))
    return 2 * float(solution.cost)


def _with_one_more(matching: Matching, here: Place, start: Place, first: First) -> Place:
    """The nearest place with another coordinate; the same place if none helps."""
    places = list[Place]()
    for name in _promising(here, start, first):
        trials = [
            matching.place(here.candidate.having(name, place.candidate.spreads[name]))
            for place in _promised(here, start, first[name])
        ]
        places.append(refined(matching, matching.best(trials), steps=1))
    return matching.best(places) if places else here


def _exchanged(matching: Matching, place: Place, start: Place, first: First) -> Place:
    """A nearer place with a coordinate exchanged for another; the same place if none helps."""
    for name in place.candidate.spreads:
        less = matching.place(place.candidate.without(name))
        fewer = {other: places for other, places in first.items() if other != name}
        there = _with_one_more(matching, less, start, fewer)
        if there.square < place.square * (1 - NEARER) and there is not less:
            return refined(matching, there, steps=2)
    return place


def _gain(here: Place, start: Place, other: Place) -> float:
    """By how much a change that was measured at the start would lower the squared distance here."""
    move = other.embedding - start.embedding
    basis = here.within()
    rest = here.rest - basis @ (basis.T @ here.rest)
    move = move - basis @ (basis.T @ move)
    return float(2 * rest @ move - move @ move)


def _promising(here: Place, start: Place, first: Mapping[str, Sequence[Place]]) -> list[str]:
    """The coordinates that are not in yet and promise most."""
    out = [name for name in first if name not in here.candidate.spreads]
    promise = {name: max(_gain(here, start, place) for place in first[name]) for name in out}
    return sorted(out, key=lambda name: -promise[name])[:TRIED]


def _promised(here: Place, start: Place, places: Sequence[Place]) -> list[Place]:
    """The most promising trials of a coordinate: a single trial if it was tried alone already."""
    return sorted(places, key=lambda place: -_gain(here, start, place))[:2]


def refined(matching: Matching, place: Place, steps: int) -> Place:
    """Return a place nearer to the field: all centres and deviations are moved together.

    Args:
        matching: Measures candidates.
        place: Where to begin.
        steps: How often, at most.
    """
    for _ in range(steps):
        if not place.candidate.spreads:
            return place
        names, columns = matching.tangents(place)
        better = _stepped(matching, place, names, columns)
        if better is place:
            return place
        place = better
    return place


def _stepped(
    matching: Matching,
    place: Place,
    names: Sequence[tuple[str, int]],
    columns: Matrix,
) -> Place:
    """The place after a bounded step of least squares, or after a part of it; the same place
    where none is nearer.
    """
    basis = place.within()
    free = columns - basis @ (basis.T @ columns)
    rest = place.rest - basis @ (basis.T @ place.rest)
    now = [place.candidate.spreads[name].in_sizes(matching.rows(name))[w] for name, w in names]
    low, high = (
        np.array(bounds) for bounds in zip(*(_ends(matching.rows(n), w) for n, w in names))
    )
    low, high = np.minimum(low - now, -1e-9), np.maximum(high - now, 1e-9)
    step = lsq_linear(free, rest, (low, high)).x
    for halving in range(HALVINGS + 1):
        there = matching.place(_moved(matching, place.candidate, names, step * 0.5**halving))
        if there.square < place.square * (1 - 1e-4):
            return there
    return place


def _ends(row: Fittable, which: int) -> tuple[float, float]:
    if which == 1:
        return LEAST_DEVIATION, WIDEST
    return 0.0 if row.one_sided else -FARTHEST, FARTHEST


def _moved(
    matching: Matching, candidate: Candidate, names: Sequence[tuple[str, int]], step: Vector
) -> Candidate:
    """A candidate whose centres and deviations were moved by so many sizes."""
    moves = dict(zip(names, step.tolist()))
    for name, spread in candidate.spreads.items():
        row = matching.rows(name)
        centre, deviation = spread.in_sizes(row)
        centre += moves.get((name, 0), 0.0)
        deviation += moves.get((name, 1), 0.0)
        candidate = candidate.having(name, Spread.of(row, centre, deviation, spread.even))
    return candidate


def _without_needless(matching: Matching, place: Place, chance: ByChance) -> Place:
    """The place without coordinates that later coordinates make needless."""
    for name in list(place.candidate.spreads):
        less = refined(matching, matching.place(place.candidate.without(name)), steps=1)
        if less.square - place.square < chance.gain(1):
            place = less
    return place


def _shaped(matching: Matching, place: Place, chance: ByChance) -> Place:
    """The place with even spreads, and coordinates that go together, where that is nearer."""
    for name, spread in place.candidate.spreads.items():
        even = Spread(spread.mean, rounded(EVEN * spread.deviation), even=True)
        other = refined(matching, matching.place(place.candidate.having(name, even)), steps=1)
        place = matching.best([place, other])
    pairs = list(combinations(place.candidate.spreads, 2))
    if chance.explains(place):
        return place
    for pair in pairs:
        if any(pair[1] == other for _, other in place.candidate.together):
            continue  # a coordinate goes along with one other
        trials = [
            matching.place(
                Candidate(place.candidate.spreads, {**place.candidate.together, pair: c})
            )
            for c in TOGETHER
        ]
        nearest = matching.best(trials)
        if place.square - nearest.square > chance.gain(2 * len(pairs)):
            place = nearest
    return refined(matching, place, steps=1)
