"""One run folder, held open: nothing is written through a link, nor into a folder that has taken
its place.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from hardcase import cache
from hardcase.cache import no_memory, unwritable
from hardcase.errors import Problem

HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether the system can open files relative to a folder that is held open."""
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags to open a file that may be a link or a pipe: the one fails, the other does not wait."""
FOLDERS = ("findings", "verdicts", "state")
"""The folders inside a run folder."""
SMALL = 2**25
"""Bytes, at most, of a file that says something of a run."""
LARGE = 2**31
"""Bytes, at most, of a file that holds what was found and is read whole."""
PIECE = 2**20
"""Bytes that are read at a time where a file is only compared with its checksum."""
_Place = tuple[int, int]


class Directory:
    """A folder and those inside it, each opened once, when it is first written to.

    Before every write it is seen whether the folder at the path is still the one that was opened;
    if it was moved,
    deleted or exchanged, writing stops.

    Args:
        path: The folder; the user named it, so it may itself be a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[str, tuple[int, _Place]] = {}

    def write(self, name: str, data: bytes, *, flush: bool = True) -> None:
        """Put `data` under `name` so that the file appears whole or not at all; in two writes, so
        that a failure can be put between them.
        """
        with self.writing(name, flush=flush) as file:
            file.write(memoryview(data)[: len(data) // 2])
            file.flush()
            cache.step("half", self.path / name)
            file.write(memoryview(data)[len(data) // 2 :])

    @contextmanager
    def writing(self, name: str, *, flush: bool = True) -> Iterator[BinaryIO]:
        """A file to write to that appears under `name` at the end, or not at all."""
        path = self.path / name
        if not HANDLES:
            whole = io.BytesIO()
            yield whole
            cache.write_atomically(path, whole.getvalue(), flush=flush)
            return
        temporary = f".{path.stem}-{secrets.token_hex(6)}{path.suffix}"
        folder: int | None = None
        try:
            folder = self._handle(str(Path(name).parent))
            cache.step("begin", path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW
            handle = os.open(temporary, flags, 0o644, dir_fd=folder)
            with open(handle, "wb", buffering=2**16) as file:
                yield file
                file.flush()
                cache.step("written", path)
                if flush:
                    os.fsync(handle)
                    cache.step("flushed", path)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            cache.step("renamed", path)
            if flush:
                with suppress(OSError):  # some file systems cannot flush a folder
                    os.fsync(folder)
        except BaseException as error:
            if folder is not None:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
            if isinstance(error, OSError):
                raise unwritable(path, error) from error
            if isinstance(error, MemoryError):
                raise no_memory(path) from error
            raise

    def appending(self, name: str) -> int:
        """A handle to append to a file, which is made if it is missing; it must be a plain file."""
        path = self.path / name
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        if not HANDLES:
            return os.open(path, flags, 0o644)
        handle = os.open(
            path.name, flags | NOFOLLOW, 0o644, dir_fd=self._handle(str(Path(name).parent))
        )
        return plain(handle, path)

    def hold(self, *inner: str) -> None:
        """Open the folder, and those inside it, now: what takes their place later is not written
        to.
        """
        if HANDLES:
            for name in (".", *inner):
                self._handle(name)

    def _handle(self, inner: str) -> int:
        """The open folder called `inner`, if it is still where it was."""
        if inner == ".":
            return self._known(".", None)
        return self._known(inner, self._known(".", None))

    def _known(self, name: str, parent: int | None) -> int:
        path = self.path / name
        if name not in self._open:
            with suppress(FileExistsError):
                path.mkdir(parents=True) if parent is None else os.mkdir(name, dir_fd=parent)
            flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
            if parent is None:
                handle = os.open(self.path, flags)
            else:
                handle = os.open(name, flags | NOFOLLOW, dir_fd=parent)
            self._open[name] = (handle, _place(os.fstat(handle)))
            return handle
        handle, place = self._open[name]
        try:
            now = os.stat(self.path) if parent is None else os.lstat(path)
        except OSError:
            raise _moved(path) from None
        if _place(now) != place:
            raise _moved(path)
        return handle

    def close(self) -> None:
        """Let go of the folder; the next write opens it anew."""
        held = list(self._open.values())
        self._open.clear()
        for handle, _ in held:
            with suppress(OSError):
                os.close(handle)

    def __del__(self) -> None:
        self.close()


def plain(handle: int, path: Path) -> int:
    """`handle`, if it is open on a plain file with no other name; else it is closed, and the
    problem told.
    """
    found = os.fstat(handle)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return handle
    os.close(handle)
    raise Problem(
        f"{path} is not a plain file of this folder.", "Nothing is written through links or pipes."
    )


@contextmanager
def opened(path: Path, *, most: int = SMALL) -> Iterator[BinaryIO]:
    """A file of a run folder to read: a plain file, no link, no pipe, not larger than `most`
    bytes.
    """
    handle = os.open(path, os.O_RDONLY | NOFOLLOW)
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


def checksum(pieces: Iterable[bytes]) -> tuple[int, int]:
    """Size and checksum of what comes in pieces."""
    size = check = 0
    for piece in pieces:
        size += len(piece)
        check = crc32(piece, check)
    return size, check


def in_pieces(file: BinaryIO) -> Iterator[bytes]:
    """The rest of a file, never more than a little of it in memory."""
    while piece := file.read(PIECE):
        yield piece


def refuse_links(folder: Path, names: tuple[str, ...]) -> None:
    """Raise if one of the folders inside is a link: what is written there would land elsewhere."""
    for name in names:
        if (folder / name).is_symlink():
            raise Problem(
                f"{folder / name} is a link.", "Nothing is written or renamed through links."
            )


def _place(found: os.stat_result) -> _Place:
    return found.st_dev, found.st_ino


def _moved(path: Path) -> Problem:
    return Problem(
        f"{path} was moved, deleted or exchanged while the run was writing to it.",
        "The search has stopped; what was stored before is in the folder that was moved.",
        fix="hardcase resume with the folder's new place",
    )
