"""Searching on a device, where launching a call takes longer than computing it.

There every call of a network has a constant number of rows, a tile. Queries of small networks are
captured once and replayed as graphs, several tiles side by side on streams (`hardcase.graphs`).
Seeds end at different times, so the last of a shard would fill nearly empty tiles. So shards share
tiles (`search_together`): each waits at its queries; when all running shards wait, their rows go
into the same call, and the next shard begins where a tile has room for it. A row's numbers never
depend on its neighbours in a tile, so nothing that a search finds depends on any of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor

from hardcase.campaign.evaluator import Ask, Evaluation, Query, join_rows, rows_of
from hardcase.campaign.record import Campaign
from hardcase.graphs import (
    LARGE,
    SMALL,
    CapturedCall,
    CapturedCalls,
    arithmetic,
    captured,
    replays,
    side_by_side,
)
from hardcase.tensors import chunks, pad_rows, steady, tile_in_use, tile_rows
from hardcase.types import Guide, Probe, Seeds, Targets

__all__ = ["DeviceExecutor", "ReplayedQuery", "search_together", "shares_tiles"]

CAPTURE_AFTER_CALLS = 4
"""Queries of a shard after which it asks by captured calls."""
STREAMS = 4
"""Tiles that are computed side by side, at most."""
SEED_FIELDS = ("z", "x", "y", "id")
"""What every seed has."""
Item = TypeVar("Item")
Found = TypeVar("Found")
_replays: WeakKeyDictionary[Campaign, CapturedCalls] = WeakKeyDictionary()
"""Queries that were captured, by their campaign."""


class DeviceExecutor:
    """Shards that share tiles where nothing forbids it: a tile is packed while the next
    computes."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign

    def ask(self, seeds: Seeds, guides: Sequence[Guide]) -> ReplayedQuery:
        return ReplayedQuery(self.campaign, seeds, guides)

    def shards(
        self, searches: Iterable[Callable[[Ask], Found]], guides: Sequence[Guide]
    ) -> Iterator[Found]:
        if shares_tiles(self.campaign, guides):
            return search_together(self.campaign, searches)
        return (search(self.ask) for search in searches)

    def packed(self, pack: Callable[[Item], Found], searched: Iterable[Item]) -> Iterator[Found]:
        waiting: Future[Found] | None = None
        with ThreadPoolExecutor(1) as packer:
            for each in searched:
                if waiting is not None:
                    yield waiting.result()
                waiting = packer.submit(pack, each)
            if waiting is not None:
                yield waiting.result()


