"""A disk with faults: what happens at every rename, at every flush and in the middle of every write."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hardcase.runs import files

_REPLACE, _FSYNC = os.replace, os.fsync
_WRITE_BYTES, _APPEND = Path.write_bytes, files.append_plain


def fault(step):
    """From now on `step(name, path)` is called at each such moment; whatever it raises is raised there."""

    def replace(old, new, **more):
        step("written", Path(new))
        _REPLACE(old, new, **more)
        step("renamed", Path(new))

    def fsync(handle):
        step("flush", _path(handle))
        _FSYNC(handle)

    def write_bytes(path, data):
        _WRITE_BYTES(path, data[: len(data) // 2])
        step("half", path)
        return _WRITE_BYTES(path, data)

    def append(path, data):
        _APPEND(path, data[:20])
        step("half", path)
        _APPEND(path, data[20:])

    _install(replace, fsync, write_bytes, append)


def whole():
    """From now on the disk has no faults."""
    _install(_REPLACE, _FSYNC, _WRITE_BYTES, _APPEND)


def _install(*functions):
    os.replace, os.fsync, Path.write_bytes, files.append_plain = functions


def _path(handle):
    return Path(os.readlink(f"/proc/self/fd/{handle}"))


def kind(path):
    """What a file is, whatever its number or its temporary name."""
    return re.split(r"-\w", path.name.lstrip("."))[0].split(".")[0]
