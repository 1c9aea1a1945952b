"""The shards of a campaign, searched here, in worker processes or on a cluster."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.evaluator import Ask
from hardcase.campaign.executor import Executor, SerialExecutor, executor_of
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, Counts, Limits, Shard
from hardcase.data.files import ImageSet
from hardcase.environment import keep_freed
from hardcase.errors import (
    INTERNAL,
    USAGE,
    HardcaseError,
    Raised,
    end_lost_calls,
    guarded,
    user_line,
)
from hardcase.runs.folder import Packed, pack_deltas
from hardcase.runs.tables import (
    FINDINGS,
    SPENDING,
    SPENT,
    findings_table,
    summarise,
    table,
    to_parquet,
)
from hardcase.runs.verify import Canaries, networks_of
from hardcase.types import Guide, Images

OFTEN = 0.25
"""Seconds between two looks at what the workers do."""
PER_CORE = 4
"""Worker processes, at most, for each core of the machine."""
PATIENCE = 3
"""How often in a row, for each worker, a shard may be lost before the run gives up."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a process sees, and in which order."""
ATOMIC = 4000
"""Bytes that a pipe takes entirely or not at all: a worker's death leaves no half message."""

_log = logging.getLogger(__name__)

OnStep = Callable[[Counts], None]
Source = Callable[[], Any]
"""Builds the ingredients of a phase, in whatever process needs them."""
Stopped = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a shard: which seeds, their budget, when to stop (monotonic seconds)."""

    number: int
    first: int
    images: Images
    limits: Limits
    deadline: float | None = None
    canaries: Canaries | None = None

    def work(
        self,
        campaign: Campaign,
        guides: Sequence[Guide] = (),
        on_step: OnStep = lambda counts: None,
    ) -> ShardOutcome:
        """Search this shard in a worker, in its main thread, and pack its result."""
        alone = SerialExecutor(executor_of(campaign).ask)
        return next(search_here(campaign, on_step, lambda: False, [self], guides, executor=alone))

    def is_late(self) -> bool:
        """Whether there is no time for another step."""
        return self.deadline is not None and monotonic() >= self.deadline


@runtime_checkable
class WorkItem(Protocol):
    """A shard of any phase: it is worked on with the ingredients of its phase."""

    @property
    def number(self) -> int: ...

    @property
    def deadline(self) -> float | None: ...

    def work(self, ingredients: Any, guides: Sequence[Guide], on_step: OnStep) -> Any: ...


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """The seeds at `rows` of `images`, in shards; a task is built on demand."""

    images: ImageSet
    rows: Int[Tensor, " u"]
    limits: Limits
    shard: int
    canaries: Canaries | None = None

    def __len__(self) -> int:
        return -(-len(self.rows) // self.shard)

    def __getitem__(self, number: Any) -> Any:
        part = slice(number * self.shard, min((number + 1) * self.shard, len(self.rows)))
        if not 0 <= part.start < len(self.rows):
            raise IndexError(number)
        images = self.images.take(self.rows[part]).images()
        limits = self.limits.take(part)
        return Task(number, part.start, images, limits, canaries=self.canaries)


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """A finished shard on its way to the store, and its counts."""

    number: int
    packed: Packed
    summary: Mapping[str, Any]


Round = Callable[[Iterable[Task], tuple[Guide, ...]], Iterator[ShardOutcome]]
"""Searches the tasks of a round, all from the same guides."""


# --- one shard, wherever it is searched


@dataclass(frozen=True, slots=True)
class SearchedTask:
    """A shard that was searched, and what that took."""

    task: Task
    shard: Shard
    spent: dict[str, Any]


def search_here(
    campaign: Campaign,
    on_step: OnStep,
    stopped: Stopped,
    todo: Iterable[Task],
    guides: Sequence[Guide],
    *,
    executor: Executor | None = None,
) -> Iterator[ShardOutcome]:
    """Shards searched in this process, from guides as they were when the round began."""
    executor = executor or executor_of(campaign)
    under_way = dict[int, Counts]()
    ended = 0.0

    def stop(task: Task, counts: Counts) -> bool:
        under_way[task.number] = counts
        if task.number == next(iter(under_way)):
            on_step(counts if len(under_way) == 1 else Counts.join(list(under_way.values())))
        return task.is_late()

    def search(task: Task, ask: Ask) -> SearchedTask:
        nonlocal ended
        with _watched(campaign, task) as spent:
            shard = run_shard(
                campaign,
                task.images,
                task.limits,
                first=task.first,
                guides=guides,
                stop=partial(stop, task),
                ask=ask,
            )
        under_way.pop(task.number, None)
        now = monotonic()  # of shards side by side each has its own part of the time
        spent["seconds"] = round(min(spent["seconds"], now - ended), 4)
        ended = now
        return SearchedTask(task, shard, spent)

    tasks = takewhile(lambda _: not stopped(), todo)
    searched = executor.shards((partial(search, task) for task in tasks), guides)
    checked = (_with_canaries(campaign, one) for one in searched)
    yield from executor.packed(partial(_packed, campaign), checked)


@cache
def _nothing_found() -> tuple[Any, bytes]:
    """The table of a shard without findings, which are many where a model rarely fails."""
    empty = table(dict.fromkeys(FINDINGS, ()), FINDINGS)
    return empty, to_parquet(empty)


def _packed(campaign: Campaign, searched: SearchedTask) -> ShardOutcome:
    """A searched shard as the files of its part."""
    task = searched.task
    shard = searched.shard
    rows = shard.findings.seed.cpu() - task.first
    method = campaign.method
    found, content = _nothing_found()
    if len(rows):
        found = findings_table(
            shard.findings,
            task.images.x[rows],
            [task.images.id[i] for i in rows.tolist()],
            method=method.name,
            oracle=method.oracle.kind,
            witnesses=len(campaign.witnesses),
        )
        content = to_parquet(found)
    counts = shard.counts
    words = {(False, False): "done", (False, True): "out of time"}
    fates = zip(counts.lost.tolist(), shard.unfinished.tolist())
    columns = {
        "id": list(task.images.id),
        "status": [words.get(fate, "skipped: reconstruction") for fate in fates],
        "evaluated": counts.queries,
        **{name: getattr(counts, name) for name in ("failing", *SPENDING)},
    }
    rows_spent = table(columns, SPENT)
    packed = Packed(content, to_parquet(rows_spent), pack_deltas(shard.deltas))
    summary = {**summarise(found, rows_spent), **searched.spent}
    if shard.dropped:
        summary["dropped"] = shard.dropped
    return ShardOutcome(task.number, packed, summary)


def _service(campaign: Campaign) -> Counter[str]:
    """What the subject and its peers count themselves: calls, retries, answers from a cache."""
    tallies = (getattr(model, "tally", None) for model in (campaign.subject, *campaign.peers))
    return sum((Counter(tally) for tally in tallies if tally), Counter[str]())


@contextmanager
def _watched(campaign: Campaign, task: Task) -> Iterator[dict[str, Any]]:
    """Yields what will say how long a search took, and what it took to get answers; what it raises
    becomes a problem that can travel between processes.
    """
    spent: dict[str, Any] = {}
    begun = monotonic()
    before = _service(campaign)
    try:
        yield spent
    except Raised as raised:
        raise _failure(task, raised.__cause__ or raised, raised.what) from raised
    except (HardcaseError, MemoryError):
        raise
    except Exception as error:
        raise _failure(task, error) from error
    spent["seconds"] = round(monotonic() - begun, 4)
    spent["service"] = dict(_service(campaign) - before)


def _with_canaries(campaign: Campaign, searched: SearchedTask) -> SearchedTask:
    """The same, after the networks classified the canaries, which count separately."""
    task = searched.task
    if task.canaries is not None:
        with _watched(campaign, task), campaign.arithmetic():
            queries = task.canaries.check(networks_of(campaign), task.images, task.number)
        searched.spent["canaries"] = queries
    return searched


def _failure(task: Task, error: BaseException, by_user: str = "") -> HardcaseError:
    """An exception as a problem, with what user code did."""
    what = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    stored = "Finished shards are stored; this one is searched again on resume. The log has more."
    if "CUDA" in what or "Accelerator" in what:
        message = f"the GPU failed in shard {task.number}: {what}"
        return HardcaseError(message, stored, fix='device = "cpu" in config.toml', code=INTERNAL)
    if by_user:
        message = f"{by_user.removesuffix('.')}, in shard {task.number}."
        return HardcaseError(message, stored, fix="mend the model", code=USAGE)
    place = user_line(error)
    if place:
        return HardcaseError(
            f"shard {task.number} could not be searched: {what}", f"in {place}", stored
        )
    return HardcaseError(
        f"shard {task.number} could not be searched: {what}", stored, code=INTERNAL
    )


# --- one loop that keeps workers busy, whatever they are


class WorkerLost(Exception):  # noqa: N818 - what happened, not an error of ours
    """The worker of a shard is gone."""


@runtime_checkable
class WorkerPool(Protocol):
    """Where shards are worked on: processes of this machine, or a cluster.

    It takes `slots` shards at a time, all of a round from the guides that it began with; `result`
    raises `WorkerLost` if a worker died; `live_counts` are those of shards being searched.
    """

    @property
    def slots(self) -> int: ...

    def begin(self, guides: Sequence[Guide]) -> None: ...

    def submit(self, task: Any) -> Hashable: ...

    def wait(self, handles: Sequence[Hashable], seconds: float) -> Sequence[Hashable]: ...

    def result(self, handle: Hashable) -> Any: ...

    def live_counts(self) -> Mapping[int, Counts]: ...


def run_shards(
    executor: WorkerPool,
    on_step: OnStep,
    stopped: Stopped,
    todo: Iterable[Any],
    guides: tuple[Guide, ...],
) -> Iterator[Any]:
    """The outcomes of `todo` (each a `WorkItem`) in the order they finish; lost shards are run
    again, and an error is raised when the shards that are under way are home.
    """
    executor.begin(guides)
    fresh = iter(todo)
    lost = deque[Any]()
    running = dict[Hashable, Any]()
    error: Exception | None = None
    losses = 0
    while True:
        while error is None and not stopped() and len(running) < executor.slots:
            new = lost.popleft() if lost else next(fresh, None)
            if new is None:
                break
            running[executor.submit(new)] = new
        if not running:
            break
        for handle in executor.wait(list(running), OFTEN):
            task = running.pop(handle)
            try:
                outcome = executor.result(handle)
            except WorkerLost as loss:
                losses += 1
                lost.append(task)
                if losses > PATIENCE * executor.slots:
                    error = HardcaseError(
                        "worker processes end before their shards are finished, again and again;"
                        f" the last one had shard {task.number}.",
                        f"Most often the memory runs out. Finished shards are stored. {loss}",
                        fix="fewer workers, or a smaller batch_size, in config.toml",
                        code=INTERNAL,
                    )
            except Exception as problem:
                error = error or problem
            else:
                losses = 0
                yield outcome
        under_way = {task.number for task in running.values()}
        counts = [count for number, count in executor.live_counts().items() if number in under_way]
        if counts:
            on_step(Counts.join(counts))
    if error is not None:
        raise error


# --- worker processes of this machine


class Processes:
    """Processes that each build the campaign, over `devices`; when any dies, all start anew."""

    def __init__(self, source: Source, workers: int, devices: Sequence[str] = ()) -> None:
        try:
            self.source = pickle.dumps(source)
        except HardcaseError:  # told already: a model that cannot be copied
            raise
        except Exception as error:  # whatever a user's object raises
            raise HardcaseError(
                f"the run cannot be sent to worker processes: {type(error).__name__}: {error}",
                "The model, the method and the space must be made of importable classes.",
                fix="workers=1, or a configuration file that names them",
            ) from error
        self.workers = bounded_workers(workers)
        self.devices = tuple(devices)
        self.slots = self.workers + 1
        self.folder = tempfile.TemporaryDirectory(prefix="hardcase-")
        self.guides: Path | None = None
        self.rounds = 0
        self.latest: dict[int, Counts] = {}
        self._start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # an interrupt: unfinished shards are given up at once
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

    def submit(self, task: Any) -> Future[Any]:
        # as bytes: tensors would go through shared memory, of which there may be little
        content = pickle.dumps(task)
        with _signals_wait():
            try:
                return self.pool.submit(_work, content, self.guides)
            except BrokenProcessPool:
                self._start()
                return self.pool.submit(_work, content, self.guides)

    def wait(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        return list(wait(handles, seconds, FIRST_COMPLETED).done)

    def result(self, handle: Any) -> Any:
        try:
            outcome = handle.result()
        except BrokenProcessPool as error:
            raise WorkerLost("A worker process was killed.") from error
        self.latest.pop(outcome.number, None)
        return outcome

    def live_counts(self) -> Mapping[int, Counts]:
        while not self.news.empty():
            number, rows = self.news.get()
            names = (*SPENDING, "failing")
            columns = torch.frombuffer(bytearray(rows), dtype=torch.int64).reshape(len(names), -1)
            lost = torch.zeros_like(columns[0], dtype=torch.bool)
            self.latest[number] = Counts(**dict(zip(names, columns)), lost=lost)
        return self.latest

    def _start(self) -> None:
        context = get_context("spawn")
        self.news: SimpleQueue[Any] = context.SimpleQueue()
        places: SimpleQueue[str] = context.SimpleQueue()
        for number in range(self.workers):
            places.put(self.devices[number % len(self.devices)] if self.devices else "")
        set_up = (self.source, self.workers, self.news, places)
        self.pool = ProcessPoolExecutor(self.workers, context, _set_up, set_up)
        self.latest.clear()


def bounded_workers(wanted: int) -> int:
    """Return how many processes are started: at most `PER_CORE` per core, since a pool of any size
    waits for all of its processes when it ends.
    """
    most = PER_CORE * (os.cpu_count() or 1)
    if wanted > most:
        _log.warning("%d workers are too many for this machine: %d are started", wanted, most)
    return min(wanted, most)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Hold signals back: processes that are started in here never hear of them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def gpus(count: int) -> tuple[str, ...]:
    """The first GPUs that this process may use, named as in ``CUDA_VISIBLE_DEVICES``."""
    named = [word.strip() for word in os.environ.get(VISIBLE, "").split(",") if word.strip()]
    return tuple(named or map(str, range(count)))[:count]


# What a worker process knows: the ingredients of its phase, or why there are none; where its counts
# go; the guides of the round, with the file they were read from.
_ingredients: Any = None
_unbuilt: HardcaseError | None = None
_news: SimpleQueue[Any] | None = None
_known: tuple[Path | None, tuple[Guide, ...]] = (None, ())


def _set_up(source: bytes, workers: int, news: SimpleQueue[Any], places: SimpleQueue[str]) -> None:
    """In a new worker process: choose its GPU and its share of the cores, build the campaign."""
    global _ingredients, _news, _unbuilt
    place = places.get()
    if place:
        os.environ[VISIBLE] = place  # before anything is on a GPU here
    # signals reach every process; the one that owns the folder decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    keep_freed()
    end_lost_calls(True)
    _news = news
    try:
        with guarded("building the run in a worker process"):
            _ingredients = pickle.loads(source)()
    except (
        HardcaseError
    ) as problem:  # told by the first task: an initializer could only break the pool
        _unbuilt = problem


def _end_with_parent() -> None:
    """A worker whose owner was killed has nobody to bring its shard to."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(content: bytes, guides: Path | None) -> Any:
    global _known
    if _unbuilt is not None:
        raise _unbuilt
    assert _ingredients is not None
    task: WorkItem = pickle.loads(content)
    if guides != _known[0]:
        _known = (guides, pickle.loads(guides.read_bytes()) if guides else ())
    sent = monotonic()

    def on_step(counts: Counts) -> None:
        """Tell the owner of the counts now and then."""
        nonlocal sent
        columns = [getattr(counts, name) for name in (*SPENDING, "failing")]
        if monotonic() - sent >= OFTEN and 8 * len(columns) * len(columns[0]) <= ATOMIC:
            sent = monotonic()
            assert _news is not None
            with suppress(OSError):
                _news.put((task.number, torch.stack(columns).cpu().numpy().tobytes()))

    return task.work(_ingredients, _known[1], on_step)
