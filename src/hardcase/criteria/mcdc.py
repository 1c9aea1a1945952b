"""MC/DC for networks: how signs and values of a layer drive those of the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.criterion import CoverageResult, CriterionPlan, criterion
from hardcase.criteria.memory import Rows
from hardcase.criteria.network import LayerGraph, Selection, select
from hardcase.criteria.profile import ActivationBatch
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, stream
from hardcase.tensors import chunks
from hardcase.types import State, Targets

# Pairs of inputs that agree on almost all of a layer's signs, found by hashing.
# The hash of a sign pattern is the sum of a random number for each positive unit, so flipping one
# unit shifts it by a known amount, and the pattern one flip away is found by looking that hash up.

CELLS = 2**22
"""Entries of the largest table at a time."""


def keys_of(width: int) -> Int[Tensor, " s"]:
    return torch.randint(-(2**63), 2**63 - 1, (width,), generator=stream(0, "signs"))


def hash_signs(signs: Bool[Tensor, "n s"]) -> Int[Tensor, " n"]:
    keys = keys_of(signs.shape[1])
    hashes = torch.empty(len(signs), dtype=torch.int64)
    for part in chunks(len(signs), max(1, CELLS // max(1, len(keys)))):
        hashes[part] = torch.where(signs[part], keys, 0).sum(1)
    return hashes


@dataclass(frozen=True, slots=True)
class PatternSet:
    """The different sign patterns of a layer, sorted by hash, and the pattern of each row."""

    hashes: Int[Tensor, " p"]
    signs: Bool[Tensor, "p s"]
    of_row: Int[Tensor, " n"]

    @staticmethod
    def of(signs: Bool[Tensor, "n s"]) -> PatternSet:
        hashes, of_row = torch.unique(hash_signs(signs), return_inverse=True)
        first = torch.zeros(len(hashes), dtype=torch.int64).scatter_(
            0, of_row, torch.arange(len(signs))
        )
        return PatternSet(hashes, signs[first], of_row)

    def counts(self) -> Int[Tensor, " p"]:
        return self.of_row.bincount(minlength=len(self.hashes))

    def edges(self) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"], Int[Tensor, " e"]]:
        """All patterns p, q that differ in a single unit u, each once: p has it off, q on.

        At most p·log2(p)/2 of them exist.
        """
        keys = keys_of(self.signs.shape[1])
        triples = [torch.empty(3, 0, dtype=torch.int64)]
        for part in chunks(len(self.hashes), max(1, CELLS // max(1, len(keys)))):
            wanted = self.hashes[part, None] + keys
            place = torch.searchsorted(self.hashes, wanted).clamp_max(len(self.hashes) - 1)
            row, unit = ((self.hashes[place] == wanted) & ~self.signs[part]).nonzero(as_tuple=True)
            triples.append(torch.stack([row + part.start, place[row, unit], unit]))
        low, high, unit = torch.cat(triples, 1)
        return low, high, unit


def groups_of_many(of_row: Int[Tensor, " n"]) -> list[Int[Tensor, "g l"]]:
    """Rows that share a pattern with another: tables with a line per pattern, filled with -1."""
    order = of_row.argsort(stable=True)
    _, sizes = torch.unique_consecutive(of_row[order], return_counts=True)
    starts = sizes.cumsum(0) - sizes
    tables = []
    size = 2
    while len(sizes) and size <= 2 * int(sizes.max()):
        chosen = ((sizes > size // 2) & (sizes <= size) & (sizes > 1)).nonzero().squeeze(1)
        if len(chosen):
            place = torch.arange(size)
            index = order[(starts[chosen, None] + place).clamp_max(len(order) - 1)]
            tables.append(index.masked_fill(place >= sizes[chosen, None], -1))
        size *= 2
    return tables


def matches(
    wanted: Int[Tensor, "m w"], hashes: Int[Tensor, " n"]
) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
    """Every (row of `wanted`, place in `hashes`) where the row names that hash."""
    # A join by sorting: the equal hashes of a wanted one lie between two binary searches, and
    # `repeat_interleave` lists them without a loop.
    ordered, order = hashes.sort(stable=True)
    left = torch.searchsorted(ordered, wanted.contiguous())
    right = torch.searchsorted(ordered, wanted.contiguous(), right=True)
    counts = (right - left).flatten()
    row = torch.arange(wanted.shape[0]).repeat_interleave(wanted.shape[1]).repeat_interleave(counts)
    offset = torch.arange(len(row)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return row, order[left.flatten().repeat_interleave(counts) + offset]


def grouped(
    values: Float[Tensor, "n t"], group: Int[Tensor, " n"], count: int, how: str
) -> Float[Tensor, "g t"]:
    """Return the greatest ("amax") or least ("amin") value of each group; infinite if empty."""
    neutral = {"amax": -torch.inf, "amin": torch.inf}[how]
    start = values.new_full((count, values.shape[1]), neutral)
    return start.scatter_reduce_(0, group[:, None].expand_as(values), values, how)


# When two inputs show that a condition unit drives a decision unit.

Kind = Literal["sign-sign", "value-sign", "sign-value", "value-value"]


@dataclass(frozen=True)
class LayerPair:
    """Two neighbouring layers as columns of a matrix."""

    condition: slice
    decision: slice

    @property
    def shape(self) -> tuple[int, int]:
        """How many units each of them has."""
        condition, decision = self.condition, self.decision
        return condition.stop - condition.start, decision.stop - decision.start

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    def conditions(self, values: Tensor) -> Tensor:
        return values[:, self.condition]

    def decisions(self, values: Tensor) -> Tensor:
        return values[:, self.decision]

    def pull(
        self, kind: Kind, factor: float, values: Tensor, anchor: Tensor, cell: Int[Tensor, " m"]
    ) -> Float[Tensor, " m"]:
        """Reward each wanted change up to a small margin, less every other sign that flips."""
        which = (cell // self.shape[1])[:, None]
        what = (cell % self.shape[1])[:, None]
        now = self.conditions(values)
        then = self.conditions(anchor)
        flipped = _flipped(now, then)
        # Every other condition that flips spoils the pair, so it costs what it has moved beyond
        # zero.
        others = flipped.clamp_min(0).sum(1)
        first = flipped
        if kind.startswith("sign"):  # the condition itself is meant to flip
            others = others - flipped.gather(1, which).clamp_min(0).squeeze(1)
        else:
            first = _growth(now, then, factor)
        after = self.decisions(values)
        before = self.decisions(anchor)
        second = _flipped(after, before)
        if kind.endswith("value"):
            second = _growth(after, before, factor) - second.clamp_min(0)
        wanted = (first.gather(1, which), second.gather(1, what))
        return sum(part.squeeze(1).clamp_max(0.1) for part in wanted) - others


def _flipped(now: Float[Tensor, "m s"], then: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
    """Values in units of their layer's mean size, positive where the sign has changed."""
    typical = now.abs().mean(1, keepdim=True).clamp_min(1e-6)
    return -torch.where(then > 0, 1.0, -1.0) * now / typical


