"""Budgets become limits per seed before a campaign starts, so that they hold exactly in any order of work."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hardcase.campaign.keeping import MANY, ordinal
from hardcase.errors import Problem
from hardcase.types import Budget


@dataclass(frozen=True, slots=True)
class Limits:
    """What each seed may still be asked."""

    queries: Int[Tensor, " n"]
    gradients: Int[Tensor, " n"]

    def to(self, device: torch.device) -> Limits:
        return Limits(self.queries.to(device), self.gradients.to(device))

    def take(self, rows: slice) -> Limits:
        return Limits(self.queries[rows], self.gradients[rows])


def limits(budget: Budget, count: int) -> Limits:
    """Per-seed limits for `count` seeds; a total is divided first, and its remainder goes to the first seeds."""
    return Limits(
        _limit("queries", budget.queries, budget.total_queries, count),
        _limit("gradients", budget.gradients, budget.total_gradients, count),
    )


def overlay(budget: Budget, default: Budget) -> Budget:
    """`budget`, with the method's own limits where the user set none of that sort."""
    own = {f.name: getattr(budget, f.name) for f in fields(Budget) if getattr(budget, f.name) is not None}
    asked = {name.removeprefix("total_") for name in own}
    silent: dict[str, None] = {name: None for name in ("queries", "gradients") if name in asked}
    return replace(default, **{**silent, **own})


def seconds(time: float | str | None) -> float | None:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"`` in seconds."""
    if time is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", str(time).strip())
    if not match:
        raise Problem(f"the time limit {time!r} is not a duration.", fix="30s, 10m or 2h")
    limit = float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[match[2] or "s"]
    if limit <= 0:
        raise Problem(f"a time limit of {time} leaves no time to look at anything.", fix="30s, 10m or 2h, or none")
    return limit


def within(rows: Int[Tensor, " m"], left: Int[Tensor, " n"]) -> Bool[Tensor, " m"]:
    """Which rows fit into what their seeds have left, counting in order."""
    counts = rows.bincount(minlength=len(left))
    if bool((counts <= left).all()):
        return torch.ones_like(rows, dtype=torch.bool)
    return ordinal(rows) < left[rows]


def _limit(name: str, each: int | None, total: int | None, count: int) -> Int[Tensor, " n"]:
    for value, label in ((each, name), (total, f"total_{name}")):
        if value is not None and value < 1:
            raise Problem(
                f"a budget of {value} {label} allows nothing to be looked at.", fix=f"{label} of at least 1, or none"
            )
    limit = torch.full((count,), MANY if each is None else each)
    if total is None:
        return limit
    share = torch.full((count,), total // max(count, 1)) + (torch.arange(count) < total % max(count, 1))
    return torch.minimum(limit, share)
