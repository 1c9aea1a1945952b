"""A whole campaign in memory: shards and rounds without a run folder."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool
from torch import Tensor

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, Counts, Shard, limits, overlay
from hardcase.tensors import chunks
from hardcase.types import Budget, Findings, Guide, Images


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found from which seeds, and what it cost.

    Args:
        seeds: The images that were searched from; `findings.seed` counts in them.
        findings: What the campaign keeps, in main memory.
        counts: What was spent on each seed, in main memory.
        guides: The guides and criteria after the last round.
    """

    seeds: Images
    findings: Findings
    counts: Counts
    guides: tuple[Guide, ...] = ()

    @property
    def attempted(self) -> Bool[Tensor, " n"]:
        """The seeds whose reconstruction keeps its label."""
        return ~self.counts.lost

    @property
    def found(self) -> int:
        """How many seeds have a finding."""
        return len(set(self.findings.seed.tolist()))


def search_images(
    campaign: Campaign,
    images: Images,
    budget: Budget | None = None,
    *,
    shard: int = 32,
    rounds: int = 8,
) -> Searched:
    """Search all of `images`, which the subject must classify correctly.

    The findings are those of a run on disk with the same shard and round.

    Args:
        campaign: The method applied to a subject.
        images: The seeds.
        budget: Limits that replace the method's own.
        shard: Seeds that are searched at once.
        rounds: Shards that start from the same state of the guides.
    """
    most = limits(overlay(budget or Budget(), campaign.method.budget), len(images))
    guides = copy.deepcopy((*campaign.method.guides, *campaign.criteria))
    everything = torch.arange(len(images))
    cuts = list(chunks(len(images), shard))
    done = list[Shard]()
    for part in chunks(len(cuts), rounds if guides else max(len(cuts), 1)):
        round_of = []
        for number in range(part.start, min(part.stop, len(cuts))):
            rows = cuts[number]
            some = images.take(everything[rows])
            round_of.append(
                run_shard(
                    campaign, some, most.take(rows), number=number, first=rows.start, guides=guides
                )
            )
        for guide in guides:
            guide.merge([one.deltas[guide.name] for one in round_of])
        done += round_of
    findings = Findings.join([_to_memory(one.findings) for one in done])
    return Searched(images, findings, Counts.join([one.counts for one in done]), guides)


def _to_memory(findings: Findings) -> Findings:
    return Findings(**{f.name: getattr(findings, f.name).cpu() for f in fields(Findings)})