def _growth(now: Tensor, then: Tensor, factor: float) -> Tensor:
    """The logarithm of a value's growth beyond `factor`: positive once it is enough."""
    return ((now.abs() + 1e-6) / (then.abs() + 1e-6)).log() - math.log(factor)


def covers(
    kind: Kind, factor: float, ca: Tensor, da: Tensor, cb: Tensor, db: Tensor
) -> Bool[Tensor, "e s t"]:
    """For each two inputs a and b: the (condition, decision) pairs they cover."""
    # The four criteria of Y. Sun, X. Huang, D. Kroening et al. (cited below): by sign, exactly one
    # condition flips; by value, a condition changes its size and none flips. The same for the
    # decision.
    flips = (ca > 0) != (cb > 0)
    turned = (da > 0) != (db > 0)
    if kind.startswith("sign"):
        condition = flips & (flips.sum(1, keepdim=True) == 1)
    else:
        condition = changed(ca, cb, factor) & ~flips.any(1, keepdim=True)
    decision = turned
    if kind.endswith("value"):
        decision = changed(da, db, factor) & ~turned
    return condition[:, :, None] & decision[:, None, :]


def changed(a: Tensor, b: Tensor, factor: float) -> Bool[Tensor, " *shape"]:
    """Whether one of two sizes is `factor` times the other or more; two zeros are no change."""
    low = torch.minimum(a.abs(), b.abs())
    high = torch.maximum(a.abs(), b.abs())
    return (high >= factor * low) & (high > low)


