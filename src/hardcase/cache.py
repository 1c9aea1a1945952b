"""Where downloaded data and trained networks live, and how a file is written so that nobody sees half of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hardcase.errors import Problem


def cache_folder() -> Path:
    """The folder named by ``HARDCASE_CACHE``, else the platform's cache folder of the user. It need not exist yet."""
    named = os.environ.get("HARDCASE_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("hardcase"))


def write_atomically(path: Path, content: bytes | Callable[[Path], None]) -> Path:
    """Write `content` to `path` so that the file appears whole or not at all; returns `path`.

    `content` is the bytes themselves, or a function that writes them to the temporary path it is given
    (a hidden name beside `path` with the same ending).
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(6)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content) if isinstance(content, bytes) else content(temporary)
        _flush(temporary, os.O_RDWR)
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot flush a folder
        _flush(path.parent, os.O_RDONLY)
    return path


def make_folder(path: Path) -> Path:
    """`path` as an existing folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


def _flush(path: Path, mode: int) -> None:
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _unwritable(path: Path, error: OSError) -> Problem:
    return Problem(
        f"cannot write {path}: {error.strerror or error}.",
        "Nothing was left behind under that name.",
        fix="free some space, or choose a writable folder (--out DIR for runs, HARDCASE_CACHE=DIR for the cache)",
    )
