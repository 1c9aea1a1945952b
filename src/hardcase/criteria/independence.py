"""When two inputs show that a condition unit drives a decision unit, and which pairs a whole set of inputs shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.criteria.pairs import CELLS, PatternSet, grouped, groups_of_many
from hardcase.tensors import chunks

Kind = Literal["sign-sign", "value-sign", "sign-value", "value-value"]


@dataclass(frozen=True)
class Split:
    """Two neighbouring layers as columns of one matrix, and which (condition, decision) pairs count."""

    condition: slice
    decision: slice
    allowed: Bool[Tensor, "s t"]

    def conditions(self, values: Tensor) -> Tensor:
        return values[:, self.condition]

    def decisions(self, values: Tensor) -> Tensor:
        return values[:, self.decision]

    def pull(
        self, kind: Kind, factors: tuple[float, float], values: Tensor, anchor: Tensor, cell: Int[Tensor, " m"]
    ) -> Float[Tensor, " m"]:
        """Up to a small margin beyond each change that is wanted, less every sign of the condition layer that flips along."""
        which, what = (cell // self.allowed.shape[1])[:, None], (cell % self.allowed.shape[1])[:, None]
        now, then = self.conditions(values), self.conditions(anchor)
        flipped = -torch.where(then > 0, 1.0, -1.0) * now / _typical(now)  # positive where the sign has changed
        others = flipped.clamp_min(0).sum(1) - flipped.gather(1, which).clamp_min(0).squeeze(1) * kind.startswith(
            "sign"
        )
        after, before = self.decisions(values), self.decisions(anchor)
        turned = -torch.where(before > 0, 1.0, -1.0) * after / _typical(after)
        first = flipped if kind.startswith("sign") else _growth(now, then, factors[0])
        second = turned if kind.endswith("sign") else _growth(after, before, factors[1]) - turned.clamp_min(0)
        return (
            first.gather(1, which).squeeze(1).clamp_max(0.1) + second.gather(1, what).squeeze(1).clamp_max(0.1) - others
        )


def _typical(values: Float[Tensor, "m s"]) -> Float[Tensor, "m 1"]:
    return values.abs().mean(1, keepdim=True).clamp_min(1e-6)


def _growth(now: Tensor, then: Tensor, factor: float) -> Tensor:
    """The logarithm of how much larger a value has become, less what is asked: positive once it is enough."""
    return ((now.abs() + 1e-6) / (then.abs() + 1e-6)).log() - math.log(factor)


def covers(
    kind: Kind, factors: tuple[float, float], ca: Tensor, da: Tensor, cb: Tensor, db: Tensor
) -> Bool[Tensor, "e s t"]:
    """For each two inputs a and b: the (condition, decision) pairs they cover."""
    flips, turned = (ca > 0) != (cb > 0), (da > 0) != (db > 0)
    if kind.startswith("sign"):
        condition = flips & (flips.sum(1, keepdim=True) == 1)
    else:
        condition = changed(ca, cb, factors[0]) & ~flips.any(1, keepdim=True)
    decision = turned if kind.endswith("sign") else changed(da, db, factors[1]) & ~turned
    return condition[:, :, None] & decision[:, None, :]


def changed(a: Tensor, b: Tensor, factor: float) -> Bool[Tensor, " *shape"]:
    """Whether one of two sizes is `factor` times the other or more; two zeros are no change."""
    low, high = torch.minimum(a.abs(), b.abs()), torch.maximum(a.abs(), b.abs())
    return (high >= factor * low) & (high > low)


def flips_of(split: Split, a: Tensor, b: Tensor) -> Int[Tensor, " e"]:
    return ((split.conditions(a) > 0) != (split.conditions(b) > 0)).sum(1)


def cover_set(
    kind: Kind, factors: tuple[float, float], split: Split, values: Tensor
) -> tuple[Bool[Tensor, "s t"], int]:
    """What all pairs of inputs cover together, and how many pairs qualify (the condition layer changes as it must)."""
    conditions, decisions = split.conditions(values), split.decisions(values)
    patterns = PatternSet.of(conditions > 0)
    counts = patterns.counts()
    if kind.startswith("value"):
        found = torch.zeros_like(split.allowed)
        for table in groups_of_many(patterns.of_row):
            found |= _cover_alike(kind, factors, conditions, decisions, table)
        return found, int((counts * (counts - 1) // 2).sum())
    low, high, unit = patterns.edges()
    sides = _decision_sides(kind, decisions, patterns)
    hits = torch.zeros(split.allowed.shape, dtype=torch.int32)
    for part in chunks(len(unit), max(1, CELLS // max(1, decisions.shape[1]))):
        hit = (
            _turned(sides, low[part], high[part])
            if kind == "sign-sign"
            else _resized(sides, low[part], high[part], factors[1])
        )
        hits.index_add_(0, unit[part], hit.int())
    return hits > 0, int((counts[low] * counts[high]).sum())


def relaxed(
    split: Split, values: Bool[Tensor, "n u"], flips: int, chosen: tuple[Tensor, Tensor] | None
) -> tuple[Bool[Tensor, "s t"], int]:
    """Sign-sign coverage if up to `flips` conditions may change together: each of them counts."""
    conditions, decisions = split.conditions(values), split.decisions(values)
    if chosen is not None:
        count = flips_of(split, values[chosen[0]], values[chosen[1]])
        keep = (count >= 1) & (count <= flips)
        a, b = chosen[0][keep], chosen[1][keep]
        patterns, sides, qualified = conditions, torch.stack([decisions, ~decisions]), len(a)
    else:
        found = PatternSet.of(conditions)
        a, b = found.near(flips)
        counts = found.counts()
        patterns, sides = found.signs, _decision_sides("sign-sign", decisions, found)
        qualified = int((counts[a] * counts[b]).sum())
    hits = torch.zeros(split.allowed.shape)
    for part in chunks(len(a), max(1, CELLS // max(1, values.shape[1]))):
        flipped = patterns[a[part]] != patterns[b[part]]
        hits += flipped.float().t() @ _turned(sides, a[part], b[part]).float()
    return hits > 0, qualified


def _decision_sides(kind: Kind, decisions: Tensor, patterns: PatternSet) -> Tensor:
    """Of the inputs with each pattern: whether a decision was ever on, ever off; or its largest and least size on and off."""
    count, on = len(patterns.hashes), decisions > 0
    if kind == "sign-sign":
        return torch.stack([grouped(side.half(), patterns.of_row, count, "amax") > 0 for side in (on, ~on)])
    size = decisions.abs()
    sides = []
    for side in (on, ~on):
        sides.append(grouped(size.where(side, -torch.inf), patterns.of_row, count, "amax"))
        sides.append(grouped(size.where(side, torch.inf), patterns.of_row, count, "amin"))
    return torch.stack(sides)


def _turned(sides: Bool[Tensor, "2 p t"], a: Int[Tensor, " e"], b: Int[Tensor, " e"]) -> Bool[Tensor, "e t"]:
    return (sides[0, a] & sides[1, b]) | (sides[1, a] & sides[0, b])


def _resized(
    sides: Float[Tensor, "4 p t"], a: Int[Tensor, " e"], b: Int[Tensor, " e"], factor: float
) -> Bool[Tensor, "e t"]:
    hit = torch.zeros(len(a), sides.shape[2], dtype=torch.bool)
    for most, least in ((sides[0], sides[1]), (sides[2], sides[3])):
        for one, other in ((a, b), (b, a)):
            hit |= (most[one] >= factor * least[other]) & (most[one] > least[other])
    return hit


def _cover_alike(
    kind: Kind, factors: tuple[float, float], conditions: Tensor, decisions: Tensor, table: Int[Tensor, "g l"]
) -> Bool[Tensor, "s t"]:
    """What inputs of equal pattern cover, group by group: sort by a condition's size, then look back far enough."""
    s, t = conditions.shape[1], decisions.shape[1]
    covered = torch.zeros(s, t, dtype=torch.bool)
    for some in chunks(len(table), max(1, CELLS // (table.shape[1] * t))):
        index = table[some]
        valid = index >= 0
        size = conditions.abs()[index].where(valid[:, :, None], torch.inf)  # g l s
        decided = decisions[index]  # g l t
        for part in chunks(s, max(1, CELLS // (index.numel() * t))):
            covered[part] |= _look_back(kind, factors, size[:, :, part], decided, valid)
    return covered


def _look_back(
    kind: Kind,
    factors: tuple[float, float],
    size: Float[Tensor, "g l c"],
    decided: Float[Tensor, "g l t"],
    valid: Bool[Tensor, "g l"],
) -> Bool[Tensor, "c t"]:
    ordered, order = size.transpose(1, 2).contiguous().sort(dim=2)  # g c l
    far = torch.searchsorted(factors[0] * ordered, ordered, right=True)  # how many are smaller by the factor
    usable = ordered.isfinite() & (ordered > 0) & (far > 0)
    place = (far - 1).clamp_min(0)[..., None].expand(*far.shape, decided.shape[2])
    now = decided[:, None].expand(-1, size.shape[2], -1, -1).gather(2, order[..., None].expand_as(place))  # g c l t
    hit = torch.zeros_like(now, dtype=torch.bool)
    for on in (True, False):
        mine = (now > 0) == on
        if kind == "value-sign":
            hit |= mine & (~mine).cummax(2).values.gather(2, place)
            continue
        least = now.abs().where(mine, torch.inf).cummin(2).values.gather(2, place)
        most = now.abs().where(mine, -torch.inf).cummax(2).values.gather(2, place)
        smaller = (factors[1] * least <= now.abs()) & (least < now.abs())
        hit |= mine & (smaller | ((most >= factors[1] * now.abs()) & (most > now.abs())))
    return (hit & usable[..., None]).any(2).any(0)
