"""Networks that make images, and how they are trained. Nothing here imports torch until it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.generators.builder import build as build
    from hardcase.generators.builder import load as load
    from hardcase.generators.builder import trained as trained
    from hardcase.generators.vae import Vae as Vae

_WHERE = {**dict.fromkeys(("build", "load", "trained"), "builder"), "Vae": "vae"}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
