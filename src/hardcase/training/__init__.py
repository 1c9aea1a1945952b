"""Training networks, and keeping what was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.training.cards import cached, load_card
    from hardcase.training.loop import (
        Goal,
        History,
        TrainingProgress,
        classify,
        fit,
        own_randomness,
    )
    from hardcase.training.recipe import TrainingRecipe

__getattr__, __dir__, __all__ = lazy(__name__)
