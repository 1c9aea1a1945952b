"""Networks to test, and how they are trained. Nothing here imports torch until it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.zoo.builder import build as build
    from hardcase.zoo.builder import load as load
    from hardcase.zoo.builder import trained as trained

__all__ = ["build", "load", "trained"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hardcase.zoo.builder"), name)
