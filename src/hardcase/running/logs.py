"""A log beside the findings, for whoever comes back to a run after days."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

LARGEST = 1_000_000
"""Bytes after which the log is begun anew; the one before is kept."""

diary = logging.getLogger("hardcase.diary")
"""What belongs into the log but not on the screen."""
diary.propagate = False
diary.setLevel(logging.INFO)
diary.addHandler(logging.NullHandler())


class _Quiet(RotatingFileHandler):
    """A log that cannot be written must not disturb the search."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        pass


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """The diary, and whatever else hardcase logs, also goes to ``log.txt`` in `folder`."""
    handler = _Quiet(folder / "log.txt", maxBytes=LARGEST, backupCount=1, delay=True, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = (diary, logging.getLogger("hardcase"))
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()
