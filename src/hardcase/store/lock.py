"""One writer a run folder: the lock goes with the process, however that ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hardcase.cache import make_folder, unwritable
from hardcase.errors import Problem

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only writer of `folder`, or say who is. The operating system frees the lock of a process that died."""
    make_folder(folder)
    try:
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise unwritable(folder / NAME, error) from error
    try:
        if not _take(handle):
            who = os.read(handle, 200).decode(errors="replace").strip()
            raise Problem(
                f"another process is writing to {folder}: {who or 'unknown'}.",
                "Two writers would search the same shards twice.",
                fix=f"wait for it, or stop it; hardcase status {folder} shows where it stands",
            )
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    """False if someone else has it. Where the platform or the file system knows no locks, users take care themselves."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True
