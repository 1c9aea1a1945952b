"""Criteria over units and layers: NC, KMNC, NBC, SNAC, TKNC, TKNP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.criterion import COUNT, CriterionPlan, Tally, criterion
from hardcase.criteria.frame import Extremes, Frame, units_at_once
from hardcase.criteria.memory import Bits, Counted, Folded, Patterns, summed
from hardcase.criteria.network import RAW, Anatomy, Mode, Order, Scaling, Selection, select
from hardcase.criteria.profile import Profile, Range
from hardcase.errors import Problem
from hardcase.randomness import Rng, stream
from hardcase.tensors import Copies, chunks, steady
from hardcase.types import State

# Neuron boundary coverage (NBC), strong neuron activation coverage (SNAC), and SNAC by layer: units
# beyond their range.
#
# L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018;
# Layer-SNAC: the MaXplore report (Topk-MaXplore). The texts write closed corners; here a corner is
# open unless the convention says otherwise. The counting of units with both corners seen is that of
# the project "Adversarial image generation based on various neuron coverage". Not-a-number reaches
# no corner.


@dataclass(frozen=True)
class Corners:
    """Units seen beyond their training range: NBC (both sides) and SNAC (above).

    `widen` moves the bounds out by that many standard deviations; `equal` says where a value on the
    bound counts; `count` what is counted: every corner, units with both corners seen, or with
    either.
    """

    selection: Selection
    range: Range
    sides: Literal["both", "above"] = "both"
    widen: float = 0.0
    equal: Literal["none", "above", "both"] = "none"
    count: Literal["corners", "both", "either"] = "corners"

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    @property
    def columns(self) -> int:
        return 2 if self.sides == "both" else 1

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.columns)

    def observe(self, frame: Frame, memory: Bits) -> None:
        extremes = frame.extremes(self.selection)
        memory.cover(self._beyond(extremes.high, extremes.low))

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        values = frame.matrix(self.selection)
        return (
            (self._beyond(values, values) & ~memory.covered().to(frame.device))
            .flatten(1)
            .sum(1)
            .float()
        )

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"corner": memory.pick(rows, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        """Beyond the bound: up for an upper corner, down for a lower one,
        measured in widths of the unit's range.
        """
        unit = aim["corner"] // self.columns
        below = aim["corner"] % self.columns == 1
        low, high = (bound[unit] for bound in self._bounds.on(frame.device))
        value = frame.matrix(self.selection).gather(1, unit[:, None]).squeeze(1)
        return torch.where(below, low - value, value - high) / torch.where(
            high > low, high - low, 1
        )

    def tally(self, memory: Bits) -> Tally:
        cells = memory.covered()
        counted = {"corners": cells, "both": cells.all(1), "either": cells.any(1)}[self.count]
        covered = int(counted.sum())
        names = ("above", "below")[: self.columns]
        return Tally(
            covered / counted.numel(),
            covered,
            counted.numel(),
            dict(zip(names, cells.sum(0).tolist(), strict=True)),
        )

    @property
    def bounds(self) -> tuple[Float[Tensor, " u"], Float[Tensor, " u"]]:
        margin = self.widen * self.range.variance.sqrt()
        return self.range.low - margin, self.range.high + margin

    @cached_property
    def _bounds(self) -> Copies:
        return Copies(*self.bounds)

    def _beyond(
        self, high: Float[Tensor, "*m u"], low: Float[Tensor, "*m u"]
    ) -> Bool[Tensor, "*m u s"]:
        """Which corners are reached by these greatest and least values: above first, then below."""
        least, most = self._bounds.on(high.device)
        above = (high > most) if self.equal == "none" else (high >= most)
        if self.sides == "above":
            return above[..., None]
        return torch.stack([above, (low <= least) if self.equal == "both" else (low < least)], -1)


@dataclass(frozen=True)
class LayerCorners:
    """SNAC of each layer, over the suite and as the mean over inputs: Layer-SNAC.

    Differences: MaXplore fills its table from zero and raises it to each seed's own values first;
    here the bound is the training maximum alone. Its first layer is left out in its plots; here
    every chosen layer is reported.
    """

    corners: Corners

    @property
    def selections(self) -> tuple[Selection, ...]:
        return self.corners.selections

    def memory(self) -> Counted:
        layers = len(self.corners.selection.widths)
        zeros = {
            "beyond": torch.zeros(layers, dtype=torch.int64),
            "inputs": torch.zeros(1, dtype=torch.int64),
        }
        return Counted(self.corners.memory(), Folded(zeros, summed))

    def observe(self, frame: Frame, memory: Counted) -> None:
        self.corners.observe(frame, memory.bits)
        values = frame.layers(self.corners.selection)
        most = self.corners._bounds.on(frame.device)[1]
        bounds = torch.split(most, list(self.corners.selection.widths))
        beyond = torch.stack(
            [
                ((v > b) if self.corners.equal == "none" else (v >= b)).sum()
                for v, b in zip(values, bounds, strict=True)
            ]
        )
        memory.sums.add({"beyond": beyond, "inputs": torch.tensor([len(frame)])})

    def gain(self, frame: Frame, memory: Counted) -> Float[Tensor, " m"]:
        return self.corners.gain(frame, memory.bits)

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Counted) -> dict[str, Tensor]:
        return self.corners.choose(rows, rng, memory.bits)

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Counted) -> Float[Tensor, " m"]:
        return self.corners.pull(frame, aim, memory.bits)

    def tally(self, memory: Counted) -> Tally:
        """The mean over layers of the share of units seen above their range;
        the layers themselves in `detail`.
        """
        selection = self.corners.selection
        sums = memory.sums.total()
        parts = torch.split(memory.bits.covered()[:, 0], list(selection.widths))
        shares = [part.double().mean().item() for part in parts]
        inputs = max(1, int(sums["inputs"]))
        means = (sums["beyond"].double() / inputs / torch.tensor(selection.widths)).tolist()
        layers = {
            name: {"suite": s, "mean input": i}
            for name, s, i in zip(selection.names, shares, means, strict=True)
        }
        covered = memory.bits.count()
        return Tally(sum(shares) / len(shares), covered, selection.units, {"layers": layers})


# Criteria that look at a layer as a whole: which units are its strongest (TKNC), and in which
# combinations (TKNP).
#
# L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018.
# Ties go to the unit with the lower number; not-a-number is never among the strongest. TKNP is a
# count of distinct patterns, not a ratio.


@dataclass(frozen=True)
class Strongest:
    """Units that were among the `k` strongest of their layer for some input: TKNC. `ranked`:
    each (unit, rank) counts.
    """

    selection: Selection
    k: int = 3
    ranked: bool = False

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.k if self.ranked else 1)

    def observe(self, frame: Frame, memory: Bits) -> None:
        found = torch.zeros(
            self.selection.units + 1, memory.columns, dtype=torch.bool, device=frame.device
        )
        top = frame.top(self.selection, self.k)
        rank = (
            torch.arange(self.k, device=frame.device).expand_as(top)
            if self.ranked
            else torch.zeros_like(top)
        )
        found[top.flatten(), rank.flatten()] = True  # -1, no unit, falls on the spare last row
        memory.cover(found[:-1])

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        free = ~memory.covered().to(frame.device)
        fresh = torch.cat([free, torch.zeros_like(free[:1])])  # the spare last row is -1, no unit
        top = frame.top(self.selection, self.k)
        rank = (
            torch.arange(self.k, device=frame.device).expand_as(top)
            if self.ranked
            else torch.zeros_like(top)
        )
        return fresh[top, rank].flatten(1).sum(1).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"unit": memory.pick(rows, rng) // memory.columns}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        return rise(frame.matrix(self.selection), self.selection, aim["unit"], self.k)

    def tally(self, memory: Bits) -> Tally:
        covered = memory.count()
        total = memory.rows * memory.columns
        return Tally(covered / total, covered, total)


@dataclass(frozen=True)
class Combinations:
    """How many different combinations of strongest units over all layers: TKNP. `ordered`:
    their ranks matter too.
    """

    selection: Selection
    k: int = 3
    ordered: bool = False

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Patterns:
        return Patterns()

    def observe(self, frame: Frame, memory: Patterns) -> None:
        memory.add(*self._hashes(frame))

    def gain(self, frame: Frame, memory: Patterns) -> Float[Tensor, " m"]:
        hashes, known = self._hashes(frame)
        return (memory.news(hashes).to(frame.device) & known).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Patterns) -> dict[str, Tensor]:
        """Any unit: made strong, it changes the combination unless it is strong already."""
        return {"unit": rng.integers(rows, self.selection.units)}

    def pull(
        self, frame: Frame, aim: Mapping[str, Tensor], memory: Patterns
    ) -> Float[Tensor, " m"]:
        return rise(frame.matrix(self.selection), self.selection, aim["unit"], self.k)

    def tally(self, memory: Patterns) -> Tally:
        return Tally(float(memory.count()), memory.count())

    def _hashes(self, frame: Frame) -> tuple[Int[Tensor, " m"], Bool[Tensor, " m"]]:
        """The sum of a random number for each unit named (and its rank, if that matters),
        and which rows name any unit.
        """
        top = frame.top(self.selection, self.k)
        rank = (
            torch.arange(self.k, device=frame.device)
            if self.ordered
            else torch.zeros(self.k, dtype=torch.int64, device=frame.device)
        )
        (keys,) = self._keys.on(frame.device)
        return keys[rank, top].flatten(1).sum(1), (top >= 0).flatten(1).any(1)

    @cached_property
    def _keys(self) -> Copies:
        """A random number for each unit (and rank); the last one is for no unit."""
        shape = (self.k if self.ordered else 1, self.selection.units + 1)
        return Copies(torch.randint(-(2**63), 2**63 - 1, shape, generator=stream(0, "patterns")))


def rise(
    values: Float[Tensor, "m u"], selection: Selection, unit: Int[Tensor, " m"], k: int
) -> Float[Tensor, " m"]:
    """How far a unit is above the `k`-th strongest of the others in its layer:
    positive once it is among the strongest.
    """
    starts = torch.tensor([*selection.starts, selection.units], device=values.device)
    layer = torch.searchsorted(starts, unit, right=True) - 1
    number = torch.arange(selection.units, device=values.device)
    inside = (number >= starts[layer][:, None]) & (number < starts[layer + 1][:, None])
    others = values.masked_fill(~inside | (number == unit[:, None]) | values.isnan(), -torch.inf)
    rival = others.topk(min(k, selection.units), dim=1).values[:, -1]
    rival = rival.where(rival > -torch.inf, 0)  # a layer no wider than k: nothing to overtake
    return values.gather(1, unit[:, None]).squeeze(1) - rival


# Neuron coverage: which units were active for some input.
#
# K. Pei, Y. Cao, J. Yang, S. Jana, "DeepXplore: automated whitebox testing of deep learning
# systems", SOSP 2017.
#
# Differences: the paper writes "for all inputs" where "for some input" is meant. Not-a-number
# covers nothing.


@dataclass(frozen=True)
class Activated:
    """Units above a threshold for some input: NC. `scaling` per input or over the suite,
    else raw values.
    """

    selection: Selection
    threshold: float = 0.0
    scaling: Scaling = RAW

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Bits:
        return Bits(self.selection.units)

    def observe(self, frame: Frame, memory: Bits) -> None:
        if self.scaling.per == "none":
            most = frame.extremes(self.selection).high
        else:
            most = frame.scaled(self.selection, self.scaling).nan_to_num(nan=-torch.inf).amax(0)
        memory.cover((most > self.threshold)[:, None])

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        fresh = ~memory.covered()[:, 0].to(frame.device)
        return ((self._values(frame) > self.threshold) & fresh).sum(1).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"unit": memory.pick(rows, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        """The unit's own value: up."""
        return self._values(frame).gather(1, aim["unit"][:, None]).squeeze(1)

    def tally(self, memory: Bits) -> Tally:
        covered = memory.count()
        return Tally(covered / memory.rows, covered, memory.rows)

    def _values(self, frame: Frame) -> Float[Tensor, "m u"]:
        plain = self.scaling.per == "none"
        return frame.matrix(self.selection) if plain else frame.scaled(self.selection, self.scaling)


