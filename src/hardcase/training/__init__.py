"""Training networks, and keeping what was trained. Nothing here imports torch until it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.training.cards import Card as Card
    from hardcase.training.cards import cached as cached
    from hardcase.training.cards import load as load
    from hardcase.training.goals import classify as classify
    from hardcase.training.loop import Goal as Goal
    from hardcase.training.loop import fit as fit
    from hardcase.training.loop import own_randomness as own_randomness
    from hardcase.training.recipe import Recipe as Recipe
    from hardcase.training.telling import History as History
    from hardcase.training.telling import Progress as Progress

_WHERE = {
    "Recipe": "recipe",
    **dict.fromkeys(("Goal", "fit", "own_randomness"), "loop"),
    **dict.fromkeys(("History", "Progress"), "telling"),
    "classify": "goals",
    **dict.fromkeys(("Card", "cached", "load"), "cards"),
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
