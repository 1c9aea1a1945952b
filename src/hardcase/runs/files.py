"""Files of a run folder: plain, of a bounded size; small ones are JSON with its own checksum."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from hardcase.cache import make_folder, turn, unwritable
from hardcase.environment import redacted
from hardcase.errors import Problem

__all__ = [
    *("FOLDERS", "LARGE", "LOCK", "append_plain", "checked_json", "file_size_and_crc", "locked"),
    *("opened", "read_checked_json", "read_json", "read_plain", "refuse_links", "require_plain"),
    *("size_and_crc", "storable"),
]

LOCK = ".lock"
FOLDERS = ("findings", "verdicts", "state")
"""The folders inside a run folder."""
SMALL = 2**25
"""Bytes, at most, of a file that says something of a run."""
LARGE = 2**31
"""Bytes, at most, of a file that holds what was found and is read whole."""
CHECK = "checksum"
DEEPEST = 40
"""Levels of objects and lists that a file of a run has at most."""
_PIECE = 2**20
_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""A link is not followed, a pipe not waited for."""


@contextmanager
def opened(path: Path, *, most: int = SMALL) -> Iterator[BinaryIO]:
    """A file of a run folder to read: a plain file, not larger than `most` bytes."""
    handle = os.open(path, os.O_RDONLY | _SAFE)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a plain file")
        if found.st_size > most:
            raise OSError(f"it has {found.st_size:,} bytes; at most {most:,} are read")
        yield file


def read_plain(path: Path, *, most: int = SMALL) -> bytes:
    """The content of a file of a run folder."""
    with opened(path, most=most) as file:
        return file.read()


def require_plain(path: Path) -> None:
    """Raise unless `path` is a plain file with no other name, or missing."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise Problem(
            f"{path} is not a plain file of this folder.",
            "Nothing is written through links or pipes.",
        )


def append_plain(path: Path, data: bytes) -> None:
    """Add `data` to the end of a file, which is made if it is missing."""
    require_plain(path)
    with path.open("ab") as file:
        file.write(data)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise if one of the folders inside is a link."""
    for name in names:
        if (folder / name).is_symlink():
            raise Problem(
                f"{folder / name} is a link.", "Nothing is written or renamed through links."
            )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`, or say who is."""
    make_folder(folder)
    path = folder / LOCK
    require_plain(path)
    refuse_links(folder, FOLDERS)
    with ExitStack() as stack:
        try:
            held = stack.enter_context(turn(path, wait=False))
        except OSError as error:
            raise unwritable(path, error) from error
        if not held:
            who = path.read_text(errors="replace")[:200].strip()
            raise Problem(
                f"another process is writing to {folder}: {who}.",
                "Two writers would search the same shards twice.",
                fix=f"wait for it, or stop it; hardcase status {folder} shows where it stands",
            )
        with suppress(OSError):  # a full disk: the lock holds all the same
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield


# --- checksums


def size_and_crc(data: bytes) -> list[int]:
    """Size and checksum of a file's content."""
    return [len(data), crc32(data)]


def file_size_and_crc(path: Path, size: int = LARGE) -> list[int] | None:
    """Size and checksum of a file of at most `size` bytes; None of any other."""
    check = 0
    try:
        with opened(path, most=size) as file:
            while piece := file.read(_PIECE):
                check = crc32(piece, check)
            return [file.tell(), check]
    except (OSError, ValueError):
        return None


def checked_json(content: Mapping[str, Any]) -> bytes:
    """`content` as readable JSON that carries its own checksum."""
    body = storable({name: value for name, value in content.items() if name != CHECK})
    return json.dumps({**body, CHECK: _sum(body)}, indent=2).encode()


def read_checked_json(data: bytes) -> tuple[Any, bool | None]:
    """What a file says, and whether its checksum is right; None if it has none."""
    content = read_json(data)
    if not isinstance(content, dict) or CHECK not in content:
        return content, None
    check = content.pop(CHECK)
    return content, check == _sum(content)


def _sum(body: Mapping[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def storable(value: Any) -> Any:
    """A tree of JSON as it may be stored: no secret in it, nothing where a number is none."""
    return json.loads(json.dumps(redacted(value)), parse_constant=lambda word: None)


def read_json(data: bytes) -> Any:
    """What JSON says, if it says each thing once, in numbers that are numbers, and not too deeply;
    else a `ValueError`.

    Example:
        >>> read_json(b'{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ValueError: it says something twice
    """
    content = json.loads(data, parse_constant=_refuse_constant, object_pairs_hook=_once)
    level = [content]
    for _ in range(DEEPEST):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return content
    raise ValueError("it is nested too deeply")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


def _refuse_constant(word: str) -> None:
    raise ValueError(f"it holds {word}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it says something twice")
    return found
