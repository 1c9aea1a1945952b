"""A method applied to images in this process, without a run folder; on a device, shards side by
side.

On a device every call of a network has one constant tile of rows. Seeds end one by one, and the
last of a shard are asked about in tiles that are nearly empty. So shards share tiles
(`search_together`): each waits wherever it asks; when all that run wait, their rows are asked about
in one call, and the next shard begins where a tile has room for it. A row's numbers never depend on
its neighbours in a tile, so nothing that a search finds depends on this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from time import perf_counter
from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hardcase.campaign.evaluator import Evaluation, Query, join_rows, rows_of
from hardcase.campaign.loop import in_rounds, run_shard
from hardcase.campaign.record import Campaign, Counts, Shard, limits, overlay, parse_keep
from hardcase.objectives import with_witnesses
from hardcase.tensors import chunks, steady, tile_in_use, tile_rows
from hardcase.types import Budget, Findings, Images, Method, Model, Probe, Seeds, State, Targets

ROWS = {True: 256, False: 8192}
"""Images that a network is given in one call on a CPU, and on another device."""
SEEDS = {True: 64, False: 512}
"""Seeds that are searched at once on a CPU, and on another device."""


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found, and what it cost.

    Args:
        seeds: The images that were searched from.
        findings: What was kept; `findings.seed` are rows of `seeds`.
        queries: Images of each seed that the subject was given.
        gradients: Gradients that were asked for, per seed.
        attempted: Seeds whose reconstruction keeps its label, none of the target's own class.
        failing: Candidates of each seed that left its label.
        seconds: How long the search took.
    """

    seeds: Images
    findings: Findings
    queries: Int[Tensor, " n"]
    gradients: Int[Tensor, " n"]
    attempted: Bool[Tensor, " n"]
    failing: Int[Tensor, " n"]
    seconds: float

    @property
    def succeeded(self) -> int:
        """How many seeds have a finding."""
        return len(set(self.findings.seed.tolist()))

    @property
    def success(self) -> float:
        """The share of attempted seeds with a finding."""
        return self.succeeded / max(int(self.attempted.sum()), 1)


def search(
    subject: Model,
    method: Method,
    seeds: Images,
    *,
    peers: tuple[Model, ...] = (),
    witnesses: tuple[Model, ...] = (),
    budget: Budget | None = None,
    keep: str | None = None,
    seed: int = 0,
    shard: int | None = None,
    batch: int | None = None,
) -> Searched:
    """Search all `seeds`, which the subject must classify correctly; guides learn by shard.

    Args:
        subject: The network under test.
        method: What searches it.
        seeds: Where the search starts.
        peers: Networks to compare the subject with.
        witnesses: Networks that must keep the label where the subject leaves it.
        budget: Replaces what it names of the method's own.
        keep: Which findings are kept; the method's own rule by default.
        seed: The seed of everything random.
        shard: Seeds that are searched at once; more on a GPU by default.
        batch: Images that the subject is given in one call; more on a GPU by default.
    """
    keep = keep or method.keep
    if witnesses:
        method = with_witnesses(method)
    campaign = Campaign(
        subject=subject,
        method=method,
        peers=peers,
        witnesses=witnesses,
        keep=parse_keep(keep),
        batch=batch or ROWS[steady(subject.device)],
        seed=seed,
    )
    shard = shard or SEEDS[steady(subject.device)]
    return search_campaign(campaign, seeds, budget, shard=shard, rounds=1)


def search_campaign(
    campaign: Campaign,
    seeds: Images,
    budget: Budget | None = None,
    *,
    shard: int = 32,
    rounds: int = 8,
) -> Searched:
    """Search all `seeds`, which the subject must classify correctly, as a run on disk does."""
    most = limits(overlay(budget or Budget(), campaign.method.budget), len(seeds))
    guides = (*campaign.method.guides, *campaign.criteria)
    cuts = list(chunks(len(seeds), shard))
    everything = torch.arange(len(seeds))
    begun = perf_counter()
    parts = list[Shard]()

    def searched(part: slice, ask: Ask | None = None) -> tuple[int, Shard]:
        images = seeds.take(everything[part])
        first = part.start
        return first, run_shard(
            campaign, images, most.take(part), first=first, guides=guides, ask=ask
        )

    if not guides:
        rounds = max(len(cuts), 1)
    for numbers in in_rounds(len(cuts), rounds, guides, lambda number: parts[number].deltas):
        tasks = cuts[numbers.start : numbers.stop]
        if shares_tiles(campaign, guides):
            found = dict(search_together(campaign, (partial(searched, part) for part in tasks)))
        else:
            found = dict(map(searched, tasks))
        parts.extend(found[part.start] for part in tasks)
    seconds = perf_counter() - begun
    target = -1
    if campaign.target is not None:
        target = campaign.target
    counts = Counts.join([part.counts for part in parts])
    return Searched(
        seeds,
        Findings.join([on_cpu(part.findings) for part in parts]),
        counts.queries,
        counts.gradients,
        ~counts.lost & (seeds.y != target),
        counts.failing,
        seconds,
    )


