"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, read from its ``if TYPE_CHECKING``
    block.

    That block is the only table of what the package exports: type checkers follow its imports, and
    at run time each of them happens when the name is first asked for.

    Args:
        package: The ``__name__`` of the package whose ``__init__.py`` calls this.

    Example:
        >>> import hardcase
        >>> "Subject" in dir(hardcase)
        True
    """
    module = sys.modules[package]
    homes = _homes(Path(str(module.__file__)))
    module.__class__ = _Exports
    names = sorted(homes)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, original = homes[name]
        found = None if home == package else getattr(import_module(home), original, None)
        value = import_module(f"{home}.{original}") if found is None else found  # None: a room
        setattr(module, name, value)
        return value

    return get, lambda: names, names


class _Exports(ModuleType):
    """An exported function keeps its name when the file of the same name is imported later."""

    def __setattr__(self, name: str, value: object) -> None:
        exported = name in self.__dict__.get("__all__", ())
        if exported and isinstance(value, ModuleType) and callable(getattr(value, name, None)):
            value = getattr(value, name)
        super().__setattr__(name, value)


def _homes(path: Path) -> dict[str, tuple[str, str]]:
    """Every exported name with its module and its name there."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in imports
        for alias in node.names
    }
