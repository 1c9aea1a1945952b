"""A map of failures over two or three measured features: MAP-Elites as a guide.

J.-B. Mouret, J. Clune, "Illuminating search spaces by mapping elites", 2015,
https://arxiv.org/abs/1504.04909. Each cell keeps the failing candidate nearest to its seed, one
that every witness keeps going before one that not. The judge is never asked. `choose` aims at cells
without a failure and gives, for each seed, the candidate of its own that came nearest to the cell
as the parent to mutate; `gain` says how much a candidate adds to its cell.

What a cell keeps is the least by (witnessed first, distance, number of the seed, order of looking),
which is a total order, so maps of shards merge in any grouping to the same bytes. Differences from
the reference: parents are kept for each seed apart, as a code means something for its own seed
only, and they need not be elites.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import Problem
from hardcase.guides.units import row_of, unseen
from hardcase.randomness import Rng
from hardcase.tensors import ordinal, to_bytes
from hardcase.types import Aim, Oracle, Probe, State, Tap

PARENT = "corpus/z"
"""The aim under which searches look for a parent's code."""
UNSEEN, REACHED, FAILING, WITNESSED = range(4)
LEVELS = ("not reached", "never failed", "fails", "fails, witnessed")
"""What is known of a cell, from least to most."""
EPSILON = 1e-6
COUNTS = ("visits", "aimed")
ELITE = ("level", "distance", "seed", "expected", "predicted")

Measure = Callable[[Float[Tensor, "m c h w"]], Float[Tensor, "m f"]]
Distance = Callable[[Probe], Float[Tensor, " m"]]


@dataclass(frozen=True, slots=True)
class Axis:
    """One side of a map: a feature, cut into `cells` equal parts between `low` and `high`; beyond
    them, the outermost."""

    name: str
    low: float
    high: float
    cells: int = 10

    def __post_init__(self) -> None:
        if not self.low < self.high or self.cells < 1:
            raise Problem(
                f"the axis {self.name!r} is empty.",
                f"It has {self.cells} cells from {self.low:g} to {self.high:g}.",
                fix="low < high and one cell or more",
            )


def spanned(name: str, values: Float[Tensor, " n"], cells: int = 10) -> Axis:
    """An axis over what some images show, from the 1st to the 99th percentile and a tenth more at
    each end."""
    ends = torch.tensor([0.01, 0.99], dtype=torch.float64, device=values.device)
    low, high = values.double().quantile(ends).tolist()
    more = 0.1 * (high - low)
    return Axis(name, low - more, high + more, cells)


def pixel_distance(probe: Probe) -> Float[Tensor, " m"]:
    """The Euclidean distance of candidates from their seeds' images."""
    gap = (probe.x - probe.origin.x).flatten(1)
    return gap.square().sum(1).sqrt()


