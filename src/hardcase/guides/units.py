"""Guides that choose which units to push."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.errors import HardcaseError, choice
from hardcase.randomness import Rng
from hardcase.registry import guide
from hardcase.tensors import ordinal
from hardcase.types import Guide, Oracle, Probe, State, Tap, Targets

# How often each unit was covered, for all images together or for each of them alone.


@runtime_checkable
class Units(Protocol):
    """The units of a network: values scaled to [0, 1], and which of them a candidate covers."""

    @property
    def taps(self) -> Mapping[str, Tap]: ...

    @property
    def count(self) -> int: ...

    def scaled(self, probe: Probe) -> Float[Tensor, "m u"]: ...

    def active(self, probe: Probe) -> Bool[Tensor, "m u"]: ...


def grown(table: Tensor, rows: Int[Tensor, " m"], fill: float = 0) -> Tensor:
    """`table` on the rows' device, with a line for each of them; new lines hold `fill`."""
    table = table.to(rows.device)
    missing = int(rows.max()) + 1 - len(table) if len(rows) else 0
    if missing <= 0:
        return table
    return torch.cat([table, table.new_full((missing, *table.shape[1:]), fill)])


def appended(
    size: Int[Tensor, " g"], rows: Int[Tensor, " m"], capacity: int
) -> tuple[Int[Tensor, " g"], Bool[Tensor, " m"], Int[Tensor, " s"]]:
    """Append entries to their images' tables of `capacity` slots: the new sizes, which entries
    stay, and their slots. The first of an image keeps slot 0; later ones replace the oldest.
    """
    number = size[rows] + ordinal(rows)
    size = size.index_add(0, rows, torch.ones_like(rows))
    stays = number > size[rows] - capacity
    number = number[stays]
    return size, stays, torch.where(number == 0, 0, 1 + (number - 1) % (capacity - 1))


class Hits:
    """Hit counts of `units`: a shared table for all images, or (`each`) a row for every seed of a
    shard.

    A shared table merges by addition. Tables of single images belong to their shard and are not
    handed on; their sums are.

    Args:
        units: Number of units.
        each: Every seed counts for itself.
        base: Counts of earlier rounds.
    """

    def __init__(
        self, units: int, *, each: bool = False, base: Int[Tensor, " u"] | None = None
    ) -> None:
        self.units = units
        self.each = each
        self.own = torch.zeros(1, units, dtype=torch.int64)
        self.base = self.own[0].clone()
        if base is not None:
            self.base = base

    def of(self, rows: Int[Tensor, " m"]) -> Int[Tensor, "m u"]:
        """The counts that matter to these seeds."""
        self.own = grown(self.own, rows * self.each)
        if self.each:
            return self.own[rows]
        return (self.base.to(rows.device) + self.own[0]).expand(len(rows), -1)

    def add(self, rows: Int[Tensor, " m"], active: Bool[Tensor, "m u"]) -> None:
        self.own = grown(self.own, rows * self.each)
        if self.each:
            self.own.index_add_(0, rows, active.long())
        else:
            self.own[0] += active.sum(0)

    def fork(self) -> Hits:
        base = self.base + self.own.sum(0).to(self.base.device)
        return Hits(self.units, each=self.each, base=base)

    def delta(self) -> State:
        return {"hits": self.own.sum(0).cpu()}

    def merge(self, deltas: Sequence[State]) -> None:
        self.base = self.base + self.own.sum(0).to(self.base.device)
        for delta in deltas:
            self.base = self.base + delta["hits"].to(self.base.device)
        self.own = torch.zeros(1, self.units, dtype=torch.int64)


class UnitGuide:
    """What guides that choose units share: the units, and how often each was covered."""

    def __init__(self, name: str, units: Units, count: int, hits: Hits) -> None:
        self.name = name
        self.units = units
        self.count = min(count, units.count)
        self.hits = hits
        self._shown: tuple[Probe, Tensor] | None = None

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.units.taps

    def active(self, probe: Probe) -> Bool[Tensor, "m u"]:
        """Which units a probe covers, cached: gain and update need the same probe in turn."""
        if self._shown is None or self._shown[0] is not probe:
            self._shown = (probe, self.units.active(probe))
        return self._shown[1]

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        """How many units a row covers that none has covered."""
        new = self.hits.of(row_of(probe)) == 0
        return (self.active(probe) & new).sum(1).float()


