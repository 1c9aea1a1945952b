"""Training networks, and keeping what was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.randomness import named_randomness as named_randomness
    from hardcase.training.cards import (
        History as History,
        TrainingProgress as TrainingProgress,
        TrainingRecipe as TrainingRecipe,
        cached as cached,
        load_card as load_card,
    )
    from hardcase.training.loop import Goal as Goal, classify as classify, fit as fit

__getattr__, __dir__, __all__ = lazy(__name__)