def walk(
    subject: Model, method: Method, seeds: Images, *, seed: int = 0
) -> tuple[State, Int[Tensor, " n"]]:
    """The state in which the search of one shard ends, and the queries of each seed."""
    batch = ROWS[steady(subject.device)]
    campaign = Campaign(subject=subject, method=method, batch=batch, seed=seed)
    most = limits(method.budget, len(seeds))
    shard = run_shard(campaign, seeds, most, guides=method.guides)
    return shard.state, shard.counts.queries


def on_cpu(findings: Findings) -> Findings:
    """Findings whose tensors are all in main memory."""
    return Findings(**{f.name: getattr(findings, f.name).cpu() for f in fields(Findings)})


MOST = 8
"""Shards that are under way at a time: each holds its seeds and its state."""
Ask = Callable[[Seeds], Callable[..., Evaluation]]
"""From the seeds of a shard: what asks about them."""
Found = TypeVar("Found")


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
    running = list[_Strand[Found]]()
    joined = list[_Strand[Found]]()
    query: Query | None = None
    with campaign.arithmetic():  # around that of each shard, which would end it for the others
        tile = tile_rows(campaign.subject.device)
        try:
            while True:
                while len(running) < MOST and sum(len(one.rows) for one in running) < tile:
                    search = next(fresh, None)
                    if search is None:
                        break
                    strand = _Strand(search)
                    running.append(strand)
                    strand.go_on()
                    if strand.ended:
                        running.remove(strand)
                        yield strand.result()
                if not running:
                    return
                if query is None or running != joined:
                    query = _joined_query(campaign, [one.seeds for one in running], query)
                    joined = list(running)
                for strand, answer in _answers(query, running):
                    strand.go_on(answer)
                ended = [one for one in running if one.ended]
                running = [one for one in running if not one.ended]
                for strand in ended:
                    yield strand.result()
        finally:
            for strand in running:
                strand.abandon()


def _joined_query(campaign: Campaign, seeds: Sequence[Seeds], before: Query | None) -> Query:
    """Asks about the seeds of all shards that run, as it did before: in calls of the same size."""
    query = Query(campaign, seeds[0] if len(seeds) == 1 else join_rows(seeds))
    if before is not None:
        query.asked = before.asked
        query.batch = before.batch
    return query


def _answers(
    query: Query, running: Sequence[_Strand[Found]]
) -> Iterator[tuple[_Strand[Found], Evaluation | Exception]]:
    """Ask for all that wait, those together who want the same; hand back what is whose."""
    first = dict[_Strand[Found], int]()
    for strand in running:
        first[strand] = sum(len(one.seeds) for one in first)
    kinds = dict[tuple[object, ...], list[_Strand[Found]]]()
    for strand in running:
        kinds.setdefault((strand.graded, *strand.targets), []).append(strand)
    for alike in kinds.values():
        names = alike[0].targets
        try:
            evaluation = query(
                torch.cat([one.z for one in alike]),
                torch.cat([one.rows + first[one] for one in alike]),
                {name: torch.cat([one.targets[name] for one in alike]) for name in names},
                graded=alike[0].graded,
            )
        except Exception as error:  # is told as one of the first shard that asked
            yield alike[0], error
            return
        start = 0
        for strand in alike:
            part = slice(start, start + len(strand.rows))
            start = part.stop
            yield (
                strand,
                Evaluation(
                    _rows_of_probe(evaluation.probe, part),
                    evaluation.score[part],
                    evaluation.slope[part],
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


class _Abandoned(BaseException):
    """Nobody waits for this search any more."""


class _Strand(Generic[Found]):
    """A search in a thread of its own that stops wherever it asks, until it is told to go on.

    Of a strand and whoever tells it to go on only one runs at a time.
    """

    seeds: Seeds
    z: Tensor
    rows: Tensor
    targets: Targets
    graded: bool

    def __init__(self, search: Callable[[Ask], Found]) -> None:
        self.ended = False
        self._search = search
        self._turn = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._answer: Evaluation | Exception | None = None
        self._abandoned = False
        self._found: Found
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def go_on(self, answer: Evaluation | Exception | None = None) -> None:
        """With the answer to what it asked, until it asks again or has ended."""
        self._answer = answer
        self._turn.release()
        self._stopped.acquire()

    def result(self) -> Found:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def abandon(self) -> None:
        self._abandoned = True
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
        if self._abandoned:
            raise _Abandoned

    def _ask(self, seeds: Seeds) -> Callable[..., Evaluation]:
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