def cover_set(
    kind: Kind, factor: float, split: LayerPair, values: Tensor
) -> tuple[Bool[Tensor, "s t"], int]:
    """Return what all pairs of inputs cover together, and how many pairs qualify."""
    conditions = split.conditions(values)
    decisions = split.decisions(values)
    patterns = PatternSet.of(conditions > 0)
    # Inputs are grouped by the signs of a layer first. Pairs that differ in one sign lie in two
    # groups that are one bit apart, so no pair of inputs is ever formed: groups are few, pairs are
    # millions.
    counts = patterns.counts()
    if kind.startswith("value"):
        covered = torch.zeros(split.shape, dtype=torch.bool)
        for table in groups_of_many(patterns.of_row):
            covered |= _cover_alike(kind, factor, conditions, decisions, table)
        return covered, int((counts * (counts - 1) // 2).sum())
    low, high, unit = patterns.edges()
    sides = _decision_sides(kind, decisions, patterns)
    hits = torch.zeros(split.shape, dtype=torch.int32)
    for part in chunks(len(unit), max(1, CELLS // max(1, decisions.shape[1]))):
        if kind == "sign-sign":
            (on, off), a, b = sides, low[part], high[part]
            hit = (on[a] & off[b]) | (off[a] & on[b])
        else:
            hit = _resized(sides, low[part], high[part], factor)
        hits.index_add_(0, unit[part], hit.int())
    return hits > 0, int((counts[low] * counts[high]).sum())


def _decision_sides(kind: Kind, decisions: Tensor, patterns: PatternSet) -> Tensor:
    """By pattern: whether a decision was ever on, ever off; or its extreme sizes on and off."""
    count = len(patterns.hashes)
    on = decisions > 0
    if kind == "sign-sign":
        return torch.stack(
            [grouped(side.half(), patterns.of_row, count, "amax") > 0 for side in (on, ~on)]
        )
    size = decisions.abs()
    sides = []
    for side in (on, ~on):
        sides.append(grouped(size.where(side, -torch.inf), patterns.of_row, count, "amax"))
        sides.append(grouped(size.where(side, torch.inf), patterns.of_row, count, "amin"))
    return torch.stack(sides)


def _resized(
    sides: Float[Tensor, "4 p t"], a: Int[Tensor, " e"], b: Int[Tensor, " e"], factor: float
) -> Bool[Tensor, "e t"]:
    hit = torch.zeros(len(a), sides.shape[2], dtype=torch.bool)
    for most, least in ((sides[0], sides[1]), (sides[2], sides[3])):
        for first, other in ((a, b), (b, a)):
            # The best pair of two groups is the largest of one against the smallest of the other:
            # if these do not reach the factor, no pair does.
            hit |= (most[first] >= factor * least[other]) & (most[first] > least[other])
    return hit


def _cover_alike(
    kind: Kind,
    factor: float,
    conditions: Tensor,
    decisions: Tensor,
    table: Int[Tensor, "g l"],
) -> Bool[Tensor, "s t"]:
    """What inputs of equal pattern cover: sort by a condition's size, then look back far enough."""
    s = conditions.shape[1]
    t = decisions.shape[1]
    covered = torch.zeros(s, t, dtype=torch.bool)
    for block in chunks(len(table), max(1, CELLS // (table.shape[1] * t))):
        index = table[block]
        valid = index >= 0
        size = conditions.abs()[index].where(valid[:, :, None], torch.inf)  # g l s
        decided = decisions[index]  # g l t
        for part in chunks(s, max(1, CELLS // (index.numel() * t))):
            covered[part] |= _look_back(kind, factor, size[:, :, part], decided, valid)
    return covered


def _look_back(
    kind: Kind,
    factor: float,
    size: Float[Tensor, "g l c"],
    decided: Float[Tensor, "g l t"],
    valid: Bool[Tensor, "g l"],
) -> Bool[Tensor, "c t"]:
    ordered, order = size.transpose(1, 2).contiguous().sort(dim=2)  # g c l
    # how many are smaller by the factor
    far = torch.searchsorted(factor * ordered, ordered, right=True)
    usable = ordered.isfinite() & (ordered > 0) & (far > 0)
    place = (far - 1).clamp_min(0)[..., None].expand(*far.shape, decided.shape[2])
    wide = decided[:, None].expand(-1, size.shape[2], -1, -1)
    now = wide.gather(2, order[..., None].expand_as(place))  # g c l t
    hit = torch.zeros_like(now, dtype=torch.bool)
    for on in (True, False):
        mine = (now > 0) == on
        if kind == "value-sign":
            # Running extremes over inputs sorted by the condition: `place` is the last input that
            # is smaller by the factor, so one look there answers for all inputs before it.
            hit |= mine & (~mine).cummax(2).values.gather(2, place)
            continue
        least = now.abs().where(mine, torch.inf).cummin(2).values.gather(2, place)
        most = now.abs().where(mine, -torch.inf).cummax(2).values.gather(2, place)
        smaller = (factor * least <= now.abs()) & (least < now.abs())
        hit |= mine & (smaller | ((most >= factor * now.abs()) & (most > now.abs())))
    return (hit & usable[..., None]).any(2).any(0)


# Y. Sun, X. Huang, D. Kroening, J. Sharp, M. Hill, R. Ashmore, "Structural test coverage criteria
# for deep neural networks", ACM TECS 2019 (first "Testing deep neural networks", 2018). A pair of a
# condition unit and a decision unit in the next layer is covered by two inputs if the condition
# alone changes (its sign, the signs of its layer else unchanged; or its size by a factor, no sign
# of its layer changed) and the decision changes with it (its sign; or its size, its sign kept).
#
# Here as a measure of a given test set: any two of its inputs may form the pair (``pairs="all"``),
# or an input and the image it was made from (``pairs="seed-test"``). Signs are those of values
# before the activation; zero counts as negative. Differences: a change in size is a factor up or
# down, whichever input comes first; value-sign looks at the condition unit's own size, where the
# authors' tool may take the whole layer's distance.


@dataclass(frozen=True)
class Independence:
    """Which (condition, decision) pairs are shown to be connected by a pair of inputs, and how."""

    selection: Selection
    splits: tuple[LayerPair, ...]
    kind: Kind = "sign-sign"
    pairs: Literal["all", "seed-test"] = "all"
    factor: float = 2.0

    def memory(self) -> Rows:
        values = torch.empty(0, self.selection.units)
        flags = {"id": torch.empty(0, dtype=torch.int64), "seed": torch.empty(0, dtype=torch.bool)}
        return Rows({"values": self._needed(values), **flags})

    def observe(self, batch: ActivationBatch, memory: Rows) -> None:
        rows = self._rows(batch)
        good = batch.matrix(self.selection).isfinite().all(1).cpu()
        memory.add({name: value.cpu()[good] for name, value in rows.items()})

    def gain(self, batch: ActivationBatch, memory: Rows) -> Float[Tensor, " m"]:
        """How many pairs the row alone would newly cover, together with any stored row."""
        rows = self._rows(batch)
        stored = memory.all()
        gain = torch.zeros(len(batch))
        good = batch.matrix(self.selection).isfinite().all(1).cpu()
        for split, covered in zip(self.splits, self.covered(memory), strict=True):
            row, other = self._partners(rows, stored, split)
            shown = torch.zeros(len(batch), covered.numel(), dtype=torch.int16)
            for part in chunks(len(row), max(1, CELLS // covered.numel())):
                hit = self._show(split, rows["values"][row[part]], stored["values"][other[part]])
                shown.index_add_(0, row[part], hit.flatten(1).to(torch.int16))
            gain += ((shown > 0) & ~covered.flatten()).sum(1)
        return gain.where(good, 0).to(batch.device)

    def choose(self, rows: Int[Tensor, " m"], rng: Rng, memory: Rows) -> dict[str, Tensor]:
        """Uncovered pairs (any, if there are none) as numbers into the list of all."""
        covered = torch.cat([cells.flatten() for cells in self.covered(memory)])
        open_ = (~covered | covered.all()).nonzero().squeeze(1)
        return {"pair": open_[rng.integers(rows, max(1, len(open_))).cpu()]}

    def pull(self, batch: ActivationBatch, targets: Targets, memory: Rows) -> Float[Tensor, " m"]:
        """Change the pair's condition and decision against the original, and no other sign."""
        values = batch.matrix(self.selection)
        anchor = self._anchors(batch, memory)
        score = values.sum(1) * 0
        start = 0
        for split in self.splits:
            cell = targets["pair"] - start
            mine = (cell >= 0) & (cell < split.cells)
            inside = cell.clamp(0, split.cells - 1)
            pulled = split.pull(self.kind, self.factor, values, anchor, inside)
            score = torch.where(mine, pulled, score)
            start += split.cells
        return score.where(anchor.isfinite().all(1) & score.isfinite(), 0)

    def result(self, memory: Rows) -> CoverageResult:
        cells, qualified = self._digest(memory)
        covered = sum(int(cell.sum()) for cell in cells)
        total = sum(split.cells for split in self.splits)
        detail = {"qualified input pairs": qualified, "inputs": len(memory)}
        return CoverageResult.ratio(covered, total, **detail)

    def covered(self, memory: Rows) -> list[Bool[Tensor, "s t"]]:
        return self._digest(memory)[0]

    def _digest(self, memory: Rows) -> tuple[list[Bool[Tensor, "s t"]], int]:
        """What is covered by the rows so far; rows that came since are worked in."""
        nothing = ([torch.zeros(split.shape, dtype=torch.bool) for split in self.splits], 0)
        done, cells = memory.digest or (-1, nothing)
        if done < len(memory):
            cells = self._found(memory.all(), done, cells)
            memory.digest = (len(memory), cells)
        return cells

    def _found(
        self, rows: State, done: int, stored: tuple[list[Tensor], int]
    ) -> tuple[list[Bool[Tensor, "s t"]], int]:
        values = rows["values"]
        if self.pairs == "all":
            cells = [cover_set(self.kind, self.factor, split, values) for split in self.splits]
            return [covered for covered, _ in cells], sum(count for _, count in cells)
        tests, seeds = (flag.nonzero().squeeze(1) for flag in (~rows["seed"], rows["seed"]))
        a, b = matches(rows["id"][tests, None], rows["id"][seeds])
        test, seed = tests[a], seeds[b]
        # Pairs of two old rows are in the digest already; only pairs with a new member are formed.
        fresh = (test >= done) | (seed >= done)
        test = test[fresh]
        seed = seed[fresh]
        covered = list(stored[0])
        count = stored[1]
        wanted = int(self.kind.startswith("sign"))
        for i, split in enumerate(self.splits):
            for part in chunks(len(test), max(1, CELLS // split.cells)):
                hit = self._show(split, values[test[part]], values[seed[part]])
                covered[i] = covered[i] | hit.any(0)
            signs = split.conditions(values) > 0
            flips = (signs[test] != signs[seed]).sum(1)
            count += int((flips == wanted).sum())
        return covered, count

    def _show(self, split: LayerPair, a: Tensor, b: Tensor) -> Bool[Tensor, "e s t"]:
        sides = (part(value) for value in (a, b) for part in (split.conditions, split.decisions))
        return covers(self.kind, self.factor, *sides)

    def _needed(self, values: Tensor) -> Tensor:
        """What is remembered of values: their signs where nothing else counts."""
        if self.kind == "sign-sign":
            return values > 0
        return values

    def _rows(self, batch: ActivationBatch) -> State:
        ids = torch.full((len(batch),), -1)
        seeds = torch.zeros(len(batch), dtype=torch.bool)
        if batch.ids is not None:
            ids = batch.ids.cpu()
        if batch.are_seeds is not None:
            seeds = batch.are_seeds.cpu()
        values = self._needed(batch.matrix(self.selection).detach().cpu())
        return {"values": values, "id": ids, "seed": seeds}

    def _partners(
        self, rows: State, stored: State, split: LayerPair
    ) -> tuple[Int[Tensor, " e"], Int[Tensor, " e"]]:
        """Rows and stored rows that may form a qualifying pair."""
        if self.pairs == "seed-test":
            row, other = matches(rows["id"][:, None], stored["id"])
            mixed = rows["seed"][row] != stored["seed"][other]
            return row[mixed], other[mixed]
        signs = split.conditions(rows["values"]) > 0
        active = split.conditions(stored["values"]) > 0
        wanted = hash_signs(signs)[:, None]
        if self.kind.startswith("sign"):
            keys = keys_of(signs.shape[1])
            wanted = torch.where(signs, wanted - keys, wanted + keys)
        return matches(wanted, hash_signs(active))

    def _anchors(self, batch: ActivationBatch, memory: Rows) -> Float[Tensor, "m u"]:
        """The values of each row's seed; not-a-number while the image is unknown."""
        rows_here = self._rows(batch)
        rows = memory.all()
        values = torch.full(rows_here["values"].shape, torch.nan)
        row, other = matches(rows_here["id"][:, None], rows["id"].where(rows["seed"], -2))
        values[row] = rows["values"][other].float()
        values[rows_here["seed"]] = rows_here["values"][rows_here["seed"]].float()
        return values.to(batch.device)


# Factories of the MC/DC family: which layers are neighbours, and which of their pairs count.

_PAPER = (
    "Sun, Huang, Kroening, Sharp, Hill, Ashmore: Structural test coverage criteria for DNNs, "
    "TECS 2019"
)
_CONDITIONS = {
    "sign": "its sign alone flips in its layer",
    "value": "its size changes by a factor and no sign of its layer flips",
}
_DECISIONS = {
    "sign": "its sign flips",
    "value": "its size changes by a factor, its sign does not",
}


def _family(name: str, kind: Kind, size: float) -> Callable[..., CriterionPlan]:
    """Register a criterion of the four: `kind` says how condition and decision must change."""

    def make(
        graph: LayerGraph,
        *,
        layers: str = "hidden-dense",
        channels: bool = False,
        pairs: Literal["all", "seed-test"] = "all",
        factor: float = size,
    ) -> CriterionPlan:
        neighbours = _neighbours(graph, layers, channels, kind)
        starts = (*neighbours.starts, neighbours.units)
        parts = [slice(start, stop) for start, stop in pairwise(starts)]
        splits = tuple(map(LayerPair, parts, parts[1:]))
        rule = Independence(neighbours, splits, kind, pairs, factor)
        return CriterionPlan(neighbours, lambda _: rule)

    condition, decision = kind.split("-")
    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""{kind.capitalize()} coverage: units shown to drive units of the next layer.

    Share of (condition, decision) pairs of neighbouring layers for which two inputs exist such
    that of the condition {_CONDITIONS[condition]}, and of the decision {_DECISIONS[decision]}.

    Args:
        channels: Hidden convolutions too, by the sign of each channel's mean.
        pairs: Any two inputs, or an input and its seed.
        factor: The change in size that counts.
    """
    return criterion(name, paper=_PAPER, cite="sun2019mcdc")(make)


ssc = _family("ssc", "sign-sign", 2.0)
vsc = _family("vsc", "value-sign", 2.0)
svc = _family("svc", "sign-value", 2.0)
vvc = _family("vvc", "value-value", 5.0)


def _neighbours(graph: LayerGraph, layers: str, channels: bool, kind: Kind) -> Selection:
    """The layers whose pairs of units are compared; at least two."""
    if channels and layers == "hidden-dense":
        layers = "hidden"
    selection = select(graph, layers, "channel")
    if len(selection.layers) < 2:
        raise HardcaseError(
            f"{kind} coverage compares neighbouring layers; {layers!r} names one: "
            f"{selection.names[0]}.",
            fix="channels=true for convolutions by channel, or layers=NAME+NAME",
        )
    return selection