def row_of(probe: Probe) -> Int[Tensor, " m"]:
    """The images' places in their shard as the search named them; by default the first."""
    return probe.targets.get("row", torch.zeros_like(probe.origin.y))


def unseen(probe: Probe) -> Bool[Tensor, " m"]:
    """Rows that are evaluated for the first time, as far as the search tells."""
    return ~probe.targets.get("seen", torch.zeros_like(probe.origin.y, dtype=torch.bool))


# Ways to pick units to push: from a board, units and signs for each row.


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Constant facts about units: large incoming weights, and which may cross."""

    heavy: Bool[Tensor, " u"]
    crossing: Bool[Tensor, " u"]
    threshold: float = 0.5


@dataclass(frozen=True, slots=True)
class Board:
    """The input of a pick: the images' rows, hit counts by row, each row's last scaled values (NaN
    where absent), and the constant facts.
    """

    rows: Int[Tensor, " m"]
    hits: Int[Tensor, "m u"]
    values: Float[Tensor, "m u"]
    facts: Facts


DRAWN: Mapping[str, Callable[[Board], Tensor]] = {
    "uncovered": lambda board: board.hits == 0,  # any unit, where none is left
    "anything": lambda board: torch.ones_like(board.hits),  # the control
    "often": lambda board: board.hits,  # DLFuzz's strategy 1
    # strategy 2: by what they lack to the most covered one
    "rarely": lambda board: board.hits.amax(1, keepdim=True) - board.hits,
    # strategy 3: large incoming weights
    "heavy": lambda board: board.facts.heavy.to(board.hits.device).expand_as(board.hits),
}
"""Units drawn in proportion to a weight."""
FIRST: Mapping[str, Callable[[Board], Tensor]] = {
    "most": lambda board: board.hits,
    "least": lambda board: -board.hits,
}
"""Those with the greatest keys, without a sample: the most or least covered (ADAPT's DLFuzz)."""
NEAR = {"across": -1, "apart": 1}
"""Units near the threshold (strategy 4), pushed to its other side, or away from it as the code."""
STRATEGIES = (*DRAWN, *FIRST, *NEAR)


def pick(strategy: str, board: Board, count: int, rng: Rng) -> Targets:
    """`count` different units for each row, as the strategy chooses them, and which way to push."""
    if strategy in NEAR:
        return _near(board, count, down=NEAR[strategy])
    if strategy in FIRST:  # ties go to the lower number
        keys = FIRST[strategy](board)
        unit = keys.argsort(dim=1, descending=True, stable=True)[:, :count]
    else:
        weight = DRAWN[strategy](board).float()
        noise = rng.uniform(board.rows, weight.shape[1:])
        keys = weight.clamp_min(1e-30).log() - (-noise.clamp(1e-12, 1 - 1e-7).log()).log()
        unit = keys.topk(min(count, keys.shape[1]), dim=1).indices
    return {"unit": unit, "sign": torch.ones(unit.shape, device=unit.device)}


def _near(board: Board, count: int, *, down: int) -> Targets:
    """The first units within 0.25 above (sign `down`) and 0.2 below the threshold, half each."""
    above = board.values - board.facts.threshold
    below = board.facts.threshold - board.values
    number = torch.arange(board.values.shape[1], device=board.values.device)
    parts = []
    for near, sign, chosen in (
        ((above > 0) & (above < 0.25), down, count - count // 2),
        ((below > 0) & (below < 0.2), -down, count // 2),
    ):
        near = near & board.facts.crossing.to(near.device)
        first = torch.where(near, -number, -number - len(number))
        unit = first.argsort(dim=1, descending=True, stable=True)[:, :chosen]
        parts.append((unit, near.gather(1, unit) * float(sign)))
    units, signs = (torch.cat(part, 1) for part in zip(*parts))
    return {"unit": units, "sign": signs}


# Small guides.


def take(probe: Probe, rows: Int[Tensor, " r"]) -> Probe:
    """Rows of a probe."""
    return replace(
        probe,
        z=probe.z[rows],
        x=probe.x[rows],
        logits=probe.logits[rows],
        origin=probe.origin.take(rows),
        peers=tuple(peer[rows] for peer in probe.peers),
        witnesses=tuple(witness[rows] for witness in probe.witnesses),
        activations={name: value[rows] for name, value in probe.activations.items()},
        targets={name: value[rows] for name, value in probe.targets.items()},
    )


class Forgetful:
    """What guides share that gain nothing and hand nothing on."""

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        return torch.zeros(len(probe.logits), device=probe.logits.device)

    def update(self, probe: Probe) -> None:
        """Nothing is learnt."""

    def delta(self) -> State:
        return {}

    def merge(self, deltas: Sequence[State]) -> None:
        """Nothing was learnt."""


@guide("deviating", needs="peers", paper="Pei, Cao, Yang and Jana, SOSP 2017")
class Deviating(Forgetful):
    """Draws, for each walk, which of `models` is to leave the others: 0 the model,
    then the peers. It remembers nothing.

    Args:
        models: Number of networks, the model among them.
    """

    name = "deviating"

    def __init__(self, models: int) -> None:
        self.models = models

    @property
    def taps(self) -> Mapping[str, Tap]:
        return {}

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        return {"deviating": rng.integers(rows, self.models)}

    def follow(self, rows: Int[Tensor, " m"], targets: Targets, rng: Rng) -> Targets:
        """A walk keeps its model to its end."""
        return {"deviating": targets["deviating"]}

    def fork(self) -> Deviating:
        return self


@guide("failing-only", needs="another guide", paper="ours")
class FailingOnly:
    """`guide`, learning from candidates that fail by `oracle` and from nothing else,
    as DeepXplore counts coverage.

    Args:
        guide: The guide that learns.
        oracle: Says which candidates fail.
    """

    def __init__(self, guide: Guide, oracle: Oracle) -> None:
        self.guide = guide
        self.oracle = oracle

    @property
    def name(self) -> str:
        return self.guide.name

    @property
    def taps(self) -> Mapping[str, Tap]:
        return self.guide.taps

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        return self.guide.choose(rows, rng)

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        return self.guide.gain(probe)

    def update(self, probe: Probe) -> None:
        failing = self.oracle(probe).nonzero().squeeze(1)
        if len(failing):
            self.guide.update(take(probe, failing))

    def fork(self) -> FailingOnly:
        return FailingOnly(self.guide.fork(), self.oracle)

    def delta(self) -> State:
        return self.guide.delta()

    def merge(self, deltas: Sequence[State]) -> None:
        self.guide.merge(deltas)


# J. Guo, Y. Jiang, Y. Zhao, Q. Chen, J. Sun, "DLFuzz: differential fuzzing testing of deep learning
# systems", ESEC/FSE 2018; S. Lee, S. Cha, D. Lee, H. Oh, "Effective white-box testing of deep
# neural networks with adaptive neuron-selection strategy", ISSTA 2020.


@guide("strategies", needs="activations", paper="Guo et al., ESEC/FSE 2018")
class Strategies(UnitGuide):
    """Picks `count` units a walk, shared out evenly between strategies; or (`cycle`) these take
    turns, a new one whenever an image starts again.

    Args:
        name: The target by which it names units.
        units: The neurons to choose from.
        facts: Constant facts about each unit.
        strategies: How units are chosen, by name.
        count: Units that are pushed at a time.
        cycle: Strategies take turns.
        each: Every seed counts its coverage for itself.
        hits: How often each unit was covered.
    """

    def __init__(
        self,
        name: str,
        units: Units,
        facts: Facts,
        strategies: Sequence[str],
        count: int,
        *,
        cycle: bool = False,
        each: bool = False,
        hits: Hits | None = None,
    ) -> None:
        for strategy in strategies:
            if strategy not in STRATEGIES:
                raise choice("neuron-selection strategy", strategy, STRATEGIES)
        least = len(strategies)
        if cycle:
            least = 1
        if not strategies or count < least:
            raise HardcaseError(
                f"{count} units cannot be shared out between {len(strategies)} strategies."
            )
        super().__init__(name, units, count, hits or Hits(units.count, each=each))
        self.facts = facts
        self.strategies = tuple(strategies)
        self.cycle = cycle
        self.each = each
        self.values = torch.empty(0, units.count)
        self.turns = torch.empty(0, dtype=torch.int64)

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        if not self.cycle:
            board = self._board(rows)
            each = self.count // len(self.strategies)
            picks = [pick(strategy, board, each, rng) for strategy in self.strategies]
            joined = {key: torch.cat([part[key] for part in picks], 1) for key in ("unit", "sign")}
            return self._named(joined)
        self.turns = grown(self.turns, rows)
        turn = self.turns[rows].clone()
        self.turns[rows] += 1
        return self._in_turn(rows, turn, rng)

    def follow(self, rows: Int[Tensor, " m"], targets: Targets, rng: Rng) -> Targets:
        """A list that goes on stays with its strategy."""
        if not self.cycle:
            return self.choose(rows, rng)
        return self._in_turn(rows, targets[f"{self.name}/turn"], rng)

    def update(self, probe: Probe) -> None:
        rows = row_of(probe)
        new = unseen(probe)
        self.hits.add(rows[new], self.active(probe)[new])
        self.values = grown(self.values, rows, torch.nan)
        self.values[rows] = self.units.scaled(probe)

    def fork(self) -> Strategies:
        parts = (self.name, self.units, self.facts, self.strategies, self.count)
        return Strategies(*parts, cycle=self.cycle, each=self.each, hits=self.hits.fork())

    def delta(self) -> State:
        return self.hits.delta()

    def merge(self, deltas: Sequence[State]) -> None:
        self.hits.merge(deltas)

    def _board(self, rows: Int[Tensor, " m"]) -> Board:
        self.values = grown(self.values, rows, torch.nan)
        return Board(rows, self.hits.of(rows), self.values[rows], self.facts)

    def _in_turn(self, rows: Int[Tensor, " m"], turn: Int[Tensor, " m"], rng: Rng) -> Targets:
        """Every strategy picks for every row, and each row takes the pick whose turn it is."""
        board = self._board(rows)
        picks = [pick(strategy, board, self.count, rng) for strategy in self.strategies]
        chosen = (turn % len(self.strategies))[None, :, None]
        stacked = {key: torch.stack([one[key] for one in picks]) for key in ("unit", "sign")}
        targets = {
            k: v.gather(0, chosen.expand(1, *v.shape[1:])).squeeze(0) for k, v in stacked.items()
        }
        return self._named({**targets, "turn": turn})

    def _named(self, targets: Targets) -> Targets:
        return {f"{self.name}/{key}": value for key, value in targets.items()}


# MaXplore's targets: single units, or those that are strongest on the seed.


@guide("strongest-units", needs="activations", paper="Te Wei Lee, report, 2020")
class StrongestUnits(Forgetful):
    """For walk number w, the `k` units of group w (``groups[w]``: the first of its units and their
    number) that are strongest on the seed. Groups of a single unit are One-MaXplore. It remembers
    the images of a shard and hands nothing on.

    Args:
        name: The target by which it names units.
        read: Gives the units of a probe.
        taps: Layers that are read.
        groups: First unit and number of units of each group.
        k: Units that rise together.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[Probe], Float[Tensor, "m u"]],
        taps: Mapping[str, Tap],
        groups: Int[Tensor, "w 2"],
        k: int,
    ) -> None:
        self.name = name
        self.read = read
        self.taps = taps
        self.groups = groups
        self.k = min(k, int(groups[:, 1].min()))
        self.units = torch.zeros(0, len(groups), self.k, dtype=torch.int64)

    @property
    def walks(self) -> int:
        return len(self.groups)

    def choose(self, rows: Int[Tensor, " m"], rng: Rng) -> Targets:
        """A group drawn at random, where no walk was named."""
        return self.follow(rows, {"walk": rng.integers(rows, len(self.groups))}, rng)

    def follow(self, rows: Int[Tensor, " m"], targets: Targets, rng: Rng) -> Targets:
        if "walk" not in targets:
            return {f"{self.name}/unit": targets[f"{self.name}/unit"]}
        self.units = grown(self.units, rows)
        return {f"{self.name}/unit": self.units[rows, targets["walk"]]}

    def update(self, probe: Probe) -> None:
        """Note the strongest units of each group when an image itself is evaluated."""
        if "row" not in probe.targets or f"{self.name}/unit" in probe.targets:
            return
        rows = probe.targets["row"]
        values = self.read(probe)
        self.units = grown(self.units, rows)
        start, size = (part.to(values.device)[:, None] for part in self.groups.t())
        inside = torch.arange(int(size.max()), device=values.device)
        shown = values[:, (start + inside).clamp_max(values.shape[1] - 1)]  # m w s
        shown = shown.masked_fill(inside >= size, -torch.inf)
        best = shown.argsort(dim=2, descending=True, stable=True)
        self.units[rows] = start + best[..., : self.k]

    def fork(self) -> StrongestUnits:
        return StrongestUnits(self.name, self.read, self.taps, self.groups, self.k)