@dataclass(frozen=True)
class SuiteActivated:
    """NC scaled by the extremes that each layer reached over the whole suite:
    a later input can uncover a unit again.
    """

    selection: Selection
    threshold: float = 0.5

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    def memory(self) -> Folded:
        nothing = torch.full((self.selection.units,), torch.inf)
        return Folded({"low": nothing, "high": -nothing}, _wider)

    def observe(self, frame: Frame, memory: Folded) -> None:
        extremes = frame.extremes(self.selection)
        memory.add({"low": extremes.low, "high": extremes.high})

    def gain(self, frame: Frame, memory: Folded) -> Float[Tensor, " m"]:
        """Units that the row alone would raise above the threshold,
        the layers' extremes staying as they are.
        """
        seen = memory.total()
        low, width = (part.to(frame.device) for part in self._scale(seen))
        above = (frame.matrix(self.selection) - low) > self.threshold * width
        return (above & ~self._covered(seen).to(frame.device)).sum(1).float()

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Folded) -> dict[str, Tensor]:
        table = Bits(self.selection.units)
        table.cover(self._covered(memory.total())[:, None])
        return {"unit": table.pick(rows, rng)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Folded) -> Float[Tensor, " m"]:
        return frame.matrix(self.selection).gather(1, aim["unit"][:, None]).squeeze(1)

    def tally(self, memory: Folded) -> Tally:
        covered = int(self._covered(memory.total()).sum())
        return Tally(covered / self.selection.units, covered, self.selection.units)

    def _scale(self, seen: State) -> tuple[Float[Tensor, " u"], Float[Tensor, " u"]]:
        lows, highs = (
            torch.split(seen[name], list(self.selection.widths)) for name in ("low", "high")
        )
        low = torch.cat([part.amin().expand(len(part)) for part in lows])
        return low, torch.cat([part.amax().expand(len(part)) for part in highs]) - low

    def _covered(self, seen: State) -> Bool[Tensor, " u"]:
        low, width = self._scale(seen)
        return (seen["high"] - low) > self.threshold * width


