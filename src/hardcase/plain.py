"""Reading of foreign files: plain files only, with a check of the size before they are read.

A named pipe would be waited for, a device read without end, and a short file can hold a table that
nests deeper than a parser goes.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, BinaryIO

from hardcase.errors import HardcaseError

SMALL = 2**25
"""Bytes, at most, of a text file that is read at once."""
DEEPEST = 40
"""Levels of tables and lists inside each other, at most."""
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def opened(path: Path, *, most: int = SMALL, links: bool = False) -> Iterator[BinaryIO]:
    """Open a plain file of at most `most` bytes to read.

    Args:
        path: The file.
        most: Its largest size.
        links: Whether `path` may be a link to such a file, as where a user named it.

    Raises:
        OSError: If it is no plain file, too large, or cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | _NO_WAITING | (0 if links else _NO_LINKS))
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a plain file")
        if status.st_size > most:
            raise OSError(f"it has {status.st_size:,} bytes; at most {most:,} are read")
        yield file


def read_plain(path: Path, *, most: int = SMALL, links: bool = False) -> bytes:
    """Return the content of a plain file; see `opened`."""
    with opened(path, most=most, links=links) as file:
        return file.read()


def read_text(path: Path, *, most: int = SMALL) -> str:
    """Return the text of a file that a user named.

    Raises:
        HardcaseError: If it is no plain file of text, or larger than `most` bytes.
    """
    try:
        return read_plain(path, most=most, links=True).decode("utf-8")
    except OSError as error:
        raise HardcaseError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise HardcaseError(f"{path} is no text: {error}.") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        ValueError: If it is no TOML, or nests deeper than `DEEPEST` levels.
    """
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[Any] = [values]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [child for each in inner for child in each if isinstance(child, dict | list)]
        if not level:
            return values
    raise ValueError("it is nested too deeply")


def source_files(path: Path) -> list[Path]:
    """A Python file and the user's modules that it imports; nothing is run."""
    first = path.absolute()
    if not first.is_file():
        return []
    installed = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    elsewhere = re.compile(r"(site|dist)-packages|\.zip$|lib-dynload")
    places = [str(first.parent)]
    places += [
        place for place in sys.path if place not in installed and not elsewhere.search(place)
    ]
    finder = ModuleFinder(places, excludes=["hardcase", *sys.stdlib_module_names])
    try:
        finder.run_script(str(first))
        named = (getattr(place, "__file__", None) for place in finder.modules.values())
        sources = {Path(name).absolute() for name in named if name and name.endswith(".py")}
    except (SyntaxError, ValueError, RecursionError, OSError):  # then any file beside it may count
        sources = {file.absolute() for file in first.parent.rglob("*.py") if file.is_file()}
    return [first, *sorted(sources - {first})]
