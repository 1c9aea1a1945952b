"""From a campaign to a run folder: shards and rounds, here or in several processes.

The findings are the same.
"""

from __future__ import annotations

import copy
import math
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
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
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

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, Counts, Limits, Shard
from hardcase.data.streams import ImageSet
from hardcase.environment import keep_freed
from hardcase.errors import INTERNAL, USAGE, Problem
from hardcase.runs.folder import Packed, Store, pack_deltas
from hardcase.runs.progress import Progress
from hardcase.runs.tables import (
    SPENDING,
    findings_table,
    spent_table,
    summarise,
    to_parquet,
)
from hardcase.tensors import chunks, steady
from hardcase.types import Guide, Images, State
from hardcase.usercode import Raised, guarded

# What travels between the owner of a run folder and those who search its shards.


@dataclass(frozen=True, slots=True)
class Task:
    """One shard's work: which seeds, what they may cost, when to stop (monotonic seconds)."""

    number: int
    first: int
    images: Images
    limits: Limits
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """A finished shard on its way to the store, and its counts."""

    number: int
    packed: Packed
    summary: Mapping[str, Any]


Watch = Callable[[Progress], None]
Pulse = Callable[[Counts], None]
Source = Callable[[], Campaign]
Stopped = Callable[[], bool]


# One loop that keeps workers busy, whatever they are: it submits, collects, runs lost shards again,
# and stops.

OFTEN = 0.25
"""Seconds between two looks at what the workers do."""
PATIENCE = 3
"""How often in a row, for each worker, a shard may be lost before the run gives up."""


class Lost(Exception):  # noqa: N818 - what happened, not an error of ours
    """The worker of a shard is gone."""