def _wider(a: State, b: State) -> State:
    return {"low": torch.minimum(a["low"], b["low"]), "high": torch.maximum(a["high"], b["high"])}


# k-multisection neuron coverage (KMNC): which parts of each unit's training range were seen.
#
# L. Ma et al., "DeepGauge: multi-granularity testing criteria for deep learning systems", ASE 2018.
# Values outside the training range fill nothing. Tools differ in who owns a cut point; the default
# is right-open with the last section closed.


@dataclass(frozen=True)
class Sections:
    """Which of the `k` equal parts of each unit's training range were seen: KMNC.

    `cuts` says who owns the interior cut points: the section above ("right-open"), below
    ("left-open", which also drops the lowest value) or both ("closed"). `top`: the highest value
    fills the last section ("last") or none ("corner"). `constant`: units whose range is a point are
    left out ("skip"), never hit ("never"), or filled whole when hit ("all").
    """

    selection: Selection
    range: Range
    k: int = 1000
    cuts: Literal["right-open", "left-open", "closed"] = "right-open"
    top: Literal["last", "corner"] = "last"
    constant: Literal["skip", "never", "all"] = "skip"

    @property
    def selections(self) -> tuple[Selection, ...]:
        return (self.selection,)

    @cached_property
    def still(self) -> Bool[Tensor, " u"]:
        """Units whose training range is a point (dead ones among them), or not finite:
        it cannot be cut into sections.
        """
        width = (self.range.high - self.range.low) / self.k
        return ~(width.isfinite() & (width > 0))

    def memory(self) -> Bits:
        return Bits(self.selection.units, self.k)

    def observe(self, frame: Frame, memory: Bits) -> None:
        for start, cells in self._cells(frame):
            memory.mark(start, cells)
        if self.constant == "all":
            hit = self._touched(frame).any(0)
            memory.cover(hit[:, None].expand(-1, self.k))

    def gain(self, frame: Frame, memory: Bits) -> Float[Tensor, " m"]:
        gain = torch.zeros(len(frame), device=frame.device)
        for start, cells in self._cells(frame):
            gain += memory.news(start, cells).sum(0)
        if self.constant == "all":
            free = (~memory.covered()).sum(1).to(frame.device)
            gain += (self._touched(frame) * free).sum(1)
        return gain

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Bits) -> dict[str, Tensor]:
        return {"section": memory.pick(rows, rng, usable=~self.still)}

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Bits) -> Float[Tensor, " m"]:
        """Toward the centre of the section, measured in widths of the unit's range."""
        unit = aim["section"] // self.k
        section = aim["section"] % self.k
        low, _, width = (part[unit, 0] for part in self._geometry.on(frame.device))
        value = frame.matrix(self.selection).gather(1, unit[:, None]).squeeze(1)
        return -(((value - low) / width - (section + 0.5)) / self.k).square()

    def tally(self, memory: Bits) -> Tally:
        units = memory.rows - (int(self.still.sum()) if self.constant == "skip" else 0)
        covered = memory.count()
        total = units * self.k
        return Tally(
            covered / max(total, 1), covered, total, {"constant units": int(self.still.sum())}
        )

    def _cells(self, frame: Frame) -> Iterator[tuple[int, Int[Tensor, "u m"]]]:
        """The section of every value, from 1, or 0 outside the range; for some units at a time,
        from number `start` on.
        """
        waits = steady(frame.device)  # to ask a device which units need a closer look costs more
        beyond = self._beyond(frame.extremes(self.selection)) if waits else None
        for block in frame.blocks(self.selection):
            columns = block.values.detach().t()
            for part in chunks(len(columns), units_at_once(block.values)):
                start = block.start + part.start
                values = columns[part].contiguous()
                for cut in self._cuts:
                    cells = self._place(values, start, cut)
                    if beyond is None:
                        cells.masked_fill_(~self._inside(values, self._tops(values, start)), 0)
                    else:
                        some = beyond[start : start + len(values)]
                        cells[self._outside(values, start, some)] = 0
                    yield start, cells

    @property
    def _cuts(self) -> tuple[str, ...]:
        return ("right-open", "left-open") if self.cuts == "closed" else (self.cuts,)

    def _place(self, values: Float[Tensor, "u m"], start: int, cut: str) -> Int[Tensor, "u m"]:
        """Sections of values that are known not to lie above the range; those below it get 0."""
        low, _, width = (
            part[start : start + len(values)] for part in self._geometry.on(values.device)
        )
        place = (values - low).div_(width)
        place = place.floor_().add_(1) if cut == "right-open" else place.ceil_()
        return place.clamp_(0, self.k).int().long()

    def _beyond(self, extremes: Extremes) -> Bool[Tensor, " u"]:
        """Units with a value above their range in this look, or with one that is not a number:
        their rows need a closer look.
        """
        top = self._geometry.on(extremes.high.device)[1].squeeze(1)
        return ~self._inside(extremes.high, top) | extremes.broken

    def _tops(self, values: Float[Tensor, "u m"], start: int) -> Float[Tensor, "u 1"]:
        return self._geometry.on(values.device)[1][start : start + len(values)]

    def _inside(self, values: Tensor, top: Tensor) -> Bool[Tensor, "..."]:
        """Which values are numbers that do not lie above the range."""
        return (values < top) if self.top == "corner" else (values <= top)

    def _outside(
        self, values: Float[Tensor, "u m"], start: int, beyond: Bool[Tensor, " u"]
    ) -> tuple[Int[Tensor, " o"], Int[Tensor, " o"]]:
        """Where the values above the range are, and those that are no numbers,
        among the units known to have some.
        """
        units = beyond.nonzero().squeeze(1)
        inside = self._inside(values[units], self._tops(values, start)[units])
        unit, row = (~inside).nonzero(as_tuple=True)
        return units[unit], row

    @cached_property
    def _geometry(self) -> Copies:
        """Where each range begins, where it ends (before everything, for a constant unit),
        and the width of a section.
        """
        still = self.still[:, None]
        low = self.range.low[:, None]
        high = self.range.high[:, None]
        return Copies(
            low.masked_fill(still, 0),
            high.masked_fill(still, -torch.inf),
            ((high - low) / self.k).masked_fill(still, 1),
        )

    def _touched(self, frame: Frame) -> Bool[Tensor, "m u"]:
        """Where a constant unit shows its one value."""
        return (frame.matrix(self.selection) == self.range.low.to(frame.device)) & self.still.to(
            frame.device
        )


