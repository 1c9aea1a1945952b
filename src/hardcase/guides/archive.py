"""A map of failures over two or three measured features: MAP-Elites as a guide.

J.-B. Mouret, J. Clune, "Illuminating search spaces by mapping elites", 2015,
https://arxiv.org/abs/1504.04909. Each cell keeps the failing candidate nearest to its image;
candidates with a label that every witness keeps come before others. The judge takes no part.
`choose` aims at cells without a failure and gives, for each image, its candidate that came nearest
to the cell as the parent to mutate; `gain` says how much a candidate adds to its cell.

What a cell keeps is the least by (witnessed first, distance, number of the seed, order of looking),
which is a total order, so maps of shards merge in any grouping to the same bytes. Differences from
the reference: parents are kept per image, as a code is valid for its seed only;
they are the seed's candidates of the highest score in each cell and need not fail; cells near
to what an image has reached are aimed at more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.claims import claim_context, stored_label
from hardcase.errors import HardcaseError
from hardcase.guides.units import appended, grown, row_of, unseen
from hardcase.objectives import Margin
from hardcase.randomness import Rng
from hardcase.registry import guide
from hardcase.tensors import chunks, ordinal
from hardcase.types import Objective, Oracle, Probe, State, Tap, Targets

PARENT = "corpus/z"
"""The target under which searches look for a parent's code."""
UNSEEN, REACHED, FAILING, WITNESSED = range(4)
LEVELS = ("not reached", "never failed", "fails", "fails, witnessed")
"""The states of a cell, from least to most."""
EPSILON = 1e-6
REACH = 1.0
"""Cells over which the chance to be aimed at falls to 1/e, from the nearest candidate of a seed."""
COUNTS = ("visits", "aimed")
ELITE = ("level", "distance", "seed", "expected", "predicted")

Measure = Callable[[Float[Tensor, "m c h w"]], Float[Tensor, "m f"]]
Distance = Callable[[Probe], Float[Tensor, " m"]]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a map: a feature in `cells` equal parts; values beyond are the outermost's."""

    name: str
    low: float
    high: float
    cells: int = 10

    def __post_init__(self) -> None:
        if not self.low < self.high or self.cells < 1:
            raise HardcaseError(
                f"the axis {self.name!r} is empty.",
                f"It has {self.cells} cells from {self.low:g} to {self.high:g}.",
                fix="low < high and one cell or more",
            )


def spanned(name: str, values: Float[Tensor, " n"], cells: int = 10) -> Axis:
    """An axis from the 1st to the 99th percentile of the images' values, a tenth longer at each
    end."""
    ends = torch.tensor([0.01, 0.99], dtype=torch.float64, device=values.device)
    low, high = values.double().quantile(ends).tolist()
    more = 0.1 * (high - low)
    return Axis(name, low - more, high + more, cells)


@dataclass(frozen=True, slots=True)
class CellGrid:
    """The cells of a map, and the cell of any image.

    Args:
        axes: Two or three features.
        measure: Their values, from images.

    Example:
        >>> light = lambda x: torch.stack([x.mean((1, 2, 3)), x[..., :1].mean((1, 2, 3))], 1)
        >>> grid = CellGrid((Axis("all", 0.0, 1.0, 2), Axis("left", 0.0, 1.0, 3)), light)
        >>> grid(torch.tensor([0.2, 0.9])[:, None, None, None].expand(2, 1, 4, 4)).tolist()
        [0, 5]
    """

    axes: tuple[Axis, ...]
    measure: Measure

    def __post_init__(self) -> None:
        if not 2 <= len(self.axes) <= 3:
            raise HardcaseError(
                f"a map has two or three axes, not {len(self.axes)}.", fix="--map brightness,slant"
            )

    def __len__(self) -> int:
        return math.prod(axis.cells for axis in self.axes)

    def __call__(self, x: Float[Tensor, "m c h w"]) -> Int[Tensor, " m"]:
        """The cell of each image."""
        return self.index(self.measure(x))

    def index(self, features: Float[Tensor, "m f"]) -> Int[Tensor, " m"]:
        """The cell of each row of features."""
        place = torch.zeros(len(features), dtype=torch.int64, device=features.device)
        for axis, value in zip(self.axes, features.unbind(1)):
            step = (axis.cells * (value.double() - axis.low) + EPSILON) / (axis.high - axis.low)
            place = place * axis.cells + step.nan_to_num(0).clamp(0, axis.cells - 1).long()
        return place

    def centres(self) -> Float[Tensor, "cells f"]:
        """The middle of each cell."""
        sides = [
            axis.low + (torch.arange(axis.cells) + 0.5) * (axis.high - axis.low) / axis.cells
            for axis in self.axes
        ]
        return torch.cartesian_prod(*sides).reshape(len(self), len(self.axes)).float()

    def scaled(self, features: Float[Tensor, "m f"]) -> Float[Tensor, "m f"]:
        """Features in cells, so that axes count alike."""
        low = features.new_tensor([axis.low for axis in self.axes])
        width = features.new_tensor([(axis.high - axis.low) / axis.cells for axis in self.axes])
        return (features - low) / width


