"""A criterion is a rule and a memory: this class is the one that campaigns and `measure` handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.criteria.frame import Frame
from hardcase.criteria.memory import Memory
from hardcase.criteria.taps import join_taps
from hardcase.criteria.units import Selection
from hardcase.errors import Problem
from hardcase.types import Aim, Probe, State, Tap


@dataclass(frozen=True, slots=True)
class Tally:
    """What a criterion says so far. `covered` of `total` where it is a ratio or a count; `detail` is worth printing."""

    value: float
    covered: int | None = None
    total: int | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Rule(Protocol):
    """The mathematics of a criterion. Only `observe` changes the memory; rows are independent in `gain` and `pull`.

    A rule may also have `patience`: the number of rows that are better observed together.
    """

    @property
    def selections(self) -> tuple[Selection, ...]: ...

    def memory(self) -> Any: ...

    def observe(self, frame: Frame, memory: Any) -> None: ...

    def gain(self, frame: Frame, memory: Any) -> Float[Tensor, " m"]: ...

    def choose(self, count: int, rng: torch.Generator, memory: Any) -> dict[str, Tensor]: ...

    def pull(self, frame: Frame, aim: Mapping[str, Tensor], memory: Any) -> Float[Tensor, " m"]: ...

    def tally(self, memory: Any) -> Tally: ...


class Measure:
    """Implements `types.Criterion`: a guide that is also a measure. `profiled`: it compares with training data."""

    def __init__(
        self,
        name: str,
        rule: Rule,
        *,
        laws: frozenset[str] = frozenset(),
        convention: Mapping[str, Any] | None = None,
        profiled: bool = False,
        memory: Memory | None = None,
    ) -> None:
        self.name, self.rule, self.laws, self.profiled = name, rule, laws, profiled
        self.convention = dict(convention or {})
        self._memory: Any = rule.memory() if memory is None else memory
        self._waiting = list[Frame]()
        self._seen: tuple[Probe, Frame] | None = None

    @property
    def taps(self) -> Mapping[str, Tap]:
        return join_taps(selection.taps for selection in self.rule.selections)

    def choose(self, rows: Int[Tensor, " m"], rng: torch.Generator) -> Aim:
        """For each row something that is not covered yet, drawn evenly."""
        aim = self.rule.choose(len(rows), rng, self.memory)
        return {f"{self.name}/{key}": value.to(rows.device) for key, value in aim.items()}

    def gain(self, probe: Probe) -> Float[Tensor, " m"]:
        self._seen = (probe, Frame.of(probe))  # an update with the same probe need not reduce it again
        with torch.no_grad():
            return self.rule.gain(self._seen[1], self.memory).to(probe.logits.device, probe.logits.dtype)

    def update(self, probe: Probe) -> None:
        seen, self._seen = self._seen, None
        self.observe(seen[1] if seen is not None and seen[0] is probe else Frame.of(probe))

    def observe(self, frame: Frame) -> None:
        patience = getattr(self.rule, "patience", 0)
        if not patience:
            with torch.no_grad():
                return self.rule.observe(frame, self._memory)
        self._waiting.append(frame.only(self.rule.selections))
        if sum(map(len, self._waiting)) >= patience:
            self._settle()

    @property
    def memory(self) -> Any:
        """What was observed so far, all of it."""
        self._settle()
        return self._memory

    def _settle(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            with torch.no_grad():
                self.rule.observe(Frame.join(waiting), self._memory)

    def pull(self, probe: Probe) -> Float[Tensor, " m"]:
        """How near each row is to what `choose` aimed it at: differentiable, higher is nearer."""
        prefix = f"{self.name}/"
        aim = {key.removeprefix(prefix): value for key, value in probe.aim.items() if key.startswith(prefix)}
        missing = set(self.rule.choose(0, torch.Generator(), self.memory)) - set(aim)
        if missing:
            raise Problem(
                f"criterion {self.name!r} is followed, but no aim was chosen for it.",
                fix="the criterion among the guides",
            )
        return self.rule.pull(Frame.of(probe), aim, self.memory)

    def fork(self) -> Measure:
        like: dict[str, Any] = {"laws": self.laws, "convention": self.convention, "profiled": self.profiled}
        return Measure(self.name, self.rule, memory=self.memory.fork(), **like)

    def delta(self) -> State:
        state: State = self.memory.delta()
        return state

    def merge(self, deltas: Sequence[State]) -> None:
        self.memory.merge(deltas)

    def tally(self) -> Tally:
        return self.rule.tally(self.memory)

    def value(self) -> float:
        return self.tally().value
