"""People rate what methods made: a blinded study, its page, its analysis, and a simulated crowd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase_study.analysis import analyse
    from hardcase_study.bundle import Study
    from hardcase_study.calibration import rated, record
    from hardcase_study.crowd import simulate
    from hardcase_study.designs import new
    from hardcase_study.exchange import export, load
    from hardcase_study.server import serve

__getattr__, __dir__, __all__ = lazy(__name__)
