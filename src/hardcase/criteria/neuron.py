"""Criteria over units and layers: NC, KMNC, NBC, SNAC, TKNC, TKNP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.criterion import COUNT, CoverageResult, CriterionPlan, Rule, criterion
from hardcase.criteria.memory import Bits, Patterns
from hardcase.criteria.network import Order, Selection
from hardcase.criteria.profile import ActivationBatch, Profile, Range, units_at_once
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, stream
from hardcase.tensors import Copies, chunks
from hardcase.types import Scores, Targets

# L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018;
# Layer-SNAC: the MaXplore report (Topk-MaXplore). The texts write closed corners; here a corner is
# open unless the convention says otherwise. The counting of units with both corners seen is that of
# the project "Adversarial image generation based on various neuron coverage". Not-a-number reaches
# no corner. Layer-SNAC differs from MaXplore's: there the bounds start at zero, are raised to each
# original's own values first, and the first layer is left out of the plots.


@dataclass(frozen=True)
class BoundarySections:
    """Units beyond their training range: NBC (both sides) and SNAC (above)."""

    selection: Selection
    range: Range
    sides: Literal["both", "above"] = "both"
    widen: float = 0.0
    equal: Literal["none", "above", "both"] = "none"
    count: Literal["corners", "both", "either"] = "corners"

    @property
    def columns(self) -> int:
        return {"both": 2, "above": 1}[self.sides]

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.columns)

    def observe(self, batch: ActivationBatch, memory: Bits) -> None:
        extremes = batch.extremes(self.selection)
        memory.cover(self._beyond(extremes.high, extremes.low))

    def gain(self, batch: ActivationBatch, memory: Bits) -> Scores:
        values = batch.matrix(self.selection)
        fresh = self._beyond(values, values) & ~memory.covered().to(batch.device)
        return fresh.flatten(1).sum(1).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"corner": memory.pick(rows, rng)}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Bits) -> Scores:
        """Beyond the bound, up or down, measured in widths of the unit's range."""
        unit = targets["corner"] // self.columns
        below = targets["corner"] % self.columns == 1
        low, high = (bound[unit] for bound in self._bounds.on(batch.device))
        value = batch.matrix(self.selection).gather(1, unit[:, None]).squeeze(1)
        width = torch.where(high > low, high - low, 1)
        return torch.where(below, low - value, value - high) / width

    def result(self, memory: Bits) -> CoverageResult:
        cells = memory.covered()
        counted = {"corners": cells, "both": cells.all(1), "either": cells.any(1)}[self.count]
        covered = int(counted.sum())
        names = ("above", "below")[: self.columns]
        sides = dict(zip(names, cells.sum(0).tolist(), strict=True))
        return CoverageResult.ratio(covered, counted.numel(), **sides)

    @cached_property
    def _bounds(self) -> Copies:
        margin = self.widen * self.range.variance.sqrt()
        return Copies(self.range.low - margin, self.range.high + margin)

    def _beyond(
        self, high: Float[Tensor, "*m u"], low: Float[Tensor, "*m u"]
    ) -> Bool[Tensor, "*m u s"]:
        """Which corners are reached by these greatest and least values: above first, then below."""
        least, most = self._bounds.on(high.device)
        above = high > most
        if self.equal != "none":
            above = high >= most
        if self.sides == "above":
            return above[..., None]
        below = low < least
        if self.equal == "both":
            below = low <= least
        return torch.stack([above, below], -1)


@dataclass(frozen=True)
class LayerBoundarySections(BoundarySections):
    """SNAC of each layer, and their mean: Layer-SNAC."""

    def result(self, memory: Bits) -> CoverageResult:
        """The mean over layers of the share of units above their range."""
        parts = torch.split(memory.covered()[:, 0], list(self.selection.widths))
        shares = [part.double().mean().item() for part in parts]
        layers = dict(zip(self.selection.names, shares, strict=True))
        mean = sum(shares) / len(shares)
        return CoverageResult(mean, memory.count(), self.selection.units, {"layers": layers})


# L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018.
# Ties go to the unit with the lower number; not-a-number is never among the strongest. TKNP is a
# count of distinct patterns, not a ratio.


