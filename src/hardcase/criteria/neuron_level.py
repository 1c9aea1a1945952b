"""Factories of the criteria that look at units and layers: options in, plan out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardcase.criteria.anatomy import Anatomy
from hardcase.criteria.building import Plan
from hardcase.criteria.corners import Corners, LayerCorners
from hardcase.criteria.layer import Combinations, Strongest
from hardcase.criteria.neuron import Activated, SuiteActivated
from hardcase.criteria.profile import Profile
from hardcase.criteria.ranges import Range
from hardcase.criteria.sections import Sections
from hardcase.criteria.units import Scaling, Selection, select
from hardcase.errors import Problem

Given = Mapping[str, Any]


def nc(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"], given["order"])
    if given["scale"] == "suite":
        return Plan(selection, lambda _: SuiteActivated(selection, given["threshold"]), without=frozenset({"monotone"}))
    scaling = Scaling(given["scale"], given["epsilon"])
    return Plan(selection, lambda _: Activated(selection, given["threshold"], scaling))


def kmnc(anatomy: Anatomy, given: Given) -> Plan:
    _at_least_one("kmnc", "k", given["k"])
    selection = select(anatomy, given["layers"], given["mode"])

    def make(profile: Profile | None) -> Sections:
        return Sections(
            selection, _range(profile, selection), given["k"], given["cuts"], given["top"], given["constant"]
        )

    return Plan(selection, make, ranges=(selection,))


def nbc(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda profile: _corners(profile, selection, given, "both"), ranges=(selection,))


def snac(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda profile: _corners(profile, selection, given, "above"), ranges=(selection,))


def layer_snac(anatomy: Anatomy, given: Given) -> Plan:
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda p: LayerCorners(_corners(p, selection, given, "above")), ranges=(selection,))


def tknc(anatomy: Anatomy, given: Given) -> Plan:
    _at_least_one("tknc", "k", given["k"])
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda _: Strongest(selection, given["k"], given["ranked"]))


def tknp(anatomy: Anatomy, given: Given) -> Plan:
    _at_least_one("tknp", "k", given["k"])
    selection = select(anatomy, given["layers"], given["mode"])
    return Plan(selection, lambda _: Combinations(selection, given["k"], given["ordered"]))


def _corners(profile: Profile | None, selection: Selection, given: Given, sides: Any) -> Corners:
    count = given.get("count", "corners")
    return Corners(selection, _range(profile, selection), sides, given["widen"], given["equal"], count)


def _range(profile: Profile | None, selection: Selection) -> Range:
    assert profile is not None
    return profile.range(selection)


def _at_least_one(criterion: str, option: str, value: int) -> None:
    if value < 1:
        raise Problem(f"{criterion}:{option}={value} must be 1 or more.")
