"""A method applied to images in this process, without a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.look import Door
from hardcase.campaign.loop import enter, run_shard
from hardcase.campaign.record import Campaign, Shard, limits, overlay, parse_keep
from hardcase.models.health import answers
from hardcase.randomness import stream
from hardcase.tensors import chunks, from_bytes
from hardcase.types import Budget, Findings, Images, Method, Model, State


@dataclass(frozen=True, slots=True)
class Searched:
    """What was found, and what it cost. `attempted` marks the usable seeds whose reconstruction keeps its label; `failing`
    counts the candidates of each seed that left it."""

    seeds: Images
    findings: Findings
    queries: Int[Tensor, " n"]
    gradients: Int[Tensor, " n"]
    attempted: Bool[Tensor, " n"]
    failing: Int[Tensor, " n"]
    seconds: float

    @property
    def succeeded(self) -> int:
        return len(set(self.findings.seed.tolist()))

    @property
    def success(self) -> float:
        return self.succeeded / max(int(self.attempted.sum()), 1)


def usable(subject: Model, images: Images) -> Images:
    """The images that `subject` classifies rightly."""
    return images.take((answers(subject, images).argmax(1).cpu() == images.y).nonzero().squeeze(1))


def search(
    subject: Model,
    method: Method,
    seeds: Images,
    *,
    peers: tuple[Model, ...] = (),
    budget: Budget | None = None,
    keep: str | None = None,
    seed: int = 0,
    shard: int | None = None,
    batch: int | None = None,
) -> Searched:
    """Search all `seeds`, which the subject must classify rightly. Guides of the method learn, shard after shard.

    A GPU is given more seeds and rows at a time, if nothing is said of them.
    """
    rule = parse_keep(keep or method.keep)
    shard, batch = shard or (512 if subject.device.type == "cuda" else 64), batch or _rows(subject)
    campaign = Campaign(
        subject=subject, method=method, peers=peers, keep=rule, batch=batch, seed=seed
    )
    most = limits(overlay(budget or Budget(), method.budget), len(seeds))
    begun = perf_counter()
    parts = list[Shard]()
    for i, rows in enumerate(chunks(len(seeds), shard)):
        some = seeds.take(torch.arange(len(seeds))[rows])
        parts.append(
            run_shard(
                campaign, some, most.take(rows), number=i, first=rows.start, guides=method.guides
            )
        )
        for guide in method.guides:
            guide.merge([parts[-1].deltas[guide.name]])
    spent = perf_counter() - begun
    counts = [part.counts for part in parts]
    return Searched(
        seeds,
        Findings.join([on_cpu(part.findings) for part in parts]),
        torch.cat([count.queries for count in counts]).cpu(),
        torch.cat([count.gradients for count in counts]).cpu(),
        ~torch.cat([count.lost for count in counts]).cpu(),
        torch.cat([count.failing for count in counts]).cpu(),
        spent,
    )


def walk(
    subject: Model, method: Method, seeds: Images, *, seed: int = 0, number: int = 0
) -> tuple[State, Int[Tensor, " n"]]:
    """The state in which the search of one shard ends, and what each seed was asked."""
    campaign = Campaign(subject=subject, method=method, batch=_rows(subject), seed=seed)
    rng = stream(seed, "walk", number, device=subject.device)
    entered = enter(campaign, seeds, 0, rng)
    look = Door(campaign, entered, limits(method.budget, len(seeds)).to(subject.device), (), rng)
    if method.space.keeps_code:
        look.reconstruct()
    state = method.search.init(entered, rng)
    while bool(look.live.any()):
        state = method.search.step(state, look, rng)
    return state, look.counts.queries


def _rows(subject: Model) -> int:
    """How many images a network is given in one call."""
    return 8192 if subject.device.type == "cuda" else 256


@torch.no_grad()
def probabilities(model: Model, x: Tensor) -> Float[Tensor, "m k"]:
    """What `model` says of 8-bit images, in calls of bounded size."""
    parts = [
        model(from_bytes(x[rows].to(model.device))).logits.softmax(1).cpu()
        for rows in chunks(len(x), 256)
    ]
    return torch.cat(parts)


def top_two_gap(p: Float[Tensor, "m k"]) -> Float[Tensor, " m"]:
    """U(x) of SINVAD's Eq. 3: the greatest probability minus the second greatest."""
    best = p.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def on_cpu(findings: Findings) -> Findings:
    """Findings whose tensors are all in main memory."""
    from dataclasses import fields

    return Findings(**{f.name: getattr(findings, f.name).cpu() for f in fields(Findings)})
