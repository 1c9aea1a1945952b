"""What failures have in common: severity curves, slices, maps, what moved, what a version broke."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.analysis.curves import (
        crossings as crossings,
        curve as curve,
        severity_curves as severity_curves,
    )
    from hardcase.analysis.maps import map_of_run as map_of_run
    from hardcase.analysis.references import (
        changed as changed,
        excess as excess,
        regressing as regressing,
    )
    from hardcase.analysis.semantics import (
        Tags as Tags,
        measure as measure,
        measured as measured,
        moved as moved,
    )
    from hardcase.analysis.slices import (
        Slice as Slice,
        find_slices as find_slices,
        slices_of_run as slices_of_run,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
