"""What the catalogue says about a criterion. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LAWS = {
    "ratio": "its value lies in [0, 1]",
    "monotone": "more inputs never lower it",
    "order-free": "the order of the inputs does not matter",
    "idempotent": "seeing the same inputs again changes nothing",
    "mergeable": "any cut of the inputs into batches and shards gives the same result",
    "to rounding": "the last two hold up to the last digits of a sum",
}

RATIO = ("ratio", "monotone", "order-free", "idempotent", "mergeable")


@dataclass(frozen=True, slots=True)
class Option:
    default: str | int | float | bool
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A criterion. `where` is the factory, ``module:function``."""

    name: str
    summary: str
    definition: str
    paper: str
    where: str
    needs: str = "activations"
    laws: tuple[str, ...] = RATIO
    options: Mapping[str, Option] = field(default_factory=dict)
