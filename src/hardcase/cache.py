"""Where downloaded data and trained networks live, and how a file is written so that nobody sees
half of it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from hardcase.errors import INTERNAL, Problem

MANY = 32
"""Files from which on the whole disk is flushed instead of each of them."""


def cache_folder() -> Path:
    """The folder named by ``HARDCASE_CACHE``, else the platform's cache folder of the user.

    It need not exist yet.
    """
    named = os.environ.get("HARDCASE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("hardcase"))


def named_path(text: str) -> Path:
    """The path that a user's words name, ``~`` for their home;
    words that no path can be are a problem.
    """
    try:
        path = Path(text).expanduser()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Problem(
            f"{text[:80]!r}{'...' if len(text) > 80 else ''} cannot be opened: {why}."
        ) from error
    return path


@contextmanager
def turn(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path`, which other processes may hold; True if it is held.

    Where the platform or the file system knows no locks, everybody holds it.

    Args:
        path: It is made, with its folder.
        wait: Until others have let go; else False comes back at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            held = True
        except BlockingIOError:
            held = False
        except (ImportError, OSError):
            held = True
        yield held
    finally:
        os.close(handle)


def step(name: str, path: Path) -> None:
    """A named moment of writing `path`.

    It does nothing; tests put a failure in its place and see what is left behind.
    """


def write_atomically(
    path: Path, content: bytes | Callable[[Path], None], *, flush: bool = True
) -> Path:
    """Write `content` to `path` so that the file appears whole or not at all; returns `path`.

    `content` is the bytes themselves, or a function that writes them to the temporary path it is
    given (a hidden name beside `path` with the same ending). Without `flush` the file outlives the
    process but perhaps not a power cut; `flush_files` makes up for it.
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(6)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        step("begin", path)
        _write_halves(temporary, content) if isinstance(content, bytes) else content(temporary)
        step("written", path)
        if flush:
            _flush(temporary, os.O_RDWR)
            step("flushed", path)
        os.replace(temporary, path)
        step("renamed", path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        if isinstance(error, MemoryError):
            raise no_memory(path) from error
        raise
    if flush:
        with suppress(OSError):  # some file systems cannot flush a folder
            _flush(path.parent, os.O_RDONLY)
    return path


def flush_files(paths: Iterable[Path]) -> None:
    """See to it that these files, and the folders they are in, outlive a power cut;
    many of them in one go.
    """
    present = [path for path in paths if path.exists()]
    if len(present) > MANY and _flush_disk(present[0].parent):
        return
    for path in present:
        try:
            _flush(path, os.O_RDWR)
        except OSError as error:
            raise unwritable(path, error) from error
    for folder in sorted({path.parent for path in present}):
        with suppress(OSError):
            _flush(folder, os.O_RDONLY)


def is_temporary(path: Path) -> bool:
    """Whether a file's name is one that `write_atomically` uses before a file is whole."""
    return re.fullmatch(r"\..+-[0-9a-f]{12}(\.[^.]*)?", path.name) is not None


def sweep(*folders: Path) -> None:
    """Remove what a killed process has left half-written in these folders."""
    for folder in folders:
        for path in folder.glob(".*-*"):
            if is_temporary(path) and not path.is_dir():
                path.unlink(missing_ok=True)


def make_folder(path: Path) -> Path:
    """`path` as an existing folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def _write_halves(path: Path, content: bytes) -> None:
    """In two writes, so that a failure can be put between them."""
    with open(path, "wb", buffering=2**16) as file:
        file.write(memoryview(content)[: len(content) // 2])
        file.flush()
        step("half", path)
        file.write(memoryview(content)[len(content) // 2 :])


def _flush_disk(folder: Path) -> bool:
    """Write out everything on the disk that `folder` is on, in one call,
    if the system offers one.
    """
    import ctypes

    sync = getattr(ctypes.CDLL(None), "syncfs", None) if os.name == "posix" else None
    if sync is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        return bool(sync(handle) == 0)
    finally:
        os.close(handle)


def _flush(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def no_memory(path: Path) -> Problem:
    return Problem(
        f"the memory ran out while {path} was written.",
        "Shards that were finished are stored.",
        fix="fewer workers or a smaller batch_size, then go on",
        code=INTERNAL,
    )


def unwritable(path: Path, error: OSError) -> Problem:
    return Problem(
        f"cannot write {path}: {error.strerror or error}.",
        "Nothing was left behind under that name.",
        fix=(
            "free some space, or choose a writable folder (--out DIR for runs, HARDCASE_CACHE=DIR"
            " for the cache)"
        ),
    )


def free(base: Path) -> Path:
    """`base`, or the first of ``base-2``, ``base-3`` ... that does not exist."""
    if not base.exists():
        return base
    return next(path for i in count(2) if not (path := base.with_name(f"{base.name}-{i}")).exists())
