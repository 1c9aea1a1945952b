"""A method applied to images in this process, without a run folder."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from time import perf_counter

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from hardcase.campaign.evaluator import Ask
from hardcase.campaign.executor import executor_of
from hardcase.campaign.loop import in_rounds, run_shard
from hardcase.campaign.record import Campaign, Counts, Shard, limits, overlay, parse_keep
from hardcase.objectives import with_witnesses
from hardcase.tensors import chunks, steady
from hardcase.types import Budget, Findings, Images, Method, Model, State

ROWS = {True: 256, False: 8192}
"""Images per call of a network on a CPU, and on another device."""
SEEDS = {True: 64, False: 512}
"""Seeds that are searched at once on a CPU, and on another device."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The failures of a search, and its cost.

    Args:
        seeds: The images that were searched from.
        findings: The stored failures; `findings.seed` are rows of `seeds`.
        queries: Images of each original that the model classified.
        gradients: Gradients computed, per seed.
        attempted: Originals whose reconstruction keeps its label, none of the target's class.
        failing: Candidates of each original that left its label.
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
        """How many images have a failure."""
        return len(set(self.findings.seed.tolist()))

    @property
    def success(self) -> float:
        """The share of searched images with a failure."""
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
) -> SearchResult:
    """Search all `seeds`, which the model must classify correctly; guides learn by shard.

    Args:
        subject: The network under test.
        method: What searches it.
        seeds: Where the search starts.
        peers: Networks to compare the model with.
        witnesses: Networks that must keep the label where the model leaves it.
        budget: Limits that override those of the method.
        keep: Which failures are stored; the method's rule by default.
        seed: The seed of everything random.
        shard: Originals that are searched at once; more on a GPU by default.
        batch: Images per call of the model; more on a GPU by default.
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
) -> SearchResult:
    """Search all `seeds`, which the model must classify correctly, as a run on disk does."""
    most = limits(overlay(budget or Budget(), campaign.method.budget), len(seeds))
    guides = (*campaign.method.guides, *campaign.criteria)
    cuts = list(chunks(len(seeds), shard))
    everything = torch.arange(len(seeds))
    begun = perf_counter()
    parts = list[Shard]()

    def searched(part: slice, ask: Ask) -> tuple[int, Shard]:
        images = seeds.take(everything[part])
        first = part.start
        return first, run_shard(
            campaign, images, most.take(part), first=first, guides=guides, ask=ask
        )

    executor = executor_of(campaign)

    if not guides:
        rounds = max(len(cuts), 1)
    for numbers in in_rounds(len(cuts), rounds, guides, lambda number: parts[number].deltas):
        tasks = cuts[numbers.start : numbers.stop]
        results = dict(executor.shards((partial(searched, part) for part in tasks), guides))
        parts.extend(results[part.start] for part in tasks)
    seconds = perf_counter() - begun
    target = -1
    if campaign.target is not None:
        target = campaign.target
    counts = Counts.join([part.counts for part in parts])
    return SearchResult(
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
    """The state in which the search of a shard ends, and the queries of each seed."""
    batch = ROWS[steady(subject.device)]
    campaign = Campaign(subject=subject, method=method, batch=batch, seed=seed)
    most = limits(method.budget, len(seeds))
    ask = executor_of(campaign).ask
    shard = run_shard(campaign, seeds, most, guides=method.guides, ask=ask)
    return shard.state, shard.counts.queries


def on_cpu(findings: Findings) -> Findings:
    """Findings whose tensors are all in main memory."""
    return Findings(**{f.name: getattr(findings, f.name).cpu() for f in fields(Findings)})
