"""One error for everything a user can put right: what happened, why it matters, what to do; and the
guards that turn what files and code of others raise into it, except the user's own Ctrl-C.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from types import FrameType, ModuleType
from typing import Any, NoReturn

from hardcase.environment import redact, sanitize
from hardcase.state import LEAVE, GlobalState

FAILED = 1
USAGE = 2
INTERNAL = 3
INCONCLUSIVE = 4
NO_SEEDS = 5
INTERRUPTED = 130
UNREAD = 141
NEAR = 0.1
"""The largest difference in similarity to the typed name at which a second name is suggested
too."""
FEW = 16
"""Names up to which all are listed, also where a near name is suggested."""

_log = logging.getLogger(__name__)


class HardcaseError(Exception):
    """A failure with a remedy. `str()` gives the form every front end prints after ``error:``.

    Args:
        what: What happened.
        why: Why it matters, or its likely cause; a sentence each.
        fix: What to do about it.
        code: Exit status of the command line.

    Example:
        >>> import hardcase as hc
        >>> print(hc.HardcaseError("there is no model.", fix="--model zoo:lenet5"))
        there is no model.
          try: --model zoo:lenet5
    """

    def __init__(self, what: str, *why: str, fix: str = "", code: int = USAGE) -> None:
        super().__init__(what, *why)
        self.what = what
        self.why = why
        self.fix = fix
        self.code = code

    def __str__(self) -> str:
        lines = [self.what, *(f"  {line}" for line in self.why)]
        return sanitize(redact("\n".join([*lines, f"  try: {self.fix}"] if self.fix else lines)))


class Refused(HardcaseError):  # noqa: N818 - what happened
    """A stored run that is left as it is: what would go on with it is not what it began with."""


@contextmanager
def reading(what: str, *why: str, fix: str = "") -> Iterator[None]:
    """Turn every exception of a file reader into a `HardcaseError`.

    Damaged files raise exceptions of many kinds.

    Example:
        >>> with reading("set.json cannot be read"):
        ...     raise ValueError("no JSON")
        Traceback (most recent call last):
        hardcase.errors.HardcaseError: set.json cannot be read: no JSON.
    """
    try:
        yield
    except (HardcaseError, Unanswered):
        raise
    except Exception as error:
        message = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        raise HardcaseError(f"{what}: {message}.", *why, fix=fix) from error


def choice(kind: str, given: str, known: list[str] | tuple[str, ...]) -> HardcaseError:
    """The error for a name that does not exist: it suggests the nearest name, and lists all names
    if they are at most `FEW` or none is near.
    """
    from difflib import SequenceMatcher, get_close_matches

    spelled = {name.lower(): name for name in known}
    near = get_close_matches(given.lower(), spelled, n=3)
    likeness = [SequenceMatcher(None, name, given.lower()).ratio() for name in near]
    nearest = [spelled[name] for name, like in zip(near, likeness) if like >= likeness[0] - NEAR]
    listed = [] if nearest and len(known) > FEW else [f"known: {', '.join(known)}"]
    return HardcaseError(f"there is no {kind} {given!r}.", *listed, fix=" or ".join(nearest))


_interrupts = 0
USER = "hardcase_user_"
"""What the names of users' modules begin with."""
ConsentCheck = Callable[["str | Path"], None]
"""Raises if a file may not be run, or an address not be talked to."""
_consent_check: ConsentCheck | None = None


def set_consent_check(check: ConsentCheck | None) -> None:
    """From now on nothing that can run code is opened unless `check` allows it; None allows all."""
    global _consent_check
    _consent_check = check


def require_consent(thing: str | Path) -> None:
    """Raise if another's run folder named this file or address, and the user has not allowed it."""
    if _consent_check is not None:
        _consent_check(thing)


class Raised(HardcaseError):  # noqa: N818 - what happened
    """An exception of user code; the message names that code, the cause is the exception."""


class Unanswered(Exception):  # noqa: N818 - what happened, not an error of ours
    """A model did not answer a call: too late, or not at all."""


class Endless(Unanswered):
    """A call took longer than any call should."""


def count_interrupt() -> None:
    """Tell the guard that the user has typed Ctrl-C (called by whoever handles the signal)."""
    global _interrupts
    _interrupts += 1