# Factories: each decorator is the row of its criterion, each signature its options.

_GAUGE = "Ma et al.: DeepGauge, ASE 2018"
_DEEPGAUGE = """@inproceedings{ma2018deepgauge,
  author    = {Lei Ma and Felix Juefei-Xu and Fuyuan Zhang and Jiyuan Sun and Minhui Xue and
               Bo Li and Chunyang Chen and Ting Su and Li Li and Yang Liu and Jianjun Zhao and
               Yadong Wang},
  title     = {{DeepGauge}: Multi-Granularity Testing Criteria for Deep Learning Systems},
  booktitle = {International Conference on Automated Software Engineering (ASE)},
  year      = {2018},
  doi       = {10.1145/3238147.3238202}
}"""
_profiled = partial(criterion, needs="activations, profile", paper=_GAUGE, cite="ma2018deepgauge")

Equal = Literal["none", "above", "both"]


@criterion("nc", paper="Pei, Cao, Yang, Jana: DeepXplore, SOSP 2017", cite="pei2017deepxplore")
def nc(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    threshold: float = 0.0,
    scale: Literal["none", "input", "suite"] = "none",
    order: Order = "mean-scale",
    epsilon: float = 0.0,
) -> CriterionPlan:
    """Neuron coverage: units active for some input.

    Share of units whose value exceeds the threshold for some input.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        threshold: Values above it count as active.
        scale: Scale each layer to [0, 1] within an input, over the suite, or not at all.
        order: Average channels before or after scaling.
        epsilon: Added to the width when scaling.
    """
    selection = select(anatomy, layers, mode, order)
    if scale == "suite":
        return CriterionPlan(
            selection,
            lambda _: SuiteActivated(selection, threshold),
            without=frozenset({"monotone"}),
        )
    return CriterionPlan(
        selection, lambda _: Activated(selection, threshold, Scaling(scale, epsilon))
    )


