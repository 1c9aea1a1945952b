"""What criteria remember. Every memory is a base, shared read-only by forks, and a part of its own.

The delta of a fork holds only what it added; merging deltas in any cut of the same looks gives the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from hardcase.criteria.bits import Bits
from hardcase.types import State


@runtime_checkable
class Memory(Protocol):
    def fork(self) -> Memory: ...

    def delta(self) -> State: ...

    def merge(self, deltas: Sequence[State]) -> None: ...


class Folded:
    """Named tensors of fixed shape that are folded together: sums, least and greatest values, moments.

    `join` folds two states into one; `empty` is its neutral element.
    """

    def __init__(self, empty: State, join: Callable[[State, State], State], base: State | None = None) -> None:
        self.empty, self.join, self.base = empty, join, base or empty
        self.own = empty

    def add(self, state: State) -> None:
        self.own = self.join(self.own, {name: value.cpu() for name, value in state.items()})

    def total(self) -> State:
        return self.join(self.base, self.own)

    def fork(self) -> Folded:
        return Folded(self.empty, self.join, self.total())

    def delta(self) -> State:
        return {name: value.clone() for name, value in self.own.items()}

    def merge(self, deltas: Sequence[State]) -> None:
        total = self.total()
        for delta in deltas:
            total = self.join(total, delta)
        self.base, self.own = total, self.empty


class Rows:
    """Rows of named tensors in the order in which they came; only ever added to.

    `digest` keeps what a reader made of the first so many rows, for it to go on from there.
    """

    def __init__(self, empty: State, base: State | None = None, digest: tuple[int, Any] | None = None) -> None:
        self.empty, self.base, self.digest = empty, base or empty, digest
        self._parts = list[State]()

    def __len__(self) -> int:
        name = next(iter(self.empty))
        return len(self.base[name]) + sum(len(part[name]) for part in self._parts)

    def add(self, rows: State) -> None:
        self._parts.append({name: rows[name].detach().cpu() for name in self.empty})

    def own(self) -> State:
        self._parts = [{n: torch.cat([part[n] for part in self._parts]) for n in self.empty}] if self._parts else []
        return self._parts[0] if self._parts else self.empty

    def all(self) -> State:
        own = self.own()
        return {name: torch.cat([self.base[name], own[name]]) for name in self.empty}

    def fork(self) -> Rows:
        return Rows(self.empty, self.all(), self.digest)

    def delta(self) -> State:
        return {name: value.clone() for name, value in self.own().items()}

    def merge(self, deltas: Sequence[State]) -> None:
        parts = [self.all(), *deltas]
        self.base, self._parts = {name: torch.cat([part[name] for part in parts]) for name in self.empty}, []


class Counted:
    """Covered cells, and sums beside them."""

    def __init__(self, bits: Bits, sums: Folded) -> None:
        self.bits, self.sums = bits, sums

    def fork(self) -> Counted:
        return Counted(self.bits.fork(), self.sums.fork())

    def delta(self) -> State:
        return {**self.bits.delta(), **{f"sum.{name}": value for name, value in self.sums.delta().items()}}

    def merge(self, deltas: Sequence[State]) -> None:
        self.bits.merge(deltas)
        sums = [{n.removeprefix("sum."): v for n, v in delta.items() if n.startswith("sum.")} for delta in deltas]
        self.sums.merge(sums)


def summed(a: State, b: State) -> State:
    """Two states joined by adding them up."""
    return {name: a[name] + b[name] for name in a}
