"""What findings have in common: severity curves, slices, maps, what moved, what a version broke."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.analysis.curves import crossings, curve
    from hardcase.analysis.insight import map_of_run, severity_curves, slices_of_run
    from hardcase.analysis.regression import changed, excess, regressing
    from hardcase.analysis.semantics import measured, moved
    from hardcase.analysis.slices import Slice, find_slices
    from hardcase.analysis.tags import Tags, measure

__getattr__, __dir__, __all__ = lazy(__name__)