@criterion("kmnc", needs="activations, profile", paper=_GAUGE, cite=_DEEPGAUGE)
def kmnc(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    k: int = 1000,
    cuts: Literal["right-open", "left-open", "closed"] = "right-open",
    top: Literal["last", "corner"] = "last",
    constant: Literal["skip", "never", "all"] = "skip",
) -> CriterionPlan:
    """K-multisection neuron coverage: sections of each unit's training range that were seen.

    The range of each unit over training data in k equal sections; share of sections hit by some
    input.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        k: Sections per unit.
        cuts: Which section owns a cut point.
        top: The highest value belongs to the last section, or to none.
        constant: Units without a range are left out, never hit, or filled when hit.
    """
    _at_least_one("kmnc", "k", k)
    selection = select(anatomy, layers, mode)

    def make(profile: Profile | None) -> Sections:
        return Sections(selection, _range(profile, selection), k, cuts, top, constant)

    return CriterionPlan(selection, make, ranges=(selection,))


@_profiled("nbc")
def nbc(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    widen: float = 0.0,
    equal: Equal = "none",
    count: Literal["corners", "both", "either"] = "corners",
) -> CriterionPlan:
    """Neuron boundary coverage: units driven beyond their training range, either way.

    Upper and lower corners reached by some input, of two per unit (or units with both, or either).

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        widen: Standard deviations by which the bounds move out.
        equal: Where a value on the bound counts.
        count: What is counted.
    """
    selection = select(anatomy, layers, mode)
    return CriterionPlan(
        selection,
        lambda p: Corners(selection, _range(p, selection), "both", widen, equal, count),
        ranges=(selection,),
    )


