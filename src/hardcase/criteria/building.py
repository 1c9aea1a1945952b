"""Names become criteria: the one place where a spec, a network's anatomy and a profile meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from hardcase.criteria.anatomy import Anatomy
from hardcase.criteria.catalogue import CRITERIA, Spec, parse, resolve
from hardcase.criteria.measure import Measure, Rule
from hardcase.criteria.profile import Needs, Profile
from hardcase.criteria.units import Selection
from hardcase.errors import Problem


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


def requirements(specs: Iterable[Spec | str], anatomy: Anatomy, *, convention: str = "default") -> Needs:
    """What a profile must hold for these criteria."""
    plans = [plan(spec, anatomy, convention=convention) for spec in specs]
    ranges, traces, distances = (dict.fromkeys(s for p in plans for s in getattr(p, what)) for what in Needs.__slots__)
    return Needs(tuple(ranges), tuple(traces), tuple(distances))


def build(
    spec: Spec | str, anatomy: Anatomy, profile: Profile | None = None, *, convention: str = "default", name: str = ""
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
        name or str(spec), rule, laws=laws, convention=printed, profiled=bool(planned.ranges or planned.traces)
    )


def _counted(selection: Selection) -> dict[str, Any]:
    return {"layers": list(selection.names), "mode": selection.mode, "units": selection.units}


def _found(rule: Rule) -> dict[str, Any]:
    """What only training data could tell: bounds, and classes whose covariance needed a ridge."""
    found = {name: getattr(rule, name) for name in ("lower", "upper") if hasattr(rule, name)}
    ridged = getattr(getattr(rule, "model", None), "ridged", None)
    return found if ridged is None else {**found, "classes with a ridge": ridged}
