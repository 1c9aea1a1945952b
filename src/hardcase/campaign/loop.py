"""The loop of every method: a search walks, `evaluate` does everything else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import monotonic

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign.claims import asking, moved_claims, stored_label
from hardcase.campaign.evaluator import Ask, ShardEvaluator
from hardcase.campaign.record import Campaign, Counts, Limits, Shard
from hardcase.errors import HardcaseError
from hardcase.oracles import MIN_MARGIN
from hardcase.randomness import Rng, keys_of
from hardcase.tensors import TILE, chunks, from_bytes, margin, steady
from hardcase.types import KINDS, Budget, Findings, Guide, Images, Method, Model, Seeds, State

ONE_SHOT = 4
"""Queries or gradients per seed up to which a shard is over so soon that its files cost more."""
GUIDED = (1024, 4096)
"""The fewest and the most seeds of a shard for methods with guides, by the size of the images: they
learn from each other while they are searched.
"""
ROOM = 2**20
"""Numbers in the images of a call on a CPU: a gradient stores hundreds of times as many."""
FEWEST = 20
"""Images of photographs that a search on a CPU starts from, at least."""
ENOUGH_TIME = 360.0
"""Seconds that such a search may take, so that it ends with its judge within ten minutes."""
SPENT = 0.4
"""Share of its budget that such a seed spends on the average, rounded up: 0.31 of 60 gradients were
measured, since a seed ends soon after its first failure.
"""


_log = logging.getLogger(__name__)


def run_shard(
    campaign: Campaign,
    images: Images,
    limits: Limits,
    *,
    first: int = 0,
    guides: Sequence[Guide] = (),
    stop: Callable[[Counts], bool] = lambda counts: False,
    ask: Ask | None = None,
) -> Shard:
    """Search all `images` at once; only guides let findings of an image depend on other images.

    Args:
        campaign: The method and the networks.
        images: The seeds; their ids, with the campaign's seed, say which random numbers each meets.
        limits: What each seed may cost.
        first: The campaign-wide position of the first image.
        guides: The method's guides and the campaign's criteria, as the round began with them.
        stop: Called before each step; True ends the search.
        ask: What asks about its seeds, see `hardcase.campaign.executor`; None: each call by itself.
    """
    with campaign.arithmetic():
        rng = rng_for(campaign, images, "search")
        seeds = encode_images(campaign, images, first)
        forks = [guide.fork() for guide in guides]
        chance = rng_for(campaign, images, "guides")
        most = limits.to(seeds.y.device)
        evaluate = ShardEvaluator(campaign, seeds, most, forks, chance, ask)
        if campaign.method.space.keeps_code:
            evaluate.reconstruct()
        state = campaign.method.search.init(seeds.copy(), rng)
        while bool(evaluate.live.any()) and not stop(evaluate.counts):
            state = campaign.method.search.step(state, evaluate, rng)
    findings = confirmed = evaluate.recorder.findings()
    if campaign.precision != "strict":
        confirmed = confirm_in_float32(campaign, findings, seeds)
    return Shard(
        confirmed,
        evaluate.counts,
        evaluate.live.cpu(),
        {fork.name: fork.delta() for fork in forks},
        len(findings) - len(confirmed),
        state,
    )


def in_rounds(
    count: int,
    size: int,
    guides: Sequence[Guide],
    deltas: Callable[[int], Mapping[str, State]],
) -> Iterator[range]:
    """The shards of each round, which start from the same guides; merged when the next round
    begins.

    Args:
        count: Shards in all.
        size: Shards of a round.
        guides: What the rounds teach.
        deltas: What the shard of a number has learned, by the name of the guide.

    Raises:
        HardcaseError: If the stored state of a guide is that of another guide.
    """
    for part in chunks(count, size):
        numbers = range(part.start, part.stop)
        yield numbers
        for guide in guides:
            try:
                guide.merge([deltas(number).get(guide.name, {}) for number in numbers])
            except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:
                raise HardcaseError(
                    f"what shards have stored for the guide {guide.name} cannot be put together:"
                    f" {type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
                    fix="a new --out",
                ) from error


@torch.no_grad()
def confirm_in_float32(campaign: Campaign, findings: Findings, seeds: Seeds) -> Findings:
    """The findings that the subject confirms in its usual precision, with its answers.

    A search in fast arithmetic proposes; a finding of kind "label" counts only if the network
    leaves the label in plain float32 as well.
    """
    if not len(findings):
        return findings
    origin = seeds.take(findings.seed - seeds.id[0])
    claims = moved_claims(campaign.method.space, findings.code, origin)
    with replace(campaign, precision="strict").arithmetic():
        parts = [
            asking(campaign.subject, claims and claims.take(rows))(
                from_bytes(findings.x[rows])
            ).logits
            for rows in chunks(len(findings), campaign.batch)
        ]
    logits = torch.cat(parts)
    label = stored_label(logits.argmax(1), logits.shape[1], claims)
    left = margin(logits.softmax(1), findings.expected) >= MIN_MARGIN
    other = findings.kind != KINDS.index("label")
    checked = replace(
        findings,
        predicted=torch.where(other, findings.predicted, label),
        confidence=torch.where(other, findings.confidence, logits.softmax(1).amax(1)),
    )
    return checked.take((left | other).nonzero().squeeze(1))


def encode_images(campaign: Campaign, images: Images, first: int = 0) -> Seeds:
    """The images as seeds in the method's space, on the subject's device."""
    device = campaign.subject.device
    x = from_bytes(images.x.to(device))
    y = images.y.to(device)
    with torch.no_grad():
        z, context = campaign.method.space.encode(x, y, rng_for(campaign, images, "space"))
    context_in = {name: value.to(device) for name, value in images.context.items()}
    return Seeds(
        z, x, y, torch.arange(first, first + len(y), device=device), {**context_in, **context}
    )


def rng_for(campaign: Campaign, images: Images, purpose: str) -> Rng:
    """The random stream of a purpose for these images, on the subject's device."""
    return Rng(campaign.seed, purpose, keys_of(images.id).to(campaign.subject.device))


