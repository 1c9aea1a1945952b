"""Labelled image sets by name: ``load("mnist5k", split="test")``. Importing this folder imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hardcase.data.catalogue import TABLE, DataSet

if TYPE_CHECKING:
    from hardcase.data.describing import describe
    from hardcase.data.fetching import Summary, fetch
    from hardcase.data.loading import load

__all__ = ["TABLE", "DataSet", "Summary", "describe", "fetch", "load"]

_HOMES = {"load": "loading", "fetch": "fetching", "Summary": "fetching", "describe": "describing"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