def _reraise(
    error: BaseException, what: str, *, before: int, why: str = "", fix: str = ""
) -> NoReturn:
    """Turn an exception of user code into a `Raised` that names `what`; Ctrl-C, lack of memory,
    cancelled calls and `HardcaseError` pass unchanged. `before` is how often Ctrl-C
    was typed until the call began.
    """
    # torch's class is looked up by its name: nothing here imports torch
    no_memory = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    if isinstance(error, (HardcaseError, MemoryError, Unanswered)) or no_memory:
        raise error
    if isinstance(error, KeyboardInterrupt):
        # under Python's own handler nobody counts: Ctrl-C cannot be told from the model's
        python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if _interrupts > before or python:
            raise error
        message = f"{what} raised KeyboardInterrupt."
    elif isinstance(error, SystemExit):
        message = f"{what} called sys.exit({error.code})."
    elif isinstance(error, (Exception, GeneratorExit)) or type(error) is BaseException:
        message = f"{what} raised {type(error).__name__}: {first_line(error)}"
    else:
        raise error
    place = user_line(error)
    raise Raised(message, *filter(None, [place and f"in {place}", why]), fix=fix) from error


def first_line(error: BaseException) -> str:
    """The message of an exception; empty if it cannot be printed."""
    try:
        return (str(error).splitlines() or ["no message"])[0]
    except Exception:
        return "no message that can be printed"


def user_line(error: BaseException) -> str:
    """The deepest line of a user's file that an exception passed; nothing where there is none."""
    place = ""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_globals.get("__name__", "").startswith(USER):
            place = f"{step.tb_frame.f_code.co_filename}, line {step.tb_lineno}"
        step = step.tb_next
    return place


class guarded:  # noqa: N801 - read as a verb: ``with guarded("sampler s.py:draw"):``
    """Run code of others: what it raises becomes a `Raised` that names it, and what it sets for all
    code in this process is put back (`hardcase.state`).

    `SystemExit`, `GeneratorExit` and a call of `os._exit` are such errors too.

    Args:
        what: What runs, as it begins a sentence.
        why: Why an error of it matters.
        fix: What to do about such an exception.

    Example:
        >>> with guarded("sampler s.py:draw"):
        ...     raise SystemExit(0)
        Traceback (most recent call last):
        hardcase.errors.Raised: sampler s.py:draw called sys.exit(0).
    """

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what = what
        self.why = why
        self.fix = fix
        self._interrupts = 0
        self._state: list[GlobalState] = []

    def __enter__(self) -> None:
        self._interrupts = _interrupts
        self._state.append(GlobalState.now())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        changed, closed = self._state.pop().restore()
        if changed:
            _tell_changes(self.what, tuple(changed))
        if closed and (error is None or isinstance(error, Exception)):
            raise Raised(
                f"{self.what} closed {' and '.join(closed)}.",
                "Nothing of what was found could be printed.",
                fix="no close() of sys.stdout or sys.stderr",
            ) from error
        abandoned = isinstance(error, GeneratorExit) and trace.tb_next is None
        if error is None or abandoned:  # the generator that this block is part of was closed
            return
        _reraise(error, self.what, before=self._interrupts, why=self.why, fix=self.fix)


@cache
def _tell_changes(what: str, names: tuple[str, ...]) -> None:
    """Say once what code of others changed for all."""
    _log.warning("%s changes %s for all code; it was put back", what, " and ".join(names))


GRACE = 1.0
"""Seconds after its time in which a call can be broken off by a signal; then it is cancelled ..."""
LOST = 10.0
"""... and after so many a command ends, where native code hears neither."""


