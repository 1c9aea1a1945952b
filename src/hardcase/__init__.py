"""hardcase finds realistic inputs on which an image classifier fails, and says how far each can be trusted.

Importing it is cheap: nothing below is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hardcase.version import VERSION

if TYPE_CHECKING:
    from hardcase import criteria, data, methods, spaces, testing, zoo
    from hardcase.api import check, resume, run
    from hardcase.errors import Problem
    from hardcase.judging.asking import judge
    from hardcase.measuring import coverage
    from hardcase.results import Run
    from hardcase.subject import Subject
    from hardcase.suite.compare import compare
    from hardcase.suite.gate import assert_confirmed_rate
    from hardcase.suite.replay import replay
    from hardcase.suite.shrink import shrink
    from hardcase.types import Budget, Images, Method

__version__ = VERSION

_HOMES = {
    "run": "api",
    "resume": "api",
    "check": "api",
    "judge": "judging.asking",
    "coverage": "measuring",
    "compare": "suite.compare",
    "replay": "suite.replay",
    "shrink": "suite.shrink",
    "assert_confirmed_rate": "suite.gate",
    "Problem": "errors",
    "Run": "results",
    "Subject": "subject",
    "Budget": "types",
    "Images": "types",
    "Method": "types",
}
_ROOMS = ("criteria", "data", "methods", "spaces", "testing", "zoo")

__all__ = [
    "Budget", "Images", "Method", "Problem", "Run", "Subject", "assert_confirmed_rate", "check", "compare", "coverage",
    "criteria", "data", "judge", "methods", "replay", "resume", "run", "shrink", "spaces", "testing", "zoo",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"hardcase.{_HOMES[name]}"), name)
    if name in _ROOMS:
        return import_module(f"hardcase.{name}")
    raise AttributeError(f"module 'hardcase' has no attribute {name!r}")
