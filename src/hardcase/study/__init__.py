"""People rate what methods made: a blinded study, its page, its analysis, and a simulated crowd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.study.analysis import analyse
    from hardcase.study.bundle import Study
    from hardcase.study.calibration import folds, rated, record
    from hardcase.study.crowd import simulate
    from hardcase.study.designs import new
    from hardcase.study.exchange import export, load, read_npz
    from hardcase.study.server import serve

__getattr__, __dir__, __all__ = lazy(__name__)