# How much is computed at once: seeds in a given time, seeds of a shard, rows of a call.


def seeds_in_time(seconds: float, *, most: int) -> int:
    """As many images as `ENOUGH_TIME` is enough for, between `FEWEST` and `most`; logged if fewer
    than `most`."""
    usual = SPENT * seconds
    count = min(most, max(FEWEST, int(ENOUGH_TIME / max(usual, 1e-9))))
    if count < most:
        _log.warning(
            "%d of %d images are searched: by one timed pass about %.1f s each, in all about"
            " %.0f min; more of them: --images N",
            *(count, most, usual, max(1, count * usual / 60)),
        )
    return count


def seconds_per_seed(campaign: Campaign, x: Float[Tensor, "m c h w"], budget: Budget) -> float:
    """How long a seed takes that spends its budget, by a timed pass of every network."""
    graded = budget.gradients is not None

    def query(model: Model) -> None:
        rows = x.clone().requires_grad_(graded and model.offers == "gradients")
        logits = model(rows).logits
        if logits.requires_grad:
            torch.autograd.grad(logits.sum(), rows)

    spent = 0.0
    for model in (campaign.subject, *campaign.peers, *campaign.witnesses):
        with campaign.arithmetic(), torch.set_grad_enabled(graded):
            query(model)  # the first call of a network prepares it
            began = monotonic()
            query(model)
        spent += (monotonic() - began) / len(x)
    return spent * (budget.gradients or budget.queries or 1)


def shard_size(method: Method, numbers: int, device: torch.device) -> int:
    """How many seeds are searched at once.

    Without guides the size changes no finding, so it follows the device; with guides it is the
    same everywhere, and large enough for a GPU.
    """
    if method.guides:
        return max(GUIDED[0], min(GUIDED[1], 2**24 // numbers))
    if not steady(device):
        most = 16384 if method.needs == "gradients" else 4096
        return max(32, min(most, 2**27 // numbers))
    limit = method.budget
    shortest = min(limit.queries or ONE_SHOT + 1, limit.gradients or ONE_SHOT + 1)
    most = 256 if shortest <= ONE_SHOT else 32
    return max(32, min(most, 2**23 // numbers))


def rows_per_call(numbers: int, device: torch.device, tile: int | None) -> int:
    """Rows per call of a network: enough to keep a GPU busy, within its memory."""
    if steady(device):
        return max(tile or TILE, min(256, ROOM // numbers))
    return max(tile or 1, min(8192, 2**22 // numbers))
