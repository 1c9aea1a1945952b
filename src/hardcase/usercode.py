"""One guard around code that users supply: factories, forward passes, generators, judges.

Whatever such code raises becomes a `Problem` that names it, except the user's own Ctrl-C.
"""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from hardcase.errors import Problem

_interrupts = 0


def count_interrupt() -> None:
    """Tell the guard that the user has typed Ctrl-C (called by whoever handles the signal)."""
    global _interrupts
    _interrupts += 1


@contextmanager
def guarded(what: str, *, why: str = "", fix: str = "") -> Iterator[None]:
    """Run user code; anything it raises, `SystemExit` included, becomes a `Problem` naming `what`.

    Args:
        what: What is being called, e.g. ``model zoo:lenet5``.
        why: What the failure means for the user.
        fix: What to do about it.

    Raises:
        Problem: Instead of any exception of the code inside.
        KeyboardInterrupt: Only if the user typed it.

    Example:
        >>> from hardcase.errors import Problem
        >>> try:
        ...     with guarded("model net.py:make"):
        ...         raise SystemExit(0)
        ... except Problem as problem:
        ...     print(problem)
        model net.py:make called sys.exit(0).
    """
    before = _interrupts
    try:
        yield
    except (Problem, MemoryError):
        raise
    except KeyboardInterrupt as error:
        if _interrupts > before or _default_handler():
            raise
        raise Problem(f"{what} raised KeyboardInterrupt.", why, fix=fix) from error
    except SystemExit as error:
        raise Problem(f"{what} called sys.exit({error.code}).", why, fix=fix) from error
    except Exception as error:
        first = (str(error).splitlines() or ["no message"])[0]
        raise Problem(f"{what} raised {type(error).__name__}: {first}", why, fix=fix) from error


def file_member(path: Path, member: str) -> Callable[..., Any]:
    """The function or class called `member` of a Python file, which is run for that.

    Raises:
        Problem: If there is no such file or member, or the file cannot be imported.
    """
    module = _module(path)
    made = getattr(module, member, None)
    if not callable(made):
        known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
        raise Problem(
            f"{path} has no function {member!r}.",
            f"callable there: {', '.join(known) or 'nothing'}",
        )
    return made  # type: ignore[no-any-return]  # callable, checked above


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise Problem(f"there is no file {path}.")
    name = f"hardcase_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Problem(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    try:
        with guarded(f"importing {path}"):
            spec.loader.exec_module(module)
    except Problem as problem:
        raise Problem(f"{path} cannot be imported: {problem}") from problem
    return module


def _default_handler() -> bool:
    """Whether Ctrl-C arrives as Python's own exception, which cannot be told from the model's."""
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