class _Watchdog:
    """A thread that sees to calls of native code, which no signal reaches: it asks them to end, and
    ends the command if they do not.

    Code that holds the interpreter's lock stops this thread too. So calls wind up a timer that
    needs no lock, and which the thread winds down where it still runs.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.seconds = 0.0
        self.cancel: Callable[[], None] | None = None
        self.ends_process = False
        self.thread: threading.Thread | None = None
        self.wound_up: float | None = None
        self._lock = threading.Lock()

    def watch(self, seconds: float) -> None:
        now = monotonic()
        with self._lock:
            self.seconds = seconds
            self.deadline = now + seconds
            if self.ends_process and (self.wound_up is None or now - self.wound_up > LOST / 4):
                self.wound_up = now
                faulthandler.dump_traceback_later(seconds + 2 * LOST, exit=True, file=2)
        if self.thread is None:
            self.thread = threading.Thread(target=self._look, daemon=True)
            self.thread.start()

    def _look(self) -> None:
        while True:
            sleep(GRACE / 4)
            with self._lock:
                deadline = self.deadline
                if deadline is None and self.wound_up is not None:
                    self.wound_up = None
                    faulthandler.cancel_dump_traceback_later()
            late = 0.0 if deadline is None else monotonic() - deadline
            if late > GRACE and self.cancel is not None:
                self.cancel()
            if late > LOST and self.ends_process:
                text = f"a call gave no answer within {self.seconds:g} s and cannot be broken off."
                os.write(2, f"error: {text} What is stored is safe.\n".encode())
                LEAVE(USAGE)


_watchdog = _Watchdog()


def end_lost_calls(wanted: bool) -> None:
    """Let this process end when native code does not come back in its time; a notebook does not."""
    _watchdog.ends_process = wanted


@contextmanager
def cancelled_by(cancel: Callable[[], None]) -> Iterator[None]:
    """Name what ends the native call in here, from another thread, when its time is over."""
    before = _watchdog.cancel
    _watchdog.cancel = cancel
    try:
        yield
    finally:
        _watchdog.cancel = before


@contextmanager
def within(seconds: float | None, error: type[Unanswered] = Unanswered) -> Iterator[None]:
    """Break off what takes longer, where the system can (the main thread of a POSIX process).

    Inside another such block, the outer time limit holds. Native code hears no signal: see
    `cancelled_by` and `end_lost_calls`. Of code that holds the interpreter's lock only the command
    can be ended, with exit code 1.
    """
    main = threading.current_thread() is threading.main_thread()
    can = main and hasattr(signal, "setitimer") and not signal.getitimer(signal.ITIMER_REAL)[0]
    if seconds is None or not can:
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise error(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _watchdog.watch(seconds)
    try:
        yield
    finally:
        _watchdog.deadline = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def likely_factory(path: Path) -> str:
    """The function or class of a file that seems to make a network; the file is not run."""
    import ast

    try:
        nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return "factory"
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    usual = [name for name in functions if name.startswith(("make", "build", "load", "get", "net"))]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return next(iter([*usual, *classes, *functions]), "factory")


def names_in(path: Path) -> set[str] | None:
    """The names that the text of a Python file defines for others, without running it; None where
    only running it tells.
    """
    import ast

    try:
        text = path.read_text(encoding="utf-8")
        nodes = ast.walk(ast.parse(text))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if any(word in text for word in ("globals(", "setattr(", "exec(", "__getattr__")):
        return None
    names = set[str]()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name)
    return None if "*" in names else names


def file_member(path: Path, member: str) -> Callable[..., Any]:
    """The function or class called `member` of a Python file, which is run for that."""
    module = _module(path)
    maker = getattr(module, member, None)
    if not callable(maker):
        members = [
            name
            for name, value in vars(module).items()
            if callable(value) and name[0] != "_" and value.__module__ == module.__name__
        ]
        near = choice("function", member, members).fix
        raise HardcaseError(
            f"{path} has no function {member!r}.",
            f"callable there: {', '.join(members) or 'nothing'}",
            fix=f"{path}:{near}" if near else "",
        )
    return maker  # type: ignore[no-any-return]  # callable, checked above


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise HardcaseError(f"there is no file {path}.")
    require_consent(path)
    name = f"{USER}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise HardcaseError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    home = str(path.absolute().parent)  # where modules beside the file are, as for `python file.py`
    sys.path.insert(0, home)
    try:
        with guarded(f"importing {path}"):
            spec.loader.exec_module(module)
    except Raised as raised:
        del sys.modules[name]
        cause = raised.__cause__
        raise HardcaseError(
            f"{path} cannot be imported: {type(cause).__name__}: {cause}"
        ) from cause
    finally:
        sys.path.remove(home)
        if home not in sys.path:
            sys.path.append(home)  # for what its functions import later
    return module