@_profiled("snac")
def snac(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    widen: float = 0.0,
    equal: Equal = "none",
) -> CriterionPlan:
    """Strong neuron activation coverage: units driven above their training range.

    Share of units that exceed their greatest training value for some input.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        widen: Standard deviations by which the bounds move out.
        equal: Where a value on the bound counts.
    """
    selection = select(anatomy, layers, mode)
    return CriterionPlan(
        selection,
        lambda p: Corners(selection, _range(p, selection), "above", widen, equal),
        ranges=(selection,),
    )


@_profiled("layer-snac", paper="MaXplore report (Topk-MaXplore)", cite="lee2020maxplore")
def layer_snac(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    widen: float = 0.0,
    equal: Equal = "none",
) -> CriterionPlan:
    """SNAC of each layer, over the suite and per input.

    Mean over layers of the share of units that exceed their greatest training value; each layer in
    detail.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        widen: Standard deviations by which the bounds move out.
        equal: Where a value on the bound counts.
    """
    selection = select(anatomy, layers, mode)

    def make(profile: Profile | None) -> LayerCorners:
        return LayerCorners(Corners(selection, _range(profile, selection), "above", widen, equal))

    return CriterionPlan(selection, make, ranges=(selection,))


@criterion("tknc", paper=_GAUGE, cite="ma2018deepgauge")
def tknc(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    k: int = 3,
    ranked: bool = False,
) -> CriterionPlan:
    """Top-k neuron coverage: units that were among the strongest of their layer.

    Share of units among the k strongest of their layer for some input.

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        k: How many per layer.
        ranked: Each rank of a unit counts separately.
    """
    _at_least_one("tknc", "k", k)
    selection = select(anatomy, layers, mode)
    return CriterionPlan(selection, lambda _: Strongest(selection, k, ranked))


@criterion("tknp", paper=_GAUGE, cite="ma2018deepgauge", laws=COUNT)
def tknp(
    anatomy: Anatomy,
    *,
    layers: str = "conv-linear",
    mode: Mode = "channel",
    k: int = 3,
    ordered: bool = False,
) -> CriterionPlan:
    """Top-k neuron patterns: combinations of strongest units.

    Number of different combinations, over all layers, of the k strongest units of each (a count,
    not a ratio).

    Args:
        anatomy: The layers of the network and their units (`survey`).
        layers: A group of layers (see `select`) or names joined by +.
        mode: One unit per channel (its mean), or every unit.
        k: How many per layer.
        ordered: Their ranks matter.
    """
    _at_least_one("tknp", "k", k)
    selection = select(anatomy, layers, mode)
    return CriterionPlan(selection, lambda _: Combinations(selection, k, ordered))


def _range(profile: Profile | None, selection: Selection) -> Range:
    assert profile is not None
    return profile.range(selection)


def _at_least_one(criterion: str, option: str, value: int) -> None:
    if value < 1:
        raise Problem(f"{criterion}:{option}={value} must be 1 or more.")