class Archive:
    """A map as a guide.

    Args:
        axes: Two or three features.
        measure: Their values, from images.
        oracle: Which candidates fail.
        witnessed: Which of those all witnesses keep; None where there are no witnesses.
        distance: How far a candidate is from its seed.
        capacity: Candidates of each seed that may become parents.
        base: What earlier rounds found.
    """

    name = "map"

    def __init__(
        self,
        axes: Sequence[Axis],
        measure: Measure,
        oracle: Oracle,
        *,
        witnessed: Oracle | None = None,
        distance: Distance = pixel_distance,
        capacity: int = 32,
        base: State | None = None,
    ) -> None:
        if not 2 <= len(axes) <= 3:
            raise Problem(
                f"a map has two or three axes, not {len(axes)}.", fix="--map brightness,slant"
            )
        self.axes = tuple(axes)
        self.measure = measure
        self.oracle = oracle
        self.witnessed = witnessed
        self.distance = distance
        self.capacity = max(2, capacity)
        self.cells = math.prod(axis.cells for axis in axes)
        self.base = base or _empty(self.cells)
        self.own = _empty(self.cells)
        self.parents = _Parents(self.cells, len(axes), self.capacity)

    @property
    def taps(self) -> Mapping[str, Tap]:
        return {}

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Aim:
        """For each seed a cell without a failure, drawn the rarer the more often it was aimed at,
        and the seed's candidate nearest to it; nothing before any candidate was seen."""
        if not len(rows) or not self.parents.known(rows):
            return {}
        level = torch.maximum(self.base["level"], self.own["level"])
        weight = 1.0 / (1 + self.base["aimed"] + self.own["aimed"]).double()
        wanted = level < FAILING
        weight = weight * wanted if bool(wanted.any()) else weight
        edge = weight.cumsum(0) / weight.sum()
        drawn = torch.searchsorted(edge, rng.uniform(rows).double().cpu(), right=True)
        cell = drawn.clamp_max(self.cells - 1)
        self.own["aimed"] += torch.bincount(cell, minlength=self.cells)
        centre = self.centres()[cell].to(rows.device)
        target = self._scaled(centre)
        code = self.parents.nearest(rows, target)
        return {
            PARENT: code,
            f"{self.name}/target": centre,
            f"{self.name}/cell": cell.to(rows.device),
        }

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        """By how many levels a candidate would lift its cell: reached, failing, witnessed."""
        _, cell, level = self._placed(probe)
        known = torch.maximum(self.base["level"], self.own["level"]).to(cell.device)
        lifted = (level - known[cell]).clamp_min(0)
        return torch.where(level == UNSEEN, 0, lifted).to(probe.logits.dtype)

    def update(self, probe: Probe) -> None:
        features, cell, level = self._placed(probe)
        kept = (unseen(probe) & (level > UNSEEN)).nonzero().squeeze(1)
        if not len(kept):
            return
        if "row" in probe.aim:
            self.parents.add(
                row_of(probe)[kept], cell[kept], self._scaled(features[kept]), probe.z[kept]
            )
        self.own["visits"] += torch.bincount(cell[kept].cpu(), minlength=self.cells)
        reached = torch.zeros(self.cells, dtype=torch.int64).index_fill_(
            0, cell[kept].cpu(), REACHED
        )
        self.own["level"] = torch.maximum(self.own["level"], reached)
        failing = kept[level[kept] >= FAILING]
        if len(failing):
            self._keep(probe, failing, cell, level)

    def fork(self) -> Archive:
        return Archive(
            self.axes,
            self.measure,
            self.oracle,
            witnessed=self.witnessed,
            distance=self.distance,
            capacity=self.capacity,
            base=_merged([self.base, self.own]),
        )

    def delta(self) -> State:
        """What this fork found: counts of every cell, and the pictures of those that fail."""
        return _packed(self.own)

    def merge(self, deltas: Sequence[State]) -> None:
        self.base = _merged([self.base, self.own, *(_unpacked(delta) for delta in deltas)])
        self.own = _empty(self.cells)

    def value(self) -> float:
        """The share of cells with a failure (with one that witnesses keep, where there are
        witnesses)."""
        level = _merged([self.base, self.own])["level"]
        return float((level >= (FAILING if self.witnessed is None else WITNESSED)).double().mean())

    def centres(self) -> Float[Tensor, "cells f"]:
        """The middle of each cell."""
        sides = [
            axis.low + (torch.arange(axis.cells) + 0.5) * (axis.high - axis.low) / axis.cells
            for axis in self.axes
        ]
        return torch.cartesian_prod(*sides).reshape(self.cells, len(self.axes)).float()

    def index(self, features: Float[Tensor, "m f"]) -> Int[Tensor, " m"]:
        """The cell of each row of features."""
        place = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        for axis, value in zip(self.axes, features.unbind(1)):
            step = (axis.cells * (value.double() - axis.low) + EPSILON) / (axis.high - axis.low)
            place = place * axis.cells + step.nan_to_num(0).clamp(0, axis.cells - 1).long()
        return place

    def table(self) -> list[dict[str, Any]]:
        """One row a cell, as a report shows it."""
        state = _merged([self.base, self.own])
        rows = []
        for cell, centre in enumerate(self.centres().tolist()):
            level = int(state["level"][cell])
            row = {axis.name: value for axis, value in zip(self.axes, centre)}
            row |= {"cell": cell, "state": LEVELS[level], "visits": int(state["visits"][cell])}
            if level >= FAILING:
                row |= {
                    name: state[name][cell].item()
                    for name in ("distance", "seed", "expected", "predicted")
                }
            rows.append(row)
        return rows

    def pictures(self) -> State:
        """The cells that fail (``cell``) and the picture that each keeps (``picture``)."""
        packed = _packed(_merged([self.base, self.own]))
        return {name: packed[name] for name in ("cell", "picture") if name in packed}

    def _scaled(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m f"]:
        """Features in cells, so that axes count alike."""
        low, width = (
            torch.tensor(values, device=features.device, dtype=features.dtype)
            for values in (
                [axis.low for axis in self.axes],
                [(axis.high - axis.low) / axis.cells for axis in self.axes],
            )
        )
        return (features - low) / width

    def _placed(
        self, probe: Probe
    ) -> tuple[Float[Tensor, "m f"], Int[Tensor, " m"], Int[Tensor, " m"]]:
        """Features, cell and level of each candidate; unseen where a feature or an answer is not a
        number."""
        with torch.no_grad():
            features = self.measure(probe.x)
            failing = self.oracle(probe)
            kept = (
                failing & self.witnessed(probe)
                if self.witnessed is not None
                else torch.zeros_like(failing)
            )
        level = REACHED + failing.long() + kept.long()
        sound = features.isfinite().all(1) & probe.logits.isfinite().all(1)
        return features, self.index(features), torch.where(sound, level, UNSEEN)

    def _keep(
        self,
        probe: Probe,
        rows: Int[Tensor, " r"],
        cell: Int[Tensor, " m"],
        level: Int[Tensor, " m"],
    ) -> None:
        """Put the best of these rows into their cells where they are better than what is there."""
        found = {
            "level": level[rows].cpu(),
            "distance": self.distance(probe)[rows].float().cpu(),
            "seed": probe.origin.id[rows].cpu(),
            "expected": probe.origin.y[rows].cpu(),
            "predicted": probe.logits[rows].argmax(1).cpu(),
        }
        place = cell[rows].cpu()
        order = torch.arange(len(rows))
        for key in (found["seed"], found["distance"], -found["level"], place):
            order = order[key[order].argsort(stable=True)]
        first = torch.ones(len(order), dtype=torch.bool)
        first[1:] = place[order][1:] != place[order][:-1]
        best = order[first]
        fresh = _empty(self.cells)
        for name in ELITE:
            fresh[name][place[best]] = found[name][best]
        pictures = to_bytes(probe.x[rows[best.to(rows.device)]]).cpu()
        fresh["picture"] = pictures.new_zeros(self.cells, *pictures.shape[1:])
        fresh["picture"][place[best]] = pictures
        self.own = _merged([self.own, fresh])


def _empty(cells: int) -> State:
    whole = torch.zeros(cells, dtype=torch.int64)
    return {
        "level": whole.clone(),
        "distance": torch.full((cells,), torch.inf),
        "seed": whole + torch.iinfo(torch.int64).max,
        "expected": whole - 1,
        "predicted": whole - 1,
        **{name: whole.clone() for name in COUNTS},
    }


def _merged(states: Sequence[State]) -> State:
    """The better elite of each cell, and the sum of the counts."""
    best = dict(states[0])
    for other in states[1:]:
        better = _better(other, best)
        level = torch.maximum(best["level"], other["level"])
        for name in ELITE:
            best[name] = torch.where(better, other[name], best[name])
        best["level"] = level
        for name in COUNTS:
            best[name] = best[name] + other[name]
        if "picture" in other:
            known = best.get("picture", torch.zeros_like(other["picture"]))
            best["picture"] = torch.where(better[:, None, None, None], other["picture"], known)
    return best


def _better(a: State, b: State) -> Bool[Tensor, " cells"]:
    """Where `a` keeps an elite that goes before that of `b`."""
    level = a["level"].clamp_min(REACHED) - b["level"].clamp_min(REACHED)
    nearer = (a["distance"] < b["distance"]) | (
        (a["distance"] == b["distance"]) & (a["seed"] < b["seed"])
    )
    return (a["level"] >= FAILING) & ((level > 0) | ((level == 0) & nearer))


def _packed(state: State) -> State:
    cell = (state["level"] >= FAILING).nonzero().squeeze(1)
    packed = {name: state[name].clone() for name in (*ELITE, *COUNTS)}
    return (
        {**packed, "cell": cell, "picture": state["picture"][cell]}
        if "picture" in state
        else packed
    )


def _unpacked(delta: State) -> State:
    state = {name: delta[name].cpu() for name in (*ELITE, *COUNTS)}
    if "picture" not in delta:
        return state
    picture = delta["picture"].cpu()
    whole = picture.new_zeros(len(state["level"]), *picture.shape[1:])
    whole[delta["cell"].cpu()] = picture
    return {**state, "picture": whole}


class _Parents:
    """For each seed of a shard its own image and the newest candidates that reached a cell for the
    first time."""

    def __init__(self, cells: int, features: int, capacity: int) -> None:
        self.cells = cells
        self.features = features
        self.capacity = capacity
        self.size = torch.zeros(0, dtype=torch.int64)
        self.been = torch.zeros(0, cells, dtype=torch.bool)
        self.place = torch.zeros(0, capacity, features)
        self.code: Tensor | None = None

    def known(self, rows: Int[Tensor, " m"]) -> bool:
        return int(rows.max()) < len(self.size) and bool((self.size[rows] > 0).all())

    def nearest(self, rows: Int[Tensor, " m"], target: Float[Tensor, "m f"]) -> Tensor:
        """The code of the candidate nearest to each row's target."""
        assert self.code is not None
        gap = (self.place[rows] - target[:, None]).square().sum(2)
        inside = torch.arange(self.capacity, device=gap.device) < self.size[rows][:, None]
        return self.code[rows, torch.where(inside, gap, torch.inf).argmin(1)]

    def add(
        self,
        rows: Int[Tensor, " m"],
        cell: Int[Tensor, " m"],
        place: Float[Tensor, "m f"],
        code: Tensor,
    ) -> None:
        self._grow(rows, place, code)
        new = (~self.been[rows, cell] & _first(rows * self.cells + cell)).nonzero().squeeze(1)
        rows = rows[new]
        cell = cell[new]
        place = place[new]
        code = code[new]
        number = self.size[rows] + ordinal(rows)
        self.been[rows, cell] = True
        self.size = self.size.index_add(0, rows, torch.ones_like(rows))
        stays = number > self.size[rows] - self.capacity
        slot = torch.where(number == 0, 0, 1 + (number - 1) % (self.capacity - 1))
        rows = rows[stays]
        slot = slot[stays]
        self.place[rows, slot] = place[stays]
        assert self.code is not None
        self.code[rows, slot] = code[stays]

    def _grow(self, rows: Int[Tensor, " m"], place: Float[Tensor, "m f"], code: Tensor) -> None:
        device = rows.device
        missing = max(0, int(rows.max()) + 1 - len(self.size))
        self.size = torch.cat([self.size.to(device), self.size.new_zeros(missing).to(device)])
        self.been = torch.cat(
            [self.been.to(device), self.been.new_zeros(missing, self.cells).to(device)]
        )
        empty = place.new_zeros(missing, self.capacity, self.features)
        self.place = torch.cat([self.place.to(place), empty])
        fresh = code.new_zeros(missing, self.capacity, *code.shape[1:])
        self.code = fresh if self.code is None else torch.cat([self.code, fresh])


def _first(key: Int[Tensor, " m"]) -> Bool[Tensor, " m"]:
    """Whether no earlier row has the same key."""
    return ordinal(key) == 0
