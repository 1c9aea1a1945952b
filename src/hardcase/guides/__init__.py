"""Memories that steer: which unit to push, which strategy to try next, what to mutate.

Each works with any search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.guides.adapt import Adaptive, Learning
    from hardcase.guides.archive import Archive, CellGrid
    from hardcase.guides.corpus import Corpus, Fading, Recent
    from hardcase.guides.units import Deviating, FailingOnly, Hits, Strategies, StrongestUnits

__getattr__, __dir__, __all__ = lazy(__name__)