def pixel_distance(probe: Probe) -> Float[Tensor, " m"]:
    """The Euclidean distance of candidates from their originals' images."""
    gap = (probe.x - probe.origin.x).flatten(1)
    return gap.square().sum(1).sqrt()


@guide("archive", needs="a map", paper="Mouret and Clune, 2015 (MAP-Elites)")
class Archive:
    """A map as a guide.

    Args:
        grid: The cells.
        oracle: Which candidates fail.
        objective: Which candidates of an image are the better parents.
        witnessed: Which failures all witnesses keep; None where there are no witnesses.
        distance: How far a candidate is from its seed.
        capacity: Candidates of each image that may become parents.
        base: The state after earlier rounds.
    """

    name = "map"

    def __init__(
        self,
        grid: CellGrid,
        oracle: Oracle,
        *,
        objective: Objective | None = None,
        witnessed: Oracle | None = None,
        distance: Distance = pixel_distance,
        capacity: int = 32,
        base: State | None = None,
    ) -> None:
        self.grid = grid
        self.oracle = oracle
        self.objective = objective or Margin()
        self.witnessed = witnessed
        self.distance = distance
        self.capacity = max(2, capacity)
        self.base = base or _empty(len(grid))
        self.own = _empty(len(grid))
        self.parents = _Parents(len(grid), len(grid.axes), self.capacity)

    @property
    def taps(self) -> Mapping[str, Tap]:
        return {}

    @property
    def wanted(self) -> int:
        """The level at which a cell is filled: failing, and witnessed where witnesses exist."""
        if self.witnessed is None:
            return FAILING
        return WITNESSED

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        """For each image a cell that is not filled, near to what the image has reached and drawn
        the rarer the more often it was aimed at, and the seed's candidate nearest to it; nothing
        before any candidate was seen."""
        if not len(rows) or not self.parents.known(rows):
            return {}
        level = torch.maximum(self.base["level"], self.own["level"])
        weight = 1.0 / (1 + self.base["aimed"] + self.own["aimed"]).double()
        empty = level < self.wanted
        if bool(empty.any()):
            weight = weight * empty
        weight = weight.to(rows.device)
        centres = self.grid.centres().to(rows.device)
        target = self.grid.scaled(centres)
        drawn = rng.uniform(rows).double()
        cells = []
        for part in chunks(len(rows), 128):
            away = self.parents.away(rows[part], target).double()  # m cells
            chance = weight * (-away / REACH).exp()
            edge = chance.cumsum(1) / chance.sum(1, keepdim=True)
            cells.append(torch.searchsorted(edge, drawn[part, None], right=True).squeeze(1))
        cell = torch.cat(cells).clamp_max(len(self.grid) - 1)
        self.own["aimed"] += torch.bincount(cell.cpu(), minlength=len(self.grid))
        return {
            PARENT: self.parents.nearest(rows, target[cell]),
            f"{self.name}/target": centres[cell],
            f"{self.name}/cell": cell,
        }

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        """By how many levels a candidate would lift its cell: reached, failing, witnessed."""
        _, cell, level = self._placed(probe)
        level_before = torch.maximum(self.base["level"], self.own["level"]).to(cell.device)
        lifted = (level - level_before[cell]).clamp_min(0)
        return torch.where(level == UNSEEN, 0, lifted).to(probe.logits.dtype)

    def update(self, probe: Probe) -> None:
        features, cell, level = self._placed(probe)
        lifting = (unseen(probe) & (level > UNSEEN)).nonzero().squeeze(1)
        if not len(lifting):
            return
        if "row" in probe.targets:
            with torch.no_grad():
                score = self.objective(probe)
            self.parents.add(
                row_of(probe)[lifting],
                cell[lifting],
                self.grid.scaled(features[lifting]),
                score[lifting],
                probe.z[lifting],
            )
        reached = cell[lifting].cpu()
        self.own["visits"] += torch.bincount(reached, minlength=len(self.grid))
        here = torch.zeros_like(self.own["level"]).index_fill_(0, reached, REACHED)
        self.own["level"] = torch.maximum(self.own["level"], here)
        failing = lifting[level[lifting] >= FAILING]
        if len(failing):
            self._keep(probe, failing, cell, level)

    def fork(self) -> Archive:
        return Archive(
            self.grid,
            self.oracle,
            objective=self.objective,
            witnessed=self.witnessed,
            distance=self.distance,
            capacity=self.capacity,
            base=_merged([self.base, self.own]),
        )

    def delta(self) -> State:
        """The state of every cell in this fork."""
        return {name: value.clone() for name, value in self.own.items()}

    def merge(self, deltas: Sequence[State]) -> None:
        on_cpu = [{name: value.cpu() for name, value in delta.items()} for delta in deltas]
        self.base = _merged([self.base, self.own, *on_cpu])
        self.own = _empty(len(self.grid))

    def value(self) -> float:
        """The share of cells that are filled."""
        level = _merged([self.base, self.own])["level"]
        return float((level >= self.wanted).double().mean())

    def table(self) -> list[dict[str, Any]]:
        """A row per cell: its middle, its state, and its elite where it fails."""
        state = _merged([self.base, self.own])
        rows = []
        for cell, centre in enumerate(self.grid.centres().tolist()):
            level = int(state["level"][cell])
            row = {axis.name: value for axis, value in zip(self.grid.axes, centre)}
            row |= {"cell": cell, "state": LEVELS[level], "visits": int(state["visits"][cell])}
            if level >= FAILING:
                row |= {name: state[name][cell].item() for name in ELITE[1:]}
            rows.append(row)
        return rows

    def _placed(
        self, probe: Probe
    ) -> tuple[Float[Tensor, "m f"], Int[Tensor, " m"], Int[Tensor, " m"]]:
        """Features, cell and level of each candidate; unseen where something is no number."""
        with torch.no_grad():
            features = self.grid.measure(probe.x)
            failing = self.oracle(probe)
            accepted = torch.zeros_like(failing)
            if self.witnessed is not None:
                accepted = failing & self.witnessed(probe)
        level = REACHED + failing.long() + accepted.long()
        sound = features.isfinite().all(1) & probe.logits.isfinite().all(1)
        return features, self.grid.index(features), torch.where(sound, level, UNSEEN)

    def _keep(
        self,
        probe: Probe,
        rows: Int[Tensor, " r"],
        cell: Int[Tensor, " m"],
        level: Int[Tensor, " m"],
    ) -> None:
        """Put the best of these rows into their cells where they are better than what is there."""
        claims = claim_context(probe.origin.context)
        candidates = {
            "level": level[rows].cpu(),
            "distance": self.distance(probe)[rows].float().cpu(),
            "seed": probe.origin.id[rows].cpu(),
            "expected": probe.origin.y[rows].cpu(),
            "predicted": stored_label(
                probe.logits[rows].argmax(1), probe.logits.shape[1], claims
            ).cpu(),
        }
        place = cell[rows].cpu()
        # Stable sorts from the least to the most important key leave the winner of each cell first,
        # in a total order: ties do not depend on the order of rows.
        order = torch.arange(len(rows))
        for key in (candidates["seed"], candidates["distance"], -candidates["level"], place):
            order = order[key[order].argsort(stable=True)]
        best = order[ordinal(place[order]) == 0]
        fresh = _empty(len(self.grid))
        for name in ELITE:
            fresh[name][place[best]] = candidates[name][best]
        self.own = _merged([self.own, fresh])


