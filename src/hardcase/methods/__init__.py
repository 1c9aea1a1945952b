"""Recipes: one file per paper, one row per method in `catalogue`. Nothing here imports torch until a recipe is used."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from hardcase.methods.catalogue import METHODS

_HOMES = {function: module for module, _, function in (row.where.partition(":") for row in METHODS.values())}
__all__ = sorted(_HOMES)


class _Recipes(ModuleType):
    """``hc.methods.sinvad`` is the recipe, also once the file of the same name has been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, getattr(value, name, value) if isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Recipes


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
