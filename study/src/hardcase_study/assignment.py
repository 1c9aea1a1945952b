"""Who sees what, in which order: balanced, incomplete, and nobody sees the same thing twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hardcase.errors import HardcaseError
from hardcase_study.forms import Item

GAP = 5
"""A repeated item comes at least this many items after the first time, where the list allows it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked of whom."""

    raters: int = 12
    per_rater: int = 33
    checks: int = 3
    repeats: int = 0

    @property
    def own(self) -> int:
        """Items of a rater that are neither checks nor repeats."""
        return self.per_rater - self.checks - self.repeats

    def __post_init__(self) -> None:
        if self.raters < 1 or self.own < 1 or min(self.checks, self.repeats) < 0:
            raise HardcaseError(
                f"{self.raters} raters with {self.per_rater} items each, {self.checks} checks and "
                f"{self.repeats} repeats among them, leave nothing to ask.",
                fix="--raters 12 --per-rater 33 --checks 3",
            )


def assign(
    items: Sequence[Item], sizes: Sizes, rng: np.random.Generator, *, lists: int | None = None
) -> list[list[str]]:
    """A list of item ids for each of `lists` raters (by default as many as `sizes` wants).

    Items go first whose unit the rater has not seen, and of these the ones with the fewest raters
    so far: where all units differ, the numbers of raters of any two main items of a quota differ by
    at most one, after every list.
    Attention checks rotate likewise. Repeats come late in the list and well after their first time.
    """
    main = _quotas([item for item in items if item.use == "main"])
    checks = [item for item in items if item.use == "attention"]
    again = {item.repeats: item.id for item in items if item.use == "repeat"}
    votes = {item.id: 0 for item in items}
    made = []
    for _ in range(lists or sizes.raters):
        seen: set[str] = set()
        chosen: list[Item] = []
        for quota, share in zip(main, _shares(sizes.own, len(main))):
            chosen += _least_rated(quota, share, votes, seen, rng)
        chosen += _least_rated(checks, sizes.checks, votes, seen, rng)
        order = [chosen[i].id for i in rng.permutation(len(chosen))]
        made.append(_with_repeats(order, again, sizes.repeats, rng))
    return made


def _quotas(items: Sequence[Item]) -> list[list[Item]]:
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.quota, []).append(item)
    return [groups[name] for name in sorted(groups)]


def _shares(total: int, groups: int) -> list[int]:
    """`total` cut into equal parts, the first ones larger by one where it does not divide."""
    return [total // groups + (i < total % groups) for i in range(groups)]


def _least_rated(
    items: Sequence[Item],
    count: int,
    votes: dict[str, int],
    seen: set[str],
    rng: np.random.Generator,
) -> list[Item]:
    """`count` items with the fewest raters so far; each choice is entered into `votes`, `seen`."""
    shuffled = [items[i] for i in rng.permutation(len(items))]
    chosen: list[Item] = []
    later: list[Item] = []
    for item in sorted(shuffled, key=lambda item: votes[item.id]):
        if item.unit in seen:
            later.append(item)
        elif len(chosen) < count:
            chosen.append(item)
            seen.add(item.unit)
    chosen += later[: count - len(chosen)]
    for item in chosen:
        votes[item.id] += 1
    return chosen


def _with_repeats(
    order: list[str], again: dict[str, str], count: int, rng: np.random.Generator
) -> list[str]:
    """`order` with `count` repeats of items from its first part, put into its last part."""
    early = [name for name in order[: max(len(order) - GAP, 1)] if name in again]
    picked = [early[i] for i in rng.permutation(len(early))[:count]]
    made = list(order)
    for name in picked:
        first = min(made.index(name) + GAP, len(made))
        made.insert(int(rng.integers(first, len(made) + 1)), again[name])
    return made