@dataclass(frozen=True)
class Strongest:
    """TKNC: units among the `k` strongest of their layer."""

    selection: Selection
    k: int = 3

    def memory(self) -> Bits:
        return Bits(self.selection.units)

    def observe(self, batch: ActivationBatch, memory: Bits) -> None:
        shape = (self.selection.units + 1, 1)
        strongest = torch.zeros(shape, dtype=torch.bool, device=batch.device)
        strongest[batch.top(self.selection, self.k)] = (
            True  # -1, no unit, falls on the spare last row
        )
        memory.cover(strongest[:-1])

    def gain(self, batch: ActivationBatch, memory: Bits) -> Scores:
        free = ~memory.covered()[:, 0].to(batch.device)
        fresh = torch.cat([free, torch.zeros_like(free[:1])])  # the spare last place is -1, no unit
        return fresh[batch.top(self.selection, self.k)].flatten(1).sum(1).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"unit": memory.pick(rows, rng)}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Bits) -> Scores:
        return rise(batch.matrix(self.selection), self.selection, targets["unit"], self.k)

    def result(self, memory: Bits) -> CoverageResult:
        return CoverageResult.ratio(memory.count(), memory.rows)


@dataclass(frozen=True)
class Combinations:
    """TKNP: different combinations of strongest units; `ordered`: their ranks matter too."""

    selection: Selection
    k: int = 3
    ordered: bool = False

    def memory(self) -> Patterns:
        return Patterns()

    def observe(self, batch: ActivationBatch, memory: Patterns) -> None:
        memory.add(*self._hashes(batch))

    def gain(self, batch: ActivationBatch, memory: Patterns) -> Scores:
        hashes, valid = self._hashes(batch)
        return (memory.news(hashes).to(batch.device) & valid).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Patterns) -> dict[str, Tensor]:
        """Any unit: raising it changes the combination unless it is strong already."""
        return {"unit": rng.integers(rows, self.selection.units)}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Patterns) -> Scores:
        return rise(batch.matrix(self.selection), self.selection, targets["unit"], self.k)

    def result(self, memory: Patterns) -> CoverageResult:
        return CoverageResult(float(memory.count()), memory.count())

    def _hashes(self, batch: ActivationBatch) -> tuple[Int[Tensor, " m"], Bool[Tensor, " m"]]:
        """The sum of a random key for each unit named, and which rows name any unit."""
        top = batch.top(self.selection, self.k)
        rank = torch.arange(self.k, device=batch.device) * self.ordered
        (keys,) = self._keys.on(batch.device)
        return keys[rank, top].flatten(1).sum(1), (top >= 0).flatten(1).any(1)

    @cached_property
    def _keys(self) -> Copies:
        """A random number for each unit (and rank); the last number is for no unit."""
        shape = (self.k if self.ordered else 1, self.selection.units + 1)
        return Copies(torch.randint(-(2**63), 2**63 - 1, shape, generator=stream(0, "patterns")))


def rise(
    values: Float[Tensor, "m u"], selection: Selection, unit: Int[Tensor, " m"], k: int
) -> Scores:
    """How far a unit is above the `k`-th strongest of the others in its layer."""
    starts = torch.tensor([*selection.starts, selection.units], device=values.device)
    layer = torch.searchsorted(starts, unit, right=True) - 1
    number = torch.arange(selection.units, device=values.device)
    inside = (number >= starts[layer][:, None]) & (number < starts[layer + 1][:, None])
    others = values.masked_fill(~inside | (number == unit[:, None]) | values.isnan(), -torch.inf)
    rival = others.topk(min(k, selection.units), dim=1).values[:, -1]
    rival = rival.where(rival > -torch.inf, 0)  # a layer no wider than k: nothing to overtake
    return values.gather(1, unit[:, None]).squeeze(1) - rival


# K. Pei, Y. Cao, J. Yang, S. Jana, "DeepXplore: automated whitebox testing of deep learning
# systems", SOSP 2017.
#
# Differences: the paper writes "for all inputs" where "for some input" is meant. Not-a-number
# covers nothing.


@dataclass(frozen=True)
class Activated:
    """NC: units above a threshold for any input; scaled within it, if `epsilon` is set."""

    selection: Selection
    threshold: float = 0.0
    epsilon: float | None = None

    def memory(self) -> Bits:
        return Bits(self.selection.units)

    def observe(self, batch: ActivationBatch, memory: Bits) -> None:
        if self.epsilon is None:
            most = batch.extremes(self.selection).high
        else:
            most = batch.scaled(self.selection, self.epsilon).nan_to_num(nan=-torch.inf).amax(0)
        memory.cover((most > self.threshold)[:, None])

    def gain(self, batch: ActivationBatch, memory: Bits) -> Scores:
        fresh = ~memory.covered()[:, 0].to(batch.device)
        return ((self._values(batch) > self.threshold) & fresh).sum(1).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"unit": memory.pick(rows, rng)}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Bits) -> Scores:
        """The unit's value: up."""
        return self._values(batch).gather(1, targets["unit"][:, None]).squeeze(1)

    def result(self, memory: Bits) -> CoverageResult:
        return CoverageResult.ratio(memory.count(), memory.rows)

    def _values(self, batch: ActivationBatch) -> Float[Tensor, "m u"]:
        if self.epsilon is None:
            return batch.matrix(self.selection)
        return batch.scaled(self.selection, self.epsilon)


