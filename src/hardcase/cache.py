"""The folder of cached data and networks, and writing of files that no reader sees half written."""

from __future__ import annotations

import os
import re
import secrets
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from hardcase.errors import INTERNAL, HardcaseError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.lib.npyio import NpzFile
    from pyarrow import parquet as pq

SPREAD = 100
"""Times their size to which compressed images may unfold."""
BATCH = 1024
"""Rows of a table that are unfolded at a time."""


def cache_folder() -> Path:
    """The folder named by ``HARDCASE_CACHE``, else ``hardcase`` in the user's cache folder."""
    named = os.environ.get("HARDCASE_CACHE")
    try:
        if named:
            return Path(named).expanduser().absolute()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hardcase"
    except RuntimeError as error:
        raise HardcaseError(
            "this user has no home folder to keep data and networks in.", fix="HARDCASE_CACHE=DIR"
        ) from error


def named_path(text: str) -> Path:
    """The path that a user's words name, ``~`` for their home."""
    try:
        path = Path(text).expanduser()
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise HardcaseError(f"{text[:80]!r} cannot be opened: {why}.") from error
    return regular(path)


def regular(path: Path) -> Path:
    """`path`, unless it is a pipe, a socket or a device, which could be waited for without end."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise HardcaseError(f"{path} is neither a file nor a folder.")
    return path


def unpacked(path: Path, least: int = 2**30) -> int:
    """Bytes, at most, to which a file may unfold: compressed data can stand for any number."""
    return SPREAD * path.stat().st_size + least


@contextmanager
def open_npz(path: Path) -> Iterator[NpzFile]:
    """The arrays of an npz file, each read at its first use; nothing is unpickled."""
    import numpy as np

    most = unpacked(regular(path))
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > most:
                raise ValueError(f"it unfolds to more than {most:,} bytes")
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        raise ValueError("it holds one bare array, no labels")
    with loaded as arrays:
        yield arrays


def parquet_groups(
    file: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str] | None, most: int
) -> Iterator[pa.Table]:
    """Row groups of a file, unless they unfold to more than `most` bytes: a small Parquet file can
    stand for more rows than any memory takes, by compression or by repetition.
    """
    import pyarrow as pa

    about = file.schema_arrow.metadata
    left = most
    for group in groups:
        row_group = file.metadata.row_group(group)
        pages = sum(
            row_group.column(i).total_uncompressed_size for i in range(row_group.num_columns)
        )
        if pages > left:
            raise ValueError(f"it unfolds to more than {most:,} bytes")
        parts = []
        for part in file.iter_batches(
            BATCH, row_groups=[group], columns=columns, use_threads=False
        ):
            parts.append(part)
            left -= part.nbytes
            if left < 0:
                raise ValueError(f"it unfolds to more than {most:,} bytes")
        if parts:
            yield pa.Table.from_batches(parts, parts[0].schema.with_metadata(about))
    if not file.metadata.num_rows:
        yield file.read(columns, use_threads=False)


@contextmanager
def turn(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path`, which the operating system frees when a process dies; without
    `wait`, False comes back at once where another process holds it.
    """
    from filelock import FileLock, Timeout  # comes with torch

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def write_atomically(
    path: Path, content: bytes | Callable[[Path], None], *, flush: bool = True
) -> Path:
    """Write `content` to `path` so that the file appears complete or not at all; returns `path`.

    Args:
        path: Its folder is created if it is missing.
        content: The bytes, or a function that writes them to a temporary path.
        flush: Whether the file must outlive a power cut; without it, it outlives the process.
    """
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(6)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content)
        if flush:
            _flush(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable(path, error) from error
        if isinstance(error, MemoryError):
            raise HardcaseError(
                f"the memory ran out while {path} was written.",
                "Shards that were finished are stored.",
                fix="fewer workers or a smaller batch_size, then go on",
                code=INTERNAL,
            ) from error
        raise
    if flush:
        with suppress(OSError):  # some file systems cannot flush a folder
            _flush(path.parent)
    return path


def flush_files(paths: Iterable[Path]) -> None:
    """See to it that these files, and the folders they are in, outlive a power cut."""
    present = [path for path in paths if path.exists()]
    for path in present:
        try:
            _flush(path)
        except OSError as error:
            raise unwritable(path, error) from error
    for folder in {path.parent for path in present}:
        with suppress(OSError):
            _flush(folder)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_temporary(path: Path) -> bool:
    """Whether a file has a temporary name of `write_atomically`."""
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


def free(base: Path) -> Path:
    """`base`, or the first of ``base-2``, ``base-3`` ... that does not exist."""
    others = (base.with_name(f"{base.name}-{i}") for i in count(2))
    return next(path for path in chain([base], others) if not path.exists())


def unwritable(path: Path, error: OSError) -> HardcaseError:
    """The problem of a file that cannot be written."""
    return HardcaseError(
        f"cannot write {path}: {error.strerror or error}.",
        "Nothing was left behind under that name.",
        fix="free some space, or choose a writable folder (--out DIR for runs, HARDCASE_CACHE=DIR"
        " for the cache)",
    )