class ReplayedQuery(Query):
    """A query of a shard, or of joined shards, that is replayed by captured calls."""

    def __init__(self, campaign: Campaign, seeds: Seeds, guides: Sequence[Guide] = ()) -> None:
        super().__init__(campaign, seeds, guides)
        self.streams = self._streams()
        self.asked = 0

    def __call__(
        self,
        z: Tensor,
        rows: Int[Tensor, " m"],
        targets: Targets,
        *,
        graded: bool = False,
        seeds: Seeds | None = None,
    ) -> Evaluation:
        self.asked += 1
        if seeds is None and self.streams and self.asked > CAPTURE_AFTER_CALLS:
            evaluation = self._replayed(z, rows, targets, graded=graded)
            if evaluation is not None:
                return evaluation
        return super().__call__(z, rows, targets, graded=graded, seeds=seeds)

    def _streams(self) -> int:
        """How many tiles are replayed side by side; 0: none, as a graph holds small calls of
        a constant shape only, without guides and taps, of models with gradients.
        """
        device = self.campaign.subject.device
        constant = (
            replays(device)
            and tile_in_use(device.type) is not None
            and not self.guides
            and not any(self.taps)
            and all(network.offers == "gradients" for network in self.networks)
        )
        size = self.tile * max(1, self.seeds.x[:1].numel())
        if not constant or size > LARGE:
            return 0
        return max(1, min(STREAMS, SMALL // size))

    def _replay(
        self,
        z: Tensor,
        rows: Int[Tensor, " m"],
        targets: Targets,
        *,
        graded: bool,
        streams: int = 1,
    ) -> CapturedCall | None:
        """The call of a tile, or of tiles side by side, as a graph."""
        names = [name for name, _ in self._tables()]
        tables = [table for _, table in self._tables()]
        shapes = [(tensor.dtype, *tensor.shape[1:]) for tensor in (z, *tables, *targets.values())]
        # A graph is valid for one combination only: shapes and types of all inputs, gradient or
        # not, and the arithmetic that was set when it was captured.
        kind = (graded, streams, self.tile, *names, *targets, *shapes, *arithmetic())
        calls = _replays.setdefault(self.campaign, CapturedCalls())
        if kind not in calls:

            def call(z: Tensor, *given: Tensor) -> list[Tensor]:
                columns = dict(zip(names, given))
                z0, x, y, number = (columns.pop(name) for name in SEED_FIELDS)
                evaluation = super(ReplayedQuery, self).__call__(
                    z,
                    torch.arange(len(z), device=z.device),
                    dict(zip(targets, given[len(names) :])),
                    graded=graded,
                    seeds=Seeds(z0, x, y, number, columns),
                )
                probe = evaluation.probe
                answers = [probe.z, probe.x, probe.logits, evaluation.score, evaluation.gradient]
                return [*answers, *probe.peers, *probe.witnesses]

            size = self.tile * streams
            seeds = [pad_rows(table[rows[:size]], size) for table in tables]
            mine, *aligned = (pad_rows(tensor[:size], size) for tensor in (z, *targets.values()))
            calls[kind] = captured(side_by_side(call, streams), mine, *seeds, *aligned)
        return calls[kind]

    def _replayed(
        self, z: Tensor, rows: Int[Tensor, " m"], targets: Targets, *, graded: bool
    ) -> Evaluation | None:
        """As a call, by tiles that were captured; None where they cannot be."""
        first_outputs = self._replay(z, rows, targets, graded=graded)
        if first_outputs is None:
            return None
        wide = self.tile * self.streams
        joined = None
        if self.streams > 1 and len(rows) >= wide:
            joined = self._replay(z, rows, targets, graded=graded, streams=self.streams)
        covered = 0 if joined is None else len(rows) // wide * wide
        outputs = [out.new_empty(len(rows), *out.shape[1:]) for out in first_outputs.out]
        tables = [table for _, table in self._tables()]
        rest = range(covered, len(rows), self.tile)
        single = (slice(at, min(at + self.tile, len(rows))) for at in rest)
        # Wide calls replay several tiles on streams of their own, side by side; what is left goes
        # tile by tile. Both have the constant tile inside, so the bits do not depend on the split.
        for part in (*chunks(covered, wide), *single):
            replay = joined if joined is not None and part.start < covered else first_outputs
            count = part.stop - part.start
            # what a smaller last tile leaves of the one before is computed again, and not read
            places = [place[:count] for place in replay.inputs]
            places[0].copy_(z[part])
            for place, table in zip(places[1:], tables):
                torch.index_select(table, 0, rows[part], out=place)
            for place, value in zip(places[1 + len(tables) :], targets.values()):
                place.copy_(value[part])
            replay()
            for column, out in zip(outputs, replay.out):
                column[part] = out[:count]
        code, x, logits, score, gradient, *others = outputs
        peers = len(self.models) - 1
        probe = Probe(
            z=code,
            x=x,
            logits=logits,
            origin=self.seeds.take(rows),
            peers=tuple(others[:peers]),
            witnesses=tuple(others[peers:]),
            targets=targets,
            guides=self.guides,
        )
        return Evaluation(probe, score, gradient)

    def _tables(self) -> list[tuple[str, Tensor]]:
        """The tensors of every seed, by name."""
        return [
            *((name, getattr(self.seeds, name)) for name in SEED_FIELDS),
            *self.seeds.context.items(),
        ]


MAX_SHARDS_IN_FLIGHT = 8
"""Shards that are under way at a time: each holds its seeds and its state."""


def shares_tiles(campaign: Campaign, guides: Sequence[object]) -> bool:
    """Whether shards may ask together: tiles are constant, and no guide learns from their order."""
    kind = campaign.subject.device.type
    constant = campaign.tile is not None or tile_in_use(kind) is not None
    return constant and not guides and not steady(campaign.subject.device)


def search_together(
    campaign: Campaign, searches: Iterable[Callable[[Ask], Found]]
) -> Iterator[Found]:
    """What each search returns, in the order in which they end."""
    fresh = iter(searches)
    running = list[ShardThread[Found]]()
    joined = list[ShardThread[Found]]()
    query: ReplayedQuery | None = None
    with campaign.arithmetic():  # around that of each shard, which would end it for the others
        tile = tile_rows(campaign.subject.device)
        try:
            while True:
                while (
                    len(running) < MAX_SHARDS_IN_FLIGHT
                    and sum(len(shard.rows) for shard in running) < tile
                ):
                    search = next(fresh, None)
                    if search is None:
                        break
                    thread = ShardThread(search)
                    running.append(thread)
                    thread.resume()
                    if thread.ended:
                        running.remove(thread)
                        yield thread.result()
                if not running:
                    return
                # Row numbers of a query are those of the shards that were joined, so any change of
                # the party means a new query. What it has measured (calls, batch) is carried over.
                if query is None or running != joined:
                    query = _joined_query(campaign, [shard.seeds for shard in running], query)
                    joined = list(running)
                # Every shard now waits at its next question. All are asked in as few tiles as they
                # fill, and each goes on with its part: the order of threads cannot change what any
                # of them is told.
                for thread, answer in _answers(query, running):
                    thread.resume(answer)
                ended = [shard for shard in running if shard.ended]
                running = [shard for shard in running if not shard.ended]
                for thread in ended:
                    yield thread.result()
        finally:
            for thread in running:
                thread.cancel()


def _joined_query(
    campaign: Campaign, seeds: Sequence[Seeds], before: ReplayedQuery | None
) -> ReplayedQuery:
    """Asks about the seeds of all shards that run, as it did before: in calls of the same size."""
    query = ReplayedQuery(campaign, seeds[0] if len(seeds) == 1 else join_rows(seeds))
    if before is not None:
        query.asked = before.asked
        query.batch = before.batch
    return query


def _answers(
    query: ReplayedQuery, running: Sequence[ShardThread[Found]]
) -> Iterator[tuple[ShardThread[Found], Evaluation | Exception]]:
    """Ask for all that wait, those together who want the same; hand back what is whose."""
    first = dict[ShardThread[Found], int]()
    for thread in running:
        first[thread] = sum(len(waiting.seeds) for waiting in first)
    kinds = dict[tuple[object, ...], list[ShardThread[Found]]]()
    for thread in running:
        # A graph is captured for one set of inputs: with or without gradient, with the same
        # targets. Only shards that want the same can share a call.
        kinds.setdefault((thread.graded, *thread.targets), []).append(thread)
    for alike in kinds.values():
        names = alike[0].targets
        try:
            evaluation = query(
                torch.cat([waiting.z for waiting in alike]),
                torch.cat([waiting.rows + first[waiting] for waiting in alike]),
                {name: torch.cat([waiting.targets[name] for waiting in alike]) for name in names},
                graded=alike[0].graded,
            )
        except Exception as error:  # is told as one of the first shard that asked
            yield alike[0], error
            return
        start = 0
        for thread in alike:
            part = slice(start, start + len(thread.rows))
            start = part.stop
            yield (
                thread,
                Evaluation(
                    _rows_of_probe(evaluation.probe, part),
                    evaluation.score[part],
                    evaluation.gradient[part],
                ),
            )


def _rows_of_probe(probe: Probe, part: slice) -> Probe:
    origin = probe.origin
    z, x, y, number = (column[part] for column in (origin.z, origin.x, origin.y, origin.id))
    return replace(
        probe,
        z=probe.z[part],
        x=probe.x[part],
        logits=probe.logits[part],
        origin=Seeds(z, x, y, number, rows_of(origin.context, part)),
        peers=tuple(logits[part] for logits in probe.peers),
        witnesses=tuple(logits[part] for logits in probe.witnesses),
        activations=rows_of(probe.activations, part),
        targets=rows_of(probe.targets, part),
    )


class _Cancelled(BaseException):
    """Nobody waits for this search any more."""


class ShardThread(Generic[Found]):
    """A search in a separate thread that stops at each query, until it is resumed.

    The thread and its caller never run at the same time.
    """

    seeds: Seeds
    z: Tensor
    rows: Tensor
    targets: Targets
    graded: bool

    def __init__(self, search: Callable[[Ask], Found]) -> None:
        self.ended = False
        self._search = search
        # Two semaphores pass a single baton: `_turn` lets the search run, `_stopped` lets its
        # caller run. So searches that share tiles need no lock, and their order is the same in
        # every run.
        self._turn = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._answer: Evaluation | Exception | None = None
        self._cancelled = False
        self._found: Found
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self, answer: Evaluation | Exception | None = None) -> None:
        """Resume with the answer to its query, until the next query or its end."""
        self._answer = answer
        self._turn.release()
        self._stopped.acquire()

    def result(self) -> Found:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def cancel(self) -> None:
        self._cancelled = True
        self._turn.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._wait()
            self._found = self._search(self._ask)
        except BaseException as error:  # raised again where somebody waits for the result
            self._error = error
        self.ended = True
        self._stopped.release()

    def _wait(self) -> None:
        self._turn.acquire()
        if self._cancelled:
            raise _Cancelled

    def _ask(self, seeds: Seeds, guides: Sequence[Guide] = ()) -> Callable[..., Evaluation]:
        self.seeds = seeds

        def query(z: Tensor, rows: Tensor, targets: Targets, *, graded: bool = False) -> Evaluation:
            self.z, self.rows, self.targets, self.graded = z, rows, targets, graded
            self._stopped.release()
            self._wait()
            if isinstance(self._answer, Exception):
                raise self._answer
            assert self._answer is not None
            return self._answer

        return query
