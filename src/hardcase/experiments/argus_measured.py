"""The measures of a method on a few originals: what it found, how much it made, and how like its originals all of that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits, overlay, parse_keep
from hardcase.experiments.argus_judged import SAMPLE, Bar, judged
from hardcase.experiments.argus_witness import Witness
from hardcase.experiments.searching import on_cpu
from hardcase.models.subject import Subject
from hardcase.randomness import stream
from hardcase.statistics import PerSeed, label_diversity, per_seed, ssim
from hardcase.tensors import chunks, from_bytes
from hardcase.types import KINDS, Budget, Findings, Images, Method, Model

AT_ONCE = 64
"""Originals that are searched at the same time: each has many codes in memory."""
LIKE = 0.877
"""The SSIM that ARGUS reports together with an LD of 8.6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A method on all originals of all repeats. `lost` counts originals whose reconstruction already fails, which have no other
    place here; `alike` is the LD of each original when only images of an SSIM of `LIKE` or more count, `made` how many images
    were made of it, `mse` and `ssim` are means over a sample of those, failing or not, and `judged` the share of it that fails
    and that a judge confirms (None without a judge). `sample` holds up to `SAMPLE` images of every original, lost ones included;
    `there` says which places are filled."""

    seeds: PerSeed
    alike: Float[Tensor, " n"]
    made: Float[Tensor, " n"]
    mse: Float[Tensor, " n"]
    ssim: Float[Tensor, " n"]
    judged: Float[Tensor, " n"] | None
    findings: Findings
    sample: UInt8[Tensor, "o s c h w"]
    there: Bool[Tensor, "o s"]
    lost: int
    originals: int


def measured(
    subject: Subject,
    method: Method,
    groups: Sequence[Images],
    *,
    peers: tuple[Model, ...] = (),
    count: int | None = None,
    bar: Bar | None = None,
) -> Measured:
    """`method` on every group. `count` replaces the method's own budget: so many images are made of each original, or a few
    more, as a search takes whole steps."""
    parts, total = list[Measured](), 0
    pieces = [
        images.take(torch.arange(len(images))[rows])
        for images in groups
        for rows in chunks(len(images), AT_ONCE)
    ]
    for number, images in enumerate(pieces):
        part = _measured(subject, method, images, number, peers, count, bar)
        parts.append(
            replace(part, findings=replace(part.findings, seed=part.findings.seed + total))
        )
        total += len(images)
    each = [part.judged for part in parts if part.judged is not None]
    return Measured(
        seeds=PerSeed.join([part.seeds for part in parts]),
        alike=torch.cat([part.alike for part in parts]),
        made=torch.cat([part.made for part in parts]),
        mse=torch.cat([part.mse for part in parts]),
        ssim=torch.cat([part.ssim for part in parts]),
        judged=torch.cat(each) if each else None,
        findings=Findings.join([part.findings for part in parts]),
        sample=torch.cat([part.sample for part in parts]),
        there=torch.cat([part.there for part in parts]),
        lost=sum(part.lost for part in parts),
        originals=total,
    )


def _measured(
    subject: Subject,
    method: Method,
    images: Images,
    number: int,
    peers: tuple[Model, ...],
    count: int | None,
    bar: Bar | None,
) -> Measured:
    rng = stream(number, "witness", device=subject.device)
    witness = Witness(method.oracle, images, count=SAMPLE, rng=rng)
    campaign = Campaign(
        subject=subject, method=replace(method, oracle=witness), peers=peers,
        keep=parse_keep("best-per-label"), batch=2048, seed=number,
    )  # fmt: skip
    enough = (
        None if count is None else 4 * count + 4
    )  # some looks are at images that were seen before
    bounds = limits(overlay(Budget(queries=enough, gradients=enough), method.budget), len(images))
    shard = run_shard(
        campaign, images, bounds, number=number, guides=method.guides,
        stop=lambda counts: count is not None and int(witness.made.max()) >= count,
    )  # fmt: skip
    alive, findings, made = ~shard.counts.lost.cpu(), on_cpu(shard.findings), witness.made.cpu()
    each = per_seed(findings, images.x, failing=shard.counts.failing.cpu(), looked=made)
    confirmed = judged(bar.judge, witness, images.y)[alive] if bar and bar.judge else None
    far, like = witness.likeness(images)
    return Measured(
        seeds=each.take(alive), alike=_alike(findings, images)[alive], made=made[alive].double(), judged=confirmed,
        mse=far[alive], ssim=like[alive], sample=witness.x.cpu(), there=witness.there.cpu(),
        findings=findings, lost=int((~alive).sum()), originals=len(images),
    )  # fmt: skip


def _alike(findings: Findings, images: Images) -> Float[Tensor, " n"]:
    label = findings.take((findings.kind == KINDS.index("label")).nonzero().squeeze(1))
    near = label.take(
        (ssim(from_bytes(label.x), from_bytes(images.x[label.seed])) >= LIKE).nonzero().squeeze(1)
    )
    return label_diversity(near.seed, near.predicted, len(images))