# k-multisection neuron coverage (KMNC): which parts of each unit's training range were seen.
#
# L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018.
# Values outside the training range fill nothing. Tools differ in who owns a cut point; the default
# is right-open with the last section closed.


_CUTS = {"closed": ("right-open", "left-open")}
"""Closed sections are those of both conventions: a value on a cut point fills two."""


@dataclass(frozen=True)
class Sections:
    """Which of the `k` equal parts of each unit's training range were hit: KMNC."""

    selection: Selection
    range: Range
    k: int = 1000
    cuts: Literal["right-open", "left-open", "closed"] = "right-open"
    top: Literal["last", "corner"] = "last"
    constant: Literal["skip", "never", "all"] = "skip"

    @cached_property
    def still(self) -> Bool[Tensor, " u"]:
        """Units whose training range is a point or not finite: it has no sections."""
        width = (self.range.high - self.range.low) / self.k
        return ~(width.isfinite() & (width > 0))

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.k)

    def observe(self, batch: ActivationBatch, memory: Bits) -> None:
        for start, cells in self._cells(batch):
            memory.mark(start, cells)
        if self.constant == "all":
            hit = self._touched(batch).any(0)
            memory.cover(hit[:, None].expand(-1, self.k))

    def gain(self, batch: ActivationBatch, memory: Bits) -> Scores:
        gain = torch.zeros(len(batch), device=batch.device)
        for start, cells in self._cells(batch):
            gain += memory.news(start, cells).sum(0)
        if self.constant == "all":
            free = (~memory.covered()).sum(1).to(batch.device)
            gain += (self._touched(batch) * free).sum(1)
        return gain

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"section": memory.pick(rows, rng, usable=~self.still)}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Bits) -> Scores:
        """Toward the centre of the section, measured in widths of the unit's range."""
        unit = targets["section"] // self.k
        section = targets["section"] % self.k
        low, _, width = (part[unit, 0] for part in self._geometry.on(batch.device))
        value = batch.matrix(self.selection).gather(1, unit[:, None]).squeeze(1)
        return -(((value - low) / width - (section + 0.5)) / self.k).square()

    def result(self, memory: Bits) -> CoverageResult:
        still = int(self.still.sum())
        units = memory.rows - still * (self.constant == "skip")
        return CoverageResult.ratio(memory.count(), units * self.k, **{"constant units": still})

    def _cells(self, batch: ActivationBatch) -> Iterator[tuple[int, Int[Tensor, "u m"]]]:
        """The number of the first unit of a block, and the section of each value (0: outside)."""
        within = torch.lt if self.top == "corner" else torch.le
        geometry = self._geometry.on(batch.device)
        extremes = batch.extremes(self.selection)
        exceeding = ~within(extremes.high, geometry[1][:, 0])
        first = 0
        for block in batch.blocks(self.selection):
            columns = block.detach().t()
            for part in chunks(len(columns), units_at_once(block)):
                units = slice(first + part.start, first + part.stop)
                low, top, width = (each[units] for each in geometry)
                values = columns[part]
                for cut in _CUTS.get(self.cuts, (self.cuts,)):
                    # subtracted into its place, a unit's values lie together: no copy before
                    place = torch.sub(
                        values, low, out=torch.empty(values.shape, device=values.device)
                    )
                    if extremes.clean:  # few units leave their range: only these are compared
                        units_over = exceeding[units].nonzero().squeeze(1)
                        inside = within(values[units_over], top[units_over])
                        place[units_over] = torch.where(inside, place[units_over], -torch.inf)
                    else:
                        place = torch.where(within(values, top), place, -torch.inf)
                    place = place.div_(width)  # widths above the least value; below it: 0
                    place = place.floor_().add_(1) if cut == "right-open" else place.ceil_()
                    yield units.start, place.clamp_(0, self.k).int().long()
            first += len(columns)

    @cached_property
    def _geometry(self) -> Copies:
        """Where each range begins and ends (-inf for a constant unit), and a section's width."""
        still = self.still[:, None]
        low = self.range.low[:, None]
        high = self.range.high[:, None]
        return Copies(
            low.masked_fill(still, 0),
            high.masked_fill(still, -torch.inf),
            ((high - low) / self.k).masked_fill(still, 1),
        )

    def _touched(self, batch: ActivationBatch) -> Bool[Tensor, "m u"]:
        """Where a constant unit shows its only value."""
        low, still = (part.to(batch.device) for part in (self.range.low, self.still))
        return (batch.matrix(self.selection) == low) & still


# Factories: each decorator is the row of its criterion, each signature its options.

