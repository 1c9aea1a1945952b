"""Memories that steer: which unit to push, which strategy to try next, what to mutate.

Each works with any search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.guides.adapt import Adaptive as Adaptive, Learning as Learning
    from hardcase.guides.archive import Archive as Archive, CellGrid as CellGrid
    from hardcase.guides.corpus import Corpus as Corpus, Fading as Fading, Recent as Recent
    from hardcase.guides.units import (
        Deviating as Deviating,
        FailingOnly as FailingOnly,
        Hits as Hits,
        Strategies as Strategies,
        StrongestUnits as StrongestUnits,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
