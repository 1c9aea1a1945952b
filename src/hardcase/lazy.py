"""Packages whose names are imported when they are first used (PEP 562).

The ``if TYPE_CHECKING`` block of a package is the only table of what it exports: type checkers
follow its imports, and here they are read off the source, as ``lazy_loader`` reads stubs (SPEC 1).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the package `package`."""
    module = sys.modules[package]
    module.__class__ = _Exports
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = [node.body for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    homes = {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in imports
        for alias in node.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        try:
            value = None if home == package else getattr(import_module(home), original, None)
        except ModuleNotFoundError as error:
            owner = home.partition(".")[0]
            if owner == "hardcase" or not str(error.name).startswith(owner):
                raise
            extra = owner.removeprefix("hardcase_")
            advice = f"pip install 'hardcase[{extra}]'"
            raise AttributeError(f"{package}.{name} is of another package: {advice}") from error
        if value is None:  # a module of its own
            value = import_module(f"{home}.{original}")
        setattr(module, name, value)
        return value

    names = sorted(homes)
    return get, lambda: names, names


class _Exports(ModuleType):
    """An exported function keeps its name when the file of the same name is imported later."""

    def __setattr__(self, name: str, value: object) -> None:
        exported = name in self.__dict__.get("__all__", ())
        if exported and isinstance(value, ModuleType) and callable(getattr(value, name, None)):
            value = getattr(value, name)
        super().__setattr__(name, value)
