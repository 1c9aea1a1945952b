"""The memory of criteria: a base, shared read-only by forks, and a private part.

The delta of a fork holds only what it added; merging deltas in any cut of the same looks gives the
same memory, and counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Tensor

from hardcase.randomness import Rng
from hardcase.types import State


@runtime_checkable
class Memory(Protocol):
    def fork(self) -> Memory: ...

    def delta(self) -> State: ...

    def merge(self, deltas: Sequence[State]) -> None: ...


class Bits:
    """Cells, each covered or not; a row names them 1 to `columns`, and 0 means "none".

    The table has a spare first column, so that "none" may be marked freely. It is the base itself,
    which forks share, until it changes.
    """

    def __init__(
        self, rows: int, columns: int = 1, base: UInt8[Tensor, "r s"] | None = None
    ) -> None:
        self.rows = rows
        self.columns = columns
        if base is None:
            # one zero for all cells: memory is taken when the first of them is covered
            base = torch.zeros(1, dtype=torch.uint8).expand(rows, columns + 1)
        self.base = base
        self.table = base

    def mark(self, start: int, cells: Int[Tensor, "u m"]) -> None:
        """Cover the named cells of the rows `start` and following."""
        table = self._writable(cells.device)
        ones = torch.ones_like(cells, dtype=torch.uint8)  # three times faster than the number 1
        table[start : start + len(cells)].scatter_(1, cells, ones)

    def cover(self, cells: Bool[Tensor, "r c"]) -> None:
        """Cover the cells that are true."""
        self._writable(cells.device)[:, 1:].bitwise_or_(cells)

    def news(self, start: int, cells: Int[Tensor, "u m"]) -> Bool[Tensor, "u m"]:
        """Which of the named cells are not covered yet."""
        rows = self.table[start : start + len(cells)].to(cells.device)
        return (cells != 0) & (rows.gather(1, cells) == 0)

    def covered(self) -> Bool[Tensor, "r c"]:
        return self.table[:, 1:].bool()

    def count(self) -> int:
        return int(torch.count_nonzero(self.table[:, 1:]))

    def pick(
        self,
        seeds: Int[Tensor, " n"],
        rng: Rng,
        usable: Bool[Tensor, " r"] | None = None,
        tries: int = 32,
    ) -> Int[Tensor, " n"]:
        """Draw for each image an uncovered cell (row times `columns` plus place), or any if
        none.
        """
        rows = torch.arange(self.rows)
        if usable is not None and bool(usable.any()):
            rows = usable.cpu().nonzero().squeeze(1)
        # Most cells are free most of the time: draw a few for each image and take the first free
        # one; only where all were covered is the list of free cells made.
        row, place = (
            rng.integers(seeds, high, (tries,)).cpu() for high in (len(rows), self.columns)
        )
        drawn = row * self.columns + place
        cells = rows[row] * self.columns + place
        cells_here = cells.to(self.table.device)
        free = self.table[cells_here // self.columns, cells_here % self.columns + 1].cpu() == 0
        first = free.int().argmax(1, keepdim=True)
        picked = cells.gather(1, first).squeeze(1)
        missed = (~free.any(1)).nonzero().squeeze(1)
        if len(missed):
            picked[missed] = self._search(rows, drawn[missed, 0], cells[missed, 0])
        return picked

    def fork(self) -> Bits:
        base = self.table
        if base is not self.base:
            base = base.clone()
        return Bits(self.rows, self.columns, base)

    def delta(self) -> State:
        fresh = self.covered() & (self.base[:, 1:].to(self.table.device) == 0)
        return {"cells": fresh.flatten().nonzero().squeeze(1).cpu()}

    def merge(self, deltas: Sequence[State]) -> None:
        table = self.table.clone()
        for delta in deltas:
            cells = delta["cells"].to(table.device)
            table[cells // self.columns, cells % self.columns + 1] = 1
        self.base = table
        self.table = table

    def _writable(self, device: torch.device) -> UInt8[Tensor, "r s"]:
        if self.table is self.base:
            self.table = self.base.clone()
        self.table = self.table.to(device)
        return self.table

    def _search(
        self, rows: Int[Tensor, " r"], drawn: Int[Tensor, " n"], otherwise: Int[Tensor, " n"]
    ) -> Int[Tensor, " n"]:
        """Pick from the list of free cells by the draw's number, where draws met none."""
        free = (~self.covered().cpu()[rows]).flatten().nonzero().squeeze(1)
        if not len(free):
            return otherwise
        place = free[drawn % len(free)]
        return rows[place // self.columns] * self.columns + place % self.columns


class Patterns:
    """A set of patterns, stored as 64-bit hashes; two of a million collide with probability 3e-8.

    What is added stays on its device, unsorted, until somebody reads.
    """

    def __init__(self, base: Int[Tensor, " n"] | None = None) -> None:
        self._own = torch.empty(0, dtype=torch.int64)
        self.base = self._own
        if base is not None:
            self.base = base
        self._fresh = list[tuple[Tensor, Tensor]]()

    def add(self, hashes: Int[Tensor, " m"], known: Bool[Tensor, " m"]) -> None:
        """Remember the patterns of the rows that are `known`."""
        self._fresh.append((hashes, known))

    @property
    def own(self) -> Int[Tensor, " n"]:
        """The additions, sorted and separate from the base."""
        if self._fresh:
            fresh = [hashes[known].cpu() for hashes, known in self._fresh]
            joined = torch.unique(torch.cat([self._own, *fresh]))
            self._own = joined[~_member(joined, self.base)]
            self._fresh = []
        return self._own

    def news(self, hashes: Int[Tensor, " m"]) -> Bool[Tensor, " m"]:
        hashes = hashes.cpu()
        return ~(_member(hashes, self.base) | _member(hashes, self.own))

    def count(self) -> int:
        return len(self.base) + len(self.own)

    def fork(self) -> Patterns:
        return Patterns(torch.cat([self.base, self.own]).sort().values)

    def delta(self) -> State:
        return {"hashes": self.own.clone()}

    def merge(self, deltas: Sequence[State]) -> None:
        joined = torch.cat([self.base, self.own, *(delta["hashes"] for delta in deltas)])
        self.base = torch.unique(joined)
        self._own = torch.empty(0, dtype=torch.int64)


def _member(values: Int[Tensor, " n"], ordered: Int[Tensor, " m"]) -> Bool[Tensor, " n"]:
    if not len(ordered):
        return torch.zeros(len(values), dtype=torch.bool)
    place = torch.searchsorted(ordered, values).clamp_max(len(ordered) - 1)
    return ordered[place] == values


class Accumulated:
    """Named tensors of fixed shape, accumulated: sums, extremes, moments."""

    def __init__(
        self, empty: State, join: Callable[[State, State], State], base: State | None = None
    ) -> None:
        self.empty = empty
        self.join = join
        self.base = base or empty
        self.own = empty

    def add(self, state: State) -> None:
        self.own = self.join(self.own, {name: value.cpu() for name, value in state.items()})

    def total(self) -> State:
        return self.join(self.base, self.own)

    def fork(self) -> Accumulated:
        return Accumulated(self.empty, self.join, self.total())

    def delta(self) -> State:
        return {name: value.clone() for name, value in self.own.items()}

    def merge(self, deltas: Sequence[State]) -> None:
        total = self.total()
        for delta in deltas:
            total = self.join(total, delta)
        self.base = total
        self.own = self.empty


class Rows:
    """Rows of named tensors in the order in which they came; only ever added to."""

    def __init__(
        self, empty: State, base: State | None = None, digest: tuple[int, Any] | None = None
    ) -> None:
        self.empty = empty
        self.base = base or empty
        self.digest = digest
        self._parts = list[State]()

    def __len__(self) -> int:
        name = next(iter(self.empty))
        return len(self.base[name]) + sum(len(part[name]) for part in self._parts)

    def add(self, rows: State) -> None:
        self._parts.append({name: rows[name].detach().cpu() for name in self.empty})

    def own(self) -> State:
        if not self._parts:
            return self.empty
        joined = {n: torch.cat([part[n] for part in self._parts]) for n in self.empty}
        self._parts = [joined]
        return joined

    def all(self) -> State:
        fresh = self.own()
        return {name: torch.cat([self.base[name], fresh[name]]) for name in self.empty}

    def fork(self) -> Rows:
        return Rows(self.empty, self.all(), self.digest)

    def delta(self) -> State:
        return {name: value.clone() for name, value in self.own().items()}

    def merge(self, deltas: Sequence[State]) -> None:
        parts = [self.all(), *deltas]
        self.base = {name: torch.cat([part[name] for part in parts]) for name in self.empty}
        self._parts = []


class CountedBits:
    """Covered cells, with sums."""

    def __init__(self, bits: Bits, sums: Accumulated) -> None:
        self.bits = bits
        self.sums = sums

    def fork(self) -> CountedBits:
        return CountedBits(self.bits.fork(), self.sums.fork())

    def delta(self) -> State:
        sums = {f"sum.{name}": value for name, value in self.sums.delta().items()}
        return {**self.bits.delta(), **sums}

    def merge(self, deltas: Sequence[State]) -> None:
        self.bits.merge(deltas)
        sums = [
            {n.removeprefix("sum."): v for n, v in delta.items() if n.startswith("sum.")}
            for delta in deltas
        ]
        self.sums.merge(sums)


def summed(a: State, b: State) -> State:
    """Two states joined by adding them up."""
    return {name: a[name] + b[name] for name in a}
