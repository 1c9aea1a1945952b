"""Worker processes of this machine."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from hardcase.campaign import Campaign, Counts
from hardcase.distribute.driving import OFTEN, Lost
from hardcase.distribute.record import Outcome, Source, Task
from hardcase.distribute.working import run_task
from hardcase.errors import Problem
from hardcase.memory import keep_freed
from hardcase.types import Guide

Handle = Future[Outcome]
ATOMIC = 4000
"""Bytes that a pipe takes whole or not at all; more is not sent, so that a worker's death cannot leave half a message."""


class Processes:
    """So many processes, each with its own campaign built from `source`. When one dies, all are started anew."""

    def __init__(self, source: Source, workers: int) -> None:
        self.source, self.workers, self.slots = _pickled(source), workers, workers + 1
        self.folder = tempfile.TemporaryDirectory(prefix="hardcase-")
        self.guides: Path | None = None
        self.rounds = 0
        self.latest: dict[int, Counts] = {}
        self._start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and not issubclass(kind, Exception):  # an interrupt: unfinished shards are given up at once
            for process in list((self.pool._processes or {}).values()):
                process.kill()
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.folder.cleanup()

    def begin(self, guides: Sequence[Guide]) -> None:
        """Guides are written once a round, and read once by each worker that takes part in it."""
        self.rounds += 1
        if guides:
            self.guides = Path(self.folder.name) / f"guides-{self.rounds}.bin"
            self.guides.write_bytes(pickle.dumps(tuple(guides)))

    def submit(self, task: Task) -> Handle:
        content = pickle.dumps(task)  # as bytes: tensors would go through shared memory, of which there may be little
        with _undisturbed():
            try:
                return self.pool.submit(_work, content, self.guides)
            except BrokenProcessPool:
                self._start()
                return self.pool.submit(_work, content, self.guides)

    def wait(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        return list(wait(handles, seconds, FIRST_COMPLETED).done)

    def result(self, handle: Any) -> Outcome:
        try:
            outcome: Outcome = handle.result()
        except BrokenProcessPool as error:
            raise Lost("A worker process was killed.") from error
        self.latest.pop(outcome.number, None)
        return outcome

    def pulses(self) -> Mapping[int, Counts]:
        while not self.news.empty():
            number, rows = self.news.get()
            self.latest[number] = _counts(rows)
        return self.latest

    def _start(self) -> None:
        context = get_context("spawn")
        self.news: SimpleQueue[Any] = context.SimpleQueue()
        set_up = (self.source, self.workers, self.news)
        self.pool = ProcessPoolExecutor(self.workers, context, _set_up, set_up)
        self.latest.clear()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait. Processes that are started in here never hear of them, also before they can say that they do not want to."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _pickled(source: Source) -> bytes:
    try:
        return pickle.dumps(source)
    except Exception as error:  # whatever a user's object raises
        raise Problem(
            f"the campaign cannot be sent to worker processes: {type(error).__name__}: {error}",
            "The model, the method and the space must be made of importable classes.",
            fix="workers=1, or a configuration file that names them",
        ) from error


_campaign: Campaign | None = None
_news: SimpleQueue[Any] | None = None
_known: tuple[Path | None, tuple[Guide, ...]] = (None, ())


def _set_up(source: bytes, workers: int, news: SimpleQueue[Any]) -> None:
    """In a new worker process: the same arithmetic as everywhere, a fair share of the cores, the campaign built once."""
    global _campaign, _news
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach every process; the one that owns the folder decides
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    keep_freed()
    _campaign, _news = pickle.loads(source)(), news


def _end_with_parent() -> None:
    """A worker whose owner was killed has nobody to bring its shard to."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(content: bytes, guides: Path | None) -> Outcome:
    global _known
    assert _campaign is not None
    task: Task = pickle.loads(content)
    if guides != _known[0]:
        _known = (guides, pickle.loads(guides.read_bytes()) if guides else ())
    return run_task(_campaign, task, _known[1], _Telling(task.number))


class _Telling:
    """Tells the owner of the counts now and then."""

    def __init__(self, number: int) -> None:
        self.number, self.told = number, monotonic()

    def __call__(self, counts: Counts) -> None:
        if _news is None or monotonic() - self.told < OFTEN or 32 * len(counts.queries) > ATOMIC:
            return
        self.told = monotonic()
        with suppress(OSError):
            _news.put((self.number, rows_of(counts)))


def rows_of(counts: Counts) -> bytes:
    columns = (counts.queries, counts.gradients, counts.peer_queries, counts.failing)
    return torch.stack(columns).cpu().numpy().tobytes()


def _counts(rows: bytes) -> Counts:
    queries, gradients, peer_queries, failing = torch.frombuffer(bytearray(rows), dtype=torch.int64).reshape(4, -1)
    return Counts(queries, gradients, peer_queries, failing, torch.zeros_like(queries, dtype=torch.bool))
