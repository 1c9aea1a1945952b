"""Factories of the MC/DC family: which layers are neighbours, and which of their pairs count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from hardcase.criteria.anatomy import Anatomy
from hardcase.criteria.building import Plan
from hardcase.criteria.independence import Kind, Split
from hardcase.criteria.mcdc import Independence
from hardcase.criteria.units import Selection, select
from hardcase.errors import Problem

Given = Mapping[str, Any]


def ssc(anatomy: Anatomy, given: Given) -> Plan:
    return _plan(anatomy, given, "sign-sign")


def vsc(anatomy: Anatomy, given: Given) -> Plan:
    return _plan(anatomy, given, "value-sign")


def svc(anatomy: Anatomy, given: Given) -> Plan:
    return _plan(anatomy, given, "sign-value")


def vvc(anatomy: Anatomy, given: Given) -> Plan:
    return _plan(anatomy, given, "value-value")


def _plan(anatomy: Anatomy, given: Given, kind: Kind) -> Plan:
    layers = "hidden" if given["channels"] and given["layers"] == "hidden-dense" else given["layers"]
    selection = select(anatomy, layers, "channel")
    if len(selection.layers) < 2:
        raise Problem(
            f"{kind} coverage compares neighbouring layers; {layers!r} names one: {selection.names[0]}.",
            fix="channels=true for convolutions by channel, or layers=NAME+NAME",
        )
    splits = tuple(_split(anatomy, selection, i, given["top"]) for i in range(len(selection.layers) - 1))
    factors = (given["factor"], given["factor"])
    rule = Independence(selection, splits, kind, given["pairs"], factors, given["relax"])
    return Plan(selection, lambda _: rule)


def _split(anatomy: Anatomy, selection: Selection, i: int, top: int) -> Split:
    (s, t), starts = selection.widths[i : i + 2], selection.starts
    allowed = torch.ones(s, t, dtype=torch.bool)
    if top and top < s:
        allowed = _strongest(anatomy, selection, i, top)
    return Split(slice(starts[i], starts[i] + s), slice(starts[i + 1], starts[i + 1] + t), allowed)


def _strongest(anatomy: Anatomy, selection: Selection, i: int, top: int) -> Bool[Tensor, "s t"]:
    """The conditions with the `top` largest incoming weights of each decision."""
    before, after, conditions = selection.names[i], selection.names[i + 1], selection.widths[i]
    weights = anatomy.weights.get(after.split("#")[0])
    if weights is None or weights.shape[1] % conditions:
        raise Problem(
            f"no weights lead straight from {before!r} to {after!r}, so the strongest cannot be chosen.", fix="top=0"
        )
    sizes = torch.unflatten(weights, 1, (conditions, -1)).sum(2)  # a flattened map: all places of a channel
    return torch.zeros(conditions, len(weights), dtype=torch.bool).scatter_(0, sizes.t().topk(top, dim=0).indices, True)