def _empty(cells: int) -> State:
    zeros = torch.zeros(cells, dtype=torch.int64)
    return {
        "level": zeros.clone(),
        "distance": torch.full((cells,), torch.inf),
        "seed": zeros + torch.iinfo(torch.int64).max,
        "expected": zeros - 1,
        "predicted": zeros - 1,
        **{name: zeros.clone() for name in COUNTS},
    }


def _merged(states: Sequence[State]) -> State:
    """The better elite of each cell, and the sum of the counts."""
    best = dict(states[0])
    for other in states[1:]:
        # Among cells without a failure no candidate is better: such a cell only takes the higher
        # level and the sum of the counts.
        higher = other["level"].clamp_min(REACHED) - best["level"].clamp_min(REACHED)
        alike = other["distance"] == best["distance"]
        nearer = (other["distance"] < best["distance"]) | (alike & (other["seed"] < best["seed"]))
        better = (other["level"] >= FAILING) & ((higher > 0) | ((higher == 0) & nearer))
        level = torch.maximum(best["level"], other["level"])
        for name in ELITE:
            best[name] = torch.where(better, other[name], best[name])
        best["level"] = level
        for name in COUNTS:
            best[name] = best[name] + other[name]
    return best


class _Parents:
    """For each original its image and the best candidate of each cell that it reached last."""

    def __init__(self, cells: int, features: int, capacity: int) -> None:
        self.cells = cells
        self.features = features
        self.capacity = capacity
        self.size = torch.zeros(0, dtype=torch.int64)
        self.slot = torch.zeros(0, cells, dtype=torch.int64)  # of each cell; -1: none
        self.cell = torch.zeros(0, capacity, dtype=torch.int64)
        self.place = torch.zeros(0, capacity, features)
        self.score = torch.zeros(0, capacity)
        self.code: Tensor | None = None

    def known(self, rows: Int[Tensor, " m"]) -> bool:
        return int(rows.max()) < len(self.size) and bool((self.size[rows] > 0).all())

    def away(self, rows: Int[Tensor, " m"], places: Float[Tensor, "p f"]) -> Float[Tensor, "m p"]:
        """How far the nearest parent of each row is from each place, in cells."""
        exact = "donot_use_mm_for_euclid_dist"
        gap = torch.cdist(self.place[rows], places, compute_mode=exact)  # m capacity p
        return torch.where(self._used(rows)[:, :, None], gap, torch.inf).amin(1)

    def nearest(self, rows: Int[Tensor, " m"], target: Float[Tensor, "m f"]) -> Tensor:
        """The code of the candidate nearest to each row's target."""
        assert self.code is not None
        gap = (self.place[rows] - target[:, None]).square().sum(2)
        return self.code[rows, torch.where(self._used(rows), gap, torch.inf).argmin(1)]

    def _used(self, rows: Int[Tensor, " m"]) -> Bool[Tensor, "m capacity"]:
        slots = torch.arange(self.capacity, device=rows.device)
        return slots < self.size[rows][:, None]

    def add(
        self,
        rows: Int[Tensor, " m"],
        cell: Int[Tensor, " m"],
        place: Float[Tensor, "m f"],
        score: Float[Tensor, " m"],
        code: Tensor,
    ) -> None:
        if self.code is None:
            self.code = code.new_zeros(len(self.size), self.capacity, *code.shape[1:])
        for name, empty in (("slot", -1), ("cell", -1)):
            setattr(self, name, grown(getattr(self, name), rows, empty))
        for name in ("size", "place", "score", "code"):
            setattr(self, name, grown(getattr(self, name), rows))
        values = {"cell": cell, "place": place, "score": score.to(self.score), "code": code}
        order = (-score).argsort(stable=True)
        # Of candidates of this very call that fall into one cell only the best goes on: otherwise
        # two of them would write into the same slot, in an order that a device does not promise.
        best = order[ordinal((rows * self.cells + cell)[order]) == 0].sort().values
        slot = self.slot[rows[best], cell[best]]
        old = slot >= 0
        better = best[old][score[best[old]] > self.score[rows[best[old]], slot[old]]]
        self._put(better, self.slot[rows[better], cell[better]], rows, values)
        new = best[~old]
        self.size, stays, slot = appended(self.size, rows[new], self.capacity)
        new = new[stays]
        # A full table gives up a slot: the cell that pointed to it is empty again.
        gone = self.cell[rows[new], slot]
        freed = gone >= 0
        self.slot[rows[new][freed], gone[freed]] = -1
        self._put(new, slot, rows, values)

    def _put(
        self,
        chosen: Int[Tensor, " k"],
        slot: Int[Tensor, " k"],
        rows: Int[Tensor, " m"],
        values: Mapping[str, Tensor],
    ) -> None:
        """Write the chosen candidates into the slots of their seeds."""
        owners = rows[chosen]
        self.slot[owners, values["cell"][chosen]] = slot
        for name, value in values.items():
            getattr(self, name)[owners, slot] = value[chosen]
