"""Coverage criteria: diagnostics of an image set and guides of a search, never a pass mark. Importing this loads no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.criteria.anatomy import survey as survey
    from hardcase.criteria.building import build as build
    from hardcase.criteria.building import requirements as requirements
    from hardcase.criteria.objectives import toward as toward
    from hardcase.criteria.profile import Profile as Profile
    from hardcase.criteria.profile import fit_profile as fit_profile

_WHERE = {
    "survey": "anatomy",
    "build": "building",
    "requirements": "building",
    "toward": "objectives",
    "Profile": "profile",
    "fit_profile": "profile",
}
__all__ = ["Profile", "build", "fit_profile", "requirements", "survey", "toward"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"hardcase.criteria.{_WHERE[name]}"), name)