_GAUGE = "Ma et al.: DeepGauge, ASE 2018"
_plain = partial(criterion, paper=_GAUGE, cite="ma2018deepgauge")
_profiled = partial(_plain, needs="activations, profile")

Equal = Literal["none", "above", "both"]


@criterion("nc", paper="Pei, Cao, Yang, Jana: DeepXplore, SOSP 2017", cite="pei2017deepxplore")
def nc(
    selection: Selection,
    *,
    threshold: float = 0.0,
    scale: Literal["none", "input"] = "none",
    order: Order = "mean-scale",
    epsilon: float = 0.0,
) -> CriterionPlan:
    """Neuron coverage: units active for any input.

    Share of units whose value exceeds the threshold for any input.

    Args:
        threshold: Values above it count as active.
        scale: Scale each layer to [0, 1] within an input, or not at all.
        order: Average channels before or after scaling.
        epsilon: Added to the width when scaling.
    """
    selection = replace(selection, order=order)
    rule = Activated(selection, threshold)
    if scale == "input":
        rule = Activated(selection, threshold, epsilon)
    return CriterionPlan(selection, lambda _: rule)


@_profiled("kmnc")
def kmnc(
    selection: Selection,
    *,
    k: int = 1000,
    cuts: Literal["right-open", "left-open", "closed"] = "right-open",
    top: Literal["last", "corner"] = "last",
    constant: Literal["skip", "never", "all"] = "skip",
) -> CriterionPlan:
    """K-multisection neuron coverage: sections of each unit's training range that were hit.

    The range of each unit over training data in k equal sections; share of sections hit by any
    input.

    Args:
        k: Sections per unit.
        cuts: Which section owns a cut point.
        top: The highest value belongs to the last section, or to none.
        constant: Units without a range are left out, never hit, or filled when hit.
    """
    _at_least_one("kmnc", "k", k)
    return _by_range(selection, lambda ranges: Sections(selection, ranges, k, cuts, top, constant))


@_profiled("nbc")
def nbc(
    selection: Selection,
    *,
    widen: float = 0.0,
    equal: Equal = "none",
    count: Literal["corners", "both", "either"] = "corners",
) -> CriterionPlan:
    """Neuron boundary coverage: units driven beyond their training range, either way.

    Upper and lower corners reached by any input, of two per unit (or units with both, or either).

    Args:
        count: What is counted.
    """
    return _by_range(
        selection, lambda ranges: BoundarySections(selection, ranges, "both", widen, equal, count)
    )


@_profiled("snac")
def snac(selection: Selection, *, widen: float = 0.0, equal: Equal = "none") -> CriterionPlan:
    """Strong neuron activation coverage: units driven above their training range.

    Share of units that exceed their greatest training value for any input.
    """
    return _by_range(
        selection, lambda ranges: BoundarySections(selection, ranges, "above", widen, equal)
    )


@_profiled("layer-snac", paper="MaXplore report (Topk-MaXplore)", cite="lee2020maxplore")
def layer_snac(selection: Selection, *, widen: float = 0.0, equal: Equal = "none") -> CriterionPlan:
    """Strong neuron activation coverage layer by layer.

    Mean over layers of the share of units that exceed their greatest training value; each layer in
    detail.
    """
    return _by_range(
        selection, lambda ranges: LayerBoundarySections(selection, ranges, "above", widen, equal)
    )


@_plain("tknc")
def tknc(selection: Selection, *, k: int = 3) -> CriterionPlan:
    """Top-k neuron coverage: units that were among the strongest of their layer.

    Share of units among the k strongest of their layer for any input.

    Args:
        k: How many per layer.
    """
    _at_least_one("tknc", "k", k)
    return CriterionPlan(selection, lambda _: Strongest(selection, k))


@_plain("tknp", laws=COUNT)
def tknp(selection: Selection, *, k: int = 3, ordered: bool = False) -> CriterionPlan:
    """Top-k neuron patterns: combinations of strongest units.

    Number of different combinations, over all layers, of the k strongest units of each (a count,
    not a ratio).

    Args:
        k: How many per layer.
        ordered: Their ranks matter.
    """
    _at_least_one("tknp", "k", k)
    return CriterionPlan(selection, lambda _: Combinations(selection, k, ordered))


def _by_range(selection: Selection, rule: Callable[[Range], Rule]) -> CriterionPlan:
    """The plan of a rule that compares with the units' range over training data."""

    def make(profile: Profile | None) -> Rule:
        assert profile is not None
        return rule(profile.range(selection))

    return CriterionPlan(selection, make, ranges=(selection,))


def _at_least_one(criterion: str, option: str, value: int) -> None:
    if value < 1:
        raise HardcaseError(f"{criterion}:{option}={value} must be 1 or more.")
