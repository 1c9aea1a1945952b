"""The judge of photographs, made while the search runs whose findings it will judge.

A process of the lowest priority reads the run folder and fills the judge's cache. It fetches
nothing, writes nothing into the run and ends with the search: features that it has read by then are
kept, so that whoever makes the judge later goes on from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hardcase.errors import Problem

NICENESS = 19
"""The lowest priority: the search keeps its cores."""
LATER = 10.0
"""Seconds of a search before it begins: no judge is made in less."""


@contextmanager
def judge_in_background(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Make the judge by features of the run in `folder` while this lasts.

    Args:
        folder: Where the run goes; it need not be there yet.
        say: Told if something unforeseen happened; nothing is raised.
    """
    over = threading.Event()
    messages: list[str] = []
    thread = threading.Thread(target=_run, args=(folder, over, messages), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for message in messages:
            say(message)


def _run(folder: Path, over: threading.Event, messages: list[str]) -> None:
    while not over.wait(LATER):
        if (folder / "run.json").is_file():
            break
    if over.is_set():
        return
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", __name__, str(folder), str(NICENESS)]
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            )
        except OSError as error:
            messages.append(f"the judge was not made in the background: {error}")
            return
        while child.poll() is None and not over.wait(0.2):
            pass
        stopped = child.poll() is None
        child.kill()
        child.communicate()
        if child.returncode and not stopped:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
            messages.append(f"the judge was not made in the background: {lines[-1]}")


def _end_with_parent() -> None:
    """Nobody writes to the pipe: it ends when the process that holds it does."""
    os.read(sys.stdin.fileno(), 1)  # without a buffer, whose lock would outlive the interpreter
    os._exit(1)


def main(folder: str, niceness: int) -> None:
    """Fill the cache with the judge of a run."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(niceness)
    from hardcase.errors import guard_code
    from hardcase.judges.held_out import for_run
    from hardcase.runs.identity import consent_of
    from hardcase.runs.results import Run

    guard_code(consent_of(()))
    with suppress(Problem):  # whoever judges the run meets it again, and says so
        for_run(Run(folder), offline=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