@runtime_checkable
class Hands(Protocol):
    """Where shards are worked on: processes of this machine, or a cluster."""

    @property
    def slots(self) -> int:
        """How many shards are given out at a time."""
        ...

    def begin(self, guides: Sequence[Guide]) -> None:
        """A round begins, and its shards start from these guides."""
        ...

    def submit(self, task: Task) -> Hashable: ...

    def wait(self, handles: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """Those that are finished, waiting for the first of them at most so long."""
        ...

    def result(self, handle: Hashable) -> ShardOutcome:
        """What a finished one brought; raises `Lost` if its worker died."""
        ...

    def pulses(self) -> Mapping[int, Counts]:
        """The latest counts of shards being searched, as far as they are known."""
        ...


def drive(
    hands: Hands, todo: Iterable[Task], stopped: Stopped, pulse: Pulse
) -> Iterator[ShardOutcome]:
    """The outcomes of `todo` in the order they finish.

    An error ends it when the shards that are under way are home.
    """
    fresh = iter(todo)
    lost = deque[Task]()
    running = dict[Hashable, Task]()
    error: Exception | None = None
    losses = 0
    while True:
        slots = hands.slots if error is None and not stopped() else 0
        while (
            len(running) < slots
            and (new := lost.popleft() if lost else next(fresh, None)) is not None
        ):
            running[hands.submit(new)] = new
        if not running:
            break
        for handle in hands.wait(list(running), OFTEN):
            task = running.pop(handle)
            try:
                outcome = hands.result(handle)
            except Lost as loss:
                losses += 1
                lost.append(task)
                if losses > PATIENCE * hands.slots:
                    error = _gone(task, loss)
            except Exception as problem:
                error = error or problem
            else:
                losses = 0
                yield outcome
        _tell(hands.pulses(), {task.number for task in running.values()}, pulse)
    if error is not None:
        raise error


def _tell(latest: Mapping[int, Counts], running: set[int], pulse: Pulse) -> None:
    now = [counts for number, counts in latest.items() if number in running]
    if now:
        pulse(Counts.join(now))


def _gone(task: Task, loss: Lost) -> Problem:
    return Problem(
        "worker processes end before their shards are finished, again and again; the last one had"
        f" shard {task.number}.",
        f"Most often the memory runs out. The shards that were finished are stored. {loss}".strip(),
        fix="fewer workers, or a smaller batch_size, in config.toml",
        code=INTERNAL,
    )


# One shard searched and packed, wherever that happens.


@dataclass(frozen=True, slots=True)
class SearchedShard:
    """A shard that was searched and waits to be packed."""

    campaign: Campaign
    task: Task
    shard: Shard
    extra: Mapping[str, Any]

    def packed(self) -> ShardOutcome:
        return _packed(self.campaign, self.task, self.shard, dict(self.extra))


def run_task(
    campaign: Campaign,
    task: Task,
    guides: Sequence[Guide] = (),
    pulse: Pulse = lambda counts: None,
) -> ShardOutcome:
    """Search one shard and pack what it found. `guides`: as they were when the round began."""
    return search_task(campaign, task, guides, pulse).packed()


def search_task(
    campaign: Campaign,
    task: Task,
    guides: Sequence[Guide] = (),
    pulse: Pulse = lambda counts: None,
) -> SearchedShard:
    """Search one shard; packing it is left to whoever has time."""
    late = math.inf if task.deadline is None else task.deadline

    def stop(counts: Counts) -> bool:
        pulse(counts)
        return monotonic() >= late

    begun = monotonic()
    before = _service(campaign)
    try:
        shard = run_shard(
            campaign,
            task.images,
            task.limits,
            first=task.first,
            guides=guides,
            stop=stop,
        )
    except Raised as raised:
        raise _told(task, raised.__cause__ or raised, raised.what) from raised
    except (Problem, MemoryError):
        raise
    except Exception as error:
        raise _told(task, error) from error
    extra = {
        "seconds": round(monotonic() - begun, 4),
        "service": dict(_service(campaign) - before),
        **({"dropped": shard.dropped} if shard.dropped else {}),
    }
    return SearchedShard(campaign, task, shard, extra)


def _packed(campaign: Campaign, task: Task, shard: Shard, extra: dict[str, Any]) -> ShardOutcome:
    own = shard.findings.seed.cpu() - task.first
    ids = [task.images.id[i] for i in own.tolist()]
    method = campaign.method
    found = findings_table(
        shard.findings,
        task.images.x[own],
        ids,
        method=method.name,
        oracle=method.oracle.kind,
        witnesses=len(campaign.witnesses),
    )
    counts = shard.counts
    late = ["out of time" if late else "done" for late in shard.unfinished.tolist()]
    spent = spent_table(
        {
            "id": list(task.images.id),
            "status": [
                "skipped: reconstruction" if lost else word
                for lost, word in zip(counts.lost.tolist(), late)
            ],
            "looked": counts.queries,
            **{name: getattr(counts, name) for name in ("failing", *SPENDING)},
        }
    )
    part = to_parquet(found)
    packed = Packed(part, to_parquet(spent), pack_deltas(shard.deltas))
    return ShardOutcome(task.number, packed, {**summarise(found, spent), **extra})


def _service(campaign: Campaign) -> Counter[str]:
    """What the subject and its peers count of their own accord: calls, retries,
    answers from a cache, inputs without one.
    """
    tallies = (getattr(model, "tally", None) for model in (campaign.subject, *campaign.peers))
    return sum((Counter(tally) for tally in tallies if tally), Counter[str]())


def _told(task: Task, error: BaseException, by_user: str = "") -> Problem:
    """An exception as a problem that can travel between processes; `by_user`: what user code did,
    if it was that.
    """
    what = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    stored = (
        "Shards that were finished are stored; this one is searched again on resume. The log has"
        " the traceback."
    )
    if "CUDA" in what or "Accelerator" in what:
        return Problem(
            f"the GPU failed in shard {task.number}: {what}",
            stored,
            fix='device = "cpu" in config.toml',
            code=INTERNAL,
        )
    if by_user:
        return Problem(
            f"{by_user.removesuffix('.')}, in shard {task.number}.",
            stored,
            fix="mend the model",
            code=USAGE,
        )
    return Problem(f"shard {task.number} could not be searched: {what}", stored, code=INTERNAL)


# Worker processes of this machine.

Handle = Future[ShardOutcome]
VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a process sees, and in which order."""
ATOMIC = 4000
"""Bytes that a pipe takes whole or not at all; more is not sent,
so that a worker's death cannot leave half a message.
"""


class Processes:
    """So many processes, each with its own campaign built from `source`, spread over `devices`.

    When one dies, all are started anew.
    """

    def __init__(self, source: Source, workers: int, devices: Sequence[str] = ()) -> None:
        self.source = _pickled(source)
        self.workers = workers
        self.devices = tuple(devices)
        self.slots = workers + 1
        self.folder = tempfile.TemporaryDirectory(prefix="hardcase-")
        self.guides: Path | None = None
        self.rounds = 0
        self.latest: dict[int, Counts] = {}
        self._start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and not issubclass(
            kind, Exception
        ):  # an interrupt: unfinished shards are given up at once
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
        content = pickle.dumps(
            task
        )  # as bytes: tensors would go through shared memory, of which there may be little
        with _undisturbed():
            try:
                return self.pool.submit(_work, content, self.guides)
            except BrokenProcessPool:
                self._start()
                return self.pool.submit(_work, content, self.guides)

    def wait(self, handles: Sequence[Any], seconds: float) -> Sequence[Any]:
        return list(wait(handles, seconds, FIRST_COMPLETED).done)

    def result(self, handle: Any) -> ShardOutcome:
        try:
            outcome: ShardOutcome = handle.result()
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
        places: SimpleQueue[str] = context.SimpleQueue()
        for number in range(self.workers):
            places.put(self.devices[number % len(self.devices)] if self.devices else "")
        set_up = (self.source, self.workers, self.news, places)
        self.pool = ProcessPoolExecutor(self.workers, context, _set_up, set_up)
        self.latest.clear()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals wait. Processes that are started in here never hear of them,
    also before they can say that they do not want to.
    """
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
_unbuilt: Problem | None = None
_known: tuple[Path | None, tuple[Guide, ...]] = (None, ())


def gpus(count: int) -> tuple[str, ...]:
    """The names of the first GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` has
    them.
    """
    named = [word.strip() for word in os.environ.get(VISIBLE, "").split(",") if word.strip()]
    return tuple(named or map(str, range(count)))[:count]


def _set_up(source: bytes, workers: int, news: SimpleQueue[Any], places: SimpleQueue[str]) -> None:
    """In a new worker process: a GPU of its own where there are several, the same arithmetic as
    everywhere, a fair share of the cores, the campaign built once.
    """
    global _campaign, _news, _unbuilt
    place = places.get()
    if place:
        os.environ[VISIBLE] = place  # before anything is on a GPU here
    # signals reach every process; the one that owns the folder decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    keep_freed()
    _news = news
    try:
        with guarded("building the campaign in a worker process"):
            _campaign = pickle.loads(source)()
    except Problem as problem:  # told by the first task: an initializer could only break the pool
        _unbuilt = problem


def _end_with_parent() -> None:
    """A worker whose owner was killed has nobody to bring its shard to."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)


def _work(content: bytes, guides: Path | None) -> ShardOutcome:
    global _known
    if _unbuilt is not None:
        raise _unbuilt
    assert _campaign is not None
    task: Task = pickle.loads(content)
    if guides != _known[0]:
        _known = (guides, pickle.loads(guides.read_bytes()) if guides else ())
    return run_task(_campaign, task, _known[1], _Telling(task.number))


class _Telling:
    """Tells the owner of the counts now and then."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told = monotonic()

    def __call__(self, counts: Counts) -> None:
        if (
            _news is None
            or monotonic() - self.told < OFTEN
            or 8 * (1 + len(SPENDING)) * len(counts.queries) > ATOMIC
        ):
            return
        self.told = monotonic()
        with suppress(OSError):
            _news.put((self.number, rows_of(counts)))


def rows_of(counts: Counts) -> bytes:
    columns = [getattr(counts, name) for name in (*SPENDING, "failing")]
    return torch.stack(columns).cpu().numpy().tobytes()


def _counts(rows: bytes) -> Counts:
    names = (*SPENDING, "failing")
    columns = torch.frombuffer(bytearray(rows), dtype=torch.int64).reshape(len(names), -1)
    lost = torch.zeros_like(columns[0], dtype=torch.bool)
    return Counts(**dict(zip(names, columns)), lost=lost)


# From a campaign to a run folder: shards and rounds, here, in several processes or on a cluster.
# The findings are the same.

Round = Callable[[Iterable[Task], tuple[Guide, ...]], Iterator[ShardOutcome]]
"""Searches the tasks of a round, all from the same guides."""


@dataclass(frozen=True, slots=True)
class Tasks(Sequence[Task]):
    """The seeds at `rows` of `images`, cut into shards of `shard` seeds;
    a task is made when it is asked for.
    """

    images: ImageSet
    rows: Int[Tensor, " u"]
    limits: Limits
    shard: int

    def __len__(self) -> int:
        return -(-len(self.rows) // self.shard)

    def __getitem__(self, number: Any) -> Any:
        part = slice(number * self.shard, min((number + 1) * self.shard, len(self.rows)))
        if not 0 <= part.start < len(self.rows):
            raise IndexError(number)
        images = self.images.take(self.rows[part]).images()
        return Task(number, part.start, images, self.limits.take(part))


def tasks(images: Images, limits: Limits, *, shard: int) -> Tasks:
    """Cut all of `images` into shards of `shard` seeds."""
    return Tasks(images, torch.arange(len(images)), limits, shard)


def execute(
    source: Source,
    todo: Sequence[Task],
    store: Store,
    *,
    campaign: Campaign,
    rounds: int = 8,
    workers: int = 1,
    devices: Sequence[str] = (),
    cluster: str | None = None,
    findings: int | None = None,
    deadline: float | None = None,
    watch: Watch = lambda progress: None,
    pulse: Pulse = lambda counts: None,
    stopped: Stopped = lambda: False,
) -> tuple[Guide, ...]:
    """Run the tasks (the one at place `i` is number `i`) that the store does not have yet, round by
    round, and store each shard when it is finished.

    `campaign` is what `source` builds; worker processes build their own from `source`, each on one
    of `devices` if any are named, a cluster is sent `campaign`.

    All shards of a round start from the same guides; their deltas are merged in shard order when it
    ends. `findings` stops at the end of a round, `deadline` (monotonic seconds) after the current
    step, `stopped` after the current shard. `watch` is told of every finished shard, `pulse` of the
    counts of those under way. Where nothing passes from one round to the next (no guides, no
    findings limit), all shards are one round, and nobody waits for the slowest of eight. Returns
    copies of the campaign's guides and criteria with all finished rounds merged.
    """
    guides = copy.deepcopy((*campaign.method.guides, *campaign.criteria))
    total = Progress.none(len(todo))
    size = rounds if guides or findings is not None else max(len(todo), 1)
    done = store.done()
    kept = sum(
        int(entry.summary.get("findings", 0))
        for n, entry in store.ledger.read().items()
        if n in done
    )
    processes = partial(Processes, source, workers, devices) if workers > 1 else None
    with _runner(campaign, processes, cluster, pulse, stopped) as run:
        for part in chunks(len(todo), size):
            numbers = range(part.start, part.stop)
            missing = [number for number in numbers if number not in done]
            for outcome in run(
                (replace(todo[number], deadline=deadline) for number in missing), guides
            ):
                store.put(outcome.number, outcome.packed, outcome.summary)
                done.add(outcome.number)
                total = total + Progress.sum([outcome.summary])
                kept = kept + int(outcome.summary["findings"])
                watch(total)
            if not done.issuperset(numbers):
                break
            for guide in guides:
                _merge(guide, [store.deltas(number).get(guide.name, {}) for number in numbers])
            if findings is not None and kept >= findings:
                break
    return guides


def _merge(guide: Guide, deltas: Sequence[State]) -> None:
    """What a round's shards have learned, put together; files of another guide are a problem."""
    try:
        guide.merge(deltas)
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
        raise Problem(
            f"what shards have stored for the guide {guide.name} cannot be put together:"
            f" {type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
            fix="a new --out",
        ) from error


def _runner(
    campaign: Campaign,
    processes: Callable[[], Processes] | None,
    cluster: str | None,
    pulse: Pulse,
    stopped: Stopped,
) -> AbstractContextManager[Round]:
    if cluster is not None:
        from hardcase.runs.ray import Cluster

        return _with(lambda: Cluster(cluster, campaign), stopped, pulse)
    if processes is not None:
        return _with(processes, stopped, pulse)
    return _here(campaign, pulse, stopped)


@contextmanager
def _here(campaign: Campaign, pulse: Pulse, stopped: Stopped) -> Iterator[Round]:
    """Shards one after the other in this process; beside a GPU one is packed during the next."""

    def one_by_one(todo: Iterable[Task], guides: tuple[Guide, ...]) -> Iterator[ShardOutcome]:
        wanted = takewhile(lambda task: not stopped(), todo)
        return (search_task(campaign, task, guides, pulse).packed() for task in wanted)

    def overlapped(todo: Iterable[Task], guides: tuple[Guide, ...]) -> Iterator[ShardOutcome]:
        with ThreadPoolExecutor(1) as packer:
            waiting: Future[ShardOutcome] | None = None
            for task in todo:
                if stopped():
                    break
                searched = search_task(campaign, task, guides, pulse)
                if waiting is not None:
                    yield waiting.result()
                waiting = packer.submit(searched.packed)
            if waiting is not None:
                yield waiting.result()

    yield one_by_one if steady(campaign.subject.device) else overlapped


@contextmanager
def _with(
    make: Callable[[], AbstractContextManager[Hands]], stopped: Stopped, pulse: Pulse
) -> Iterator[Round]:
    with make() as hands:

        def run(todo: Iterable[Task], guides: tuple[Guide, ...]) -> Iterator[ShardOutcome]:
            hands.begin(guides)
            return drive(hands, todo, stopped, pulse)

        yield run
