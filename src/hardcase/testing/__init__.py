"""The laws that parts must pass, shipped so that third parties run the same ones on theirs.

``check_method(lambda: my_method())`` and ``check_space(my_space)`` raise AssertionError with what they saw.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.testing.methods import check_method as check_method
    from hardcase.testing.spaces import check_space as check_space

_HOMES = {"check_method": "methods", "check_space": "spaces"}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
