"""The laws that parts must pass, shipped so that third parties run the same ones on theirs.

``check_method(lambda: my_method())``, ``check_space(my_space)`` and ``check_criterion(...)`` raise AssertionError with what they saw.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hardcase.testing.criteria import check_criterion as check_criterion
    from hardcase.testing.criteria import check_pull as check_pull
    from hardcase.testing.methods import check_method as check_method
    from hardcase.testing.spaces import check_space as check_space

_HOMES = {
    "check_criterion": "criteria",
    "check_pull": "criteria",
    "check_method": "methods",
    "check_space": "spaces",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
