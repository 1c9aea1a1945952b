"""People rate what methods made: a blinded study, its page, its analysis, and a simulated crowd."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.study.analysis import analyse
    from hardcase.study.bundle import Study
    from hardcase.study.calibration import rated
    from hardcase.study.crowd import simulate
    from hardcase.study.designs import new
    from hardcase.study.exchange import read_npz
    from hardcase.study.server import serve

_HOMES = {
    "Study": "bundle",
    "new": "designs",
    "serve": "server",
    "analyse": "analysis",
    "rated": "calibration",
    "simulate": "crowd",
    "read_npz": "exchange",
}
__all__ = ["Study", "analyse", "new", "rated", "read_npz", "serve", "simulate"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"hardcase.study.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hardcase.study' has no attribute {name!r}")
