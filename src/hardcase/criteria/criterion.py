"""A criterion is a rule and a memory: this class is the one that campaigns and `measure` handle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.criteria.catalogue import CRITERIA, Spec, parse, resolve
from hardcase.criteria.frame import Frame
from hardcase.criteria.memory import Memory
from hardcase.criteria.network import Anatomy, Selection, join_taps
from hardcase.criteria.profile import Needs, Profile
from hardcase.errors import Problem
from hardcase.types import Aim, Probe, State, Tap

# --- A criterion is a rule and a memory: this class is the one that campaigns and `measure` handle.


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
        self._seen = (
            probe,
            Frame.of(probe),
        )  # an update with the same probe need not reduce it again
        with torch.no_grad():
            return self.rule.gain(self._seen[1], self.memory).to(
                probe.logits.device, probe.logits.dtype
            )

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
        aim = {
            key.removeprefix(prefix): value
            for key, value in probe.aim.items()
            if key.startswith(prefix)
        }
        missing = set(self.rule.choose(0, torch.Generator(), self.memory)) - set(aim)
        if missing:
            raise Problem(
                f"criterion {self.name!r} is followed, but no aim was chosen for it.",
                fix="the criterion among the guides",
            )
        return self.rule.pull(Frame.of(probe), aim, self.memory)

    def fork(self) -> Measure:
        like: dict[str, Any] = {
            "laws": self.laws,
            "convention": self.convention,
            "profiled": self.profiled,
        }
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


# --- Names become criteria: the one place where a spec, a network's anatomy and a profile meet.


@dataclass(frozen=True)
class Plan:
    """A criterion for a known network, still without training data.

    `ranges`, `traces` and `distances` are what it needs of a profile; `make` builds its rule from one.
    """

    selection: Selection
    make: Callable[[Profile | None], Rule]
    ranges: tuple[Selection, ...] = ()
    traces: tuple[Selection, ...] = ()
    distances: tuple[Selection, ...] = ()
    without: frozenset[str] = frozenset()
    details: Mapping[str, Any] = field(default_factory=dict)


def plan(spec: Spec | str, anatomy: Anatomy, *, convention: str = "default") -> Plan:
    spec = parse(spec) if isinstance(spec, str) else spec
    module, _, function = CRITERIA[spec.name].where.partition(":")
    factory: Callable[[Anatomy, Mapping[str, Any]], Plan] = getattr(
        import_module(f"hardcase.criteria.{module}"), function
    )
    return factory(anatomy, resolve(spec, convention))


def requirements(
    specs: Iterable[Spec | str], anatomy: Anatomy, *, convention: str = "default"
) -> Needs:
    """What a profile must hold for these criteria."""
    plans = [plan(spec, anatomy, convention=convention) for spec in specs]
    ranges, traces, distances = (
        dict.fromkeys(s for p in plans for s in getattr(p, what)) for what in Needs.__slots__
    )
    return Needs(tuple(ranges), tuple(traces), tuple(distances))


def build_criteria(
    spec: Spec | str,
    anatomy: Anatomy,
    profile: Profile | None = None,
    *,
    convention: str = "default",
    name: str = "",
) -> Measure:
    """The criterion, ready to be updated. `name` (by default the spec's text) is its name in a campaign."""
    spec = parse(spec) if isinstance(spec, str) else spec
    planned = plan(spec, anatomy, convention=convention)
    if profile is None and (planned.ranges or planned.traces):
        raise Problem(
            f"criterion {str(spec)!r} needs a profile of training data.",
            "It compares with what training data did to the network.",
            fix="profile=... (training images, or a saved profile)",
        )
    rule = planned.make(profile)
    entry = CRITERIA[spec.name]
    printed = {
        "name": convention,
        **resolve(spec, convention),
        **_counted(planned.selection),
        **_found(rule),
        **planned.details,
    }
    laws = frozenset(entry.laws) - planned.without
    return Measure(
        name or str(spec),
        rule,
        laws=laws,
        convention=printed,
        profiled=bool(planned.ranges or planned.traces),
    )


def _counted(selection: Selection) -> dict[str, Any]:
    return {"layers": list(selection.names), "mode": selection.mode, "units": selection.units}


def _found(rule: Rule) -> dict[str, Any]:
    """What only training data could tell: bounds, and classes whose covariance needed a ridge."""
    found = {name: getattr(rule, name) for name in ("lower", "upper") if hasattr(rule, name)}
    ridged = getattr(getattr(rule, "model", None), "ridged", None)
    return found if ridged is None else {**found, "classes with a ridge": ridged}


# --- The gradient of each criterion: a score that pulls every candidate toward something its criterion has not covered.
#
# A criterion's `choose` draws an uncovered target for each row (a unit, a corner, a section, a pair, a bucket); `toward` scores
# how near the row is to it: up for an inactive unit, down for a lower corner, toward the centre of a section, past its rivals
# for a unit that was never among the strongest, toward a surprise that was never met. Rows are independent.
#
# "Define a gradient for each coverage" is the promise of the project "Adversarial image generation based on various neuron
# coverage"; the code known of it changes only which neuron counts as uncovered and always pushes it up.


@dataclass(frozen=True, slots=True)
class Toward:
    """An `Objective`: how near each row is to what its aim asks for, times `weight`.

    In a campaign the memory is the shard's own, under the criterion's name, wherever the shard is searched.
    """

    criterion: Measure
    weight: float = 1.0

    def __call__(self, probe: Probe) -> Float[Tensor, " m"]:
        live = probe.guides.get(self.criterion.name)
        return self.weight * (live if isinstance(live, Measure) else self.criterion).pull(probe)


def toward(criterion: Measure, *, weight: float = 1.0) -> Toward:
    return Toward(criterion, weight)
