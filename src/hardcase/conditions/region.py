"""Where a model is worst: a region of the declared conditions, named in words and measured anew.

At most three limits on declared conditions, such as "bend over 2 %, fading over 20 %", are *chosen*
on the samples of the open images, and the failure rate inside them is *measured* on fresh samples
of the reserved images, which chose nothing. So the choice may search as widely as it likes, and the
bound of the rate holds all the same. No region is reported unless the rate inside is above the
overall rate on the reserved images.

    region = choose_region(box, ids, failed, seed=...)                                   # once
    table = region_of_shard(model, shard, box, region, seed=..., failed=...)    # in any worker
    result = worst_region(region, tables) # once

The search is bump hunting in the sense of J. H. Friedman and N. I. Fisher, "Bump hunting in
high-dimensional data", Statistics and Computing 9, 1999, with ends at quarters of declared ranges
in place of peeled quantiles, so that the ends are numbers which people would have written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.claims import claim_context, image_of
from hardcase.conditions.box import ConditionBox, samples_of
from hardcase.conditions.declared import DECLARABLE
from hardcase.conditions.risk import (
    ROWS,
    answered,
    joined_tables,
    logits_under_conditions,
    seeds_of,
)
from hardcase.randomness import Rng, keys_of, reserved
from hardcase.statistics import ONE_SIDED, bounded_mean_interval
from hardcase.types import Images, Model

__all__ = ["Limit", "Region", "RegionTable", "WorstRegion", "choose_region", "region_of_shard"]
__all__ += ["worst_region"]

Side = Literal["over", "under", "beyond"]
"""Which part of a range: above or below the neutral value, or far from it on either side."""
ENDS = (0.25, 0.5, 0.75)
"""Where a region may begin, between the neutral value and the end of a declared range."""
MOST_LIMITS = 3
"""Conditions that a region limits, at most: people must be able to say it."""
SMALLEST = 0.05
"""The least share of all samples that a region contains."""
BEAM = 24
"""Regions that are narrowed further, of each number of limits."""
CERTAIN = ONE_SIDED
"""The normal quantile of the bound by which regions are compared."""
SAMPLES = 4
"""Fresh samples in the region per reserved image."""
SPARE = 3
"""How many times as many samples are expected inside the region as are needed."""
HARDEST = 0.1
"""Share of the samples that count as hard where margins are available."""
EXAMPLES = 6
"""Failing samples in the region that are named to be shown."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a region.

    Args:
        condition: The declared condition.
        side: Over or under a value, or beyond it on either side.
        share: How far towards the end of the declared range the region begins.
        value: The same in the condition's unit; of `beyond`, the distance from neutral where both
            sides are alike.
    """

    condition: str
    side: Side
    share: float
    value: float

    def __str__(self) -> str:
        unit = f" {DECLARABLE[self.condition].unit}".rstrip()
        sign = "±" if self.side == "beyond" else ""
        return f"{self.condition} {self.side} {sign}{self.value:.3g}{unit}"


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the declared conditions, chosen on the open images.

    Args:
        limits: Its ends, each on another condition.
        samples: The share of the samples of open images that lie inside.
        rate: How often these fail: the figure by which the region was chosen, so too high.
        examples: Failing samples of open images inside, each of another image: id and index.
    """

    limits: tuple[Limit, ...]
    samples: float
    rate: float
    examples: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return ", ".join(map(str, self.limits))

    def contains(self, box: ConditionBox, z: Float[Tensor, "m d"]) -> Bool[Tensor, " m"]:
        """Return which codes lie inside."""
        inside = torch.ones(len(z), dtype=torch.bool, device=z.device)
        for limit in self.limits:
            inside &= _reaches(_severity(box, z, limit.condition), limit.side, limit.share)
        return inside


@dataclass(frozen=True, slots=True)
class RegionTable:
    """What happened to the reserved images of a shard inside a region.

    Args:
        id: Their names.
        image: The image of each row, where rows are claims.
        inside: The share of fresh samples inside the region that failed.
        overall: The share of the measured samples that failed.
    """

    id: tuple[str, ...]
    image: tuple[str, ...]
    inside: Float[Tensor, " n"]
    overall: Float[Tensor, " n"]


@dataclass(frozen=True, slots=True)
class WorstRegion:
    """The failure rate inside a region, on images that did not choose it.

    Args:
        region: The region.
        value: The rate.
        low: Its lower 95 % bound.
        overall: The rate of the same images under all declared conditions.
        images: How many images.
    """

    region: Region
    value: float
    low: float
    overall: float
    images: int

    def to_json(self) -> dict[str, Any]:
        """Return what run.json keeps of it."""
        return {
            "words": str(self.region),
            "limits": [
                {"condition": limit.condition, "side": limit.side, "value": limit.value}
                for limit in self.region.limits
            ],
            "value": self.value,
            "low": self.low,
            "overall": self.overall,
            "images": self.images,
            "share_of_samples": self.region.samples,
            "examples": [{"id": name, "sample": k} for name, k in self.region.examples],
        }


def choose_region(
    box: ConditionBox,
    ids: Sequence[str],
    failed: Bool[Tensor, "n k"],
    *,
    seed: int,
    margins: Float[Tensor, "n k"] | None = None,
    unmodified: Bool[Tensor, " n"] | None = None,
    claims: bool = False,
) -> Region | None:
    """Return the region in which open images fail most; None where none stands out.

    Args:
        box: The declared conditions.
        ids: Names of the measured images; reserved ones are left out here.
        failed: Which of their samples failed.
        seed: The run's seed.
        margins: The lead of another class over the label in each sample, in logits. Where the rate
            is low, failing samples are rare, and most of them belong to a handful of images. So the
            region is then chosen by the tenth of the samples whose margins exceed those of their
            image's others most.
        unmodified: Which images the model misreads as they are; they are no good examples.
        claims: Whether rows are claims; an image may have more than a single claim.
    """
    held = reserved([image_of(name) for name in ids] if claims else ids)
    rows = (~held).nonzero().squeeze(1)
    names = [ids[row] for row in rows.tolist()]
    failed = failed[rows]
    if not bool(failed.any()):
        return None
    samples = samples_of(box, names, failed.shape[1], seed=seed)
    z = samples.z.flatten(0, 1)
    # The region is chosen on open images only and measured on the reserved ones: a choice by the
    # same images would make every region look worse than it is.
    hard = failed if margins is None else _hard(failed, margins[rows])
    limits = _best_limits(box, z, hard.flatten())
    if not limits:
        return None
    inside = Region(limits, 0.0, 0.0).contains(box, z).reshape(failed.shape)
    shown = failed & inside
    if unmodified is not None:
        shown &= ~unmodified[rows][:, None]
    examples = list[tuple[str, int]]()
    order = Rng(seed, "region examples", keys_of(names)).uniform(torch.arange(len(names)))
    for row in order.argsort(stable=True).tolist():
        if bool(shown[row].any()) and len(examples) < EXAMPLES:
            examples.append((names[row], int(shown[row].int().argmax())))
    share = float(inside.double().mean())
    return Region(limits, share, float(failed[inside].double().mean()), tuple(examples))


def region_of_shard(
    model: Model,
    shard: Images,
    box: ConditionBox,
    region: Region,
    *,
    seed: int,
    failed: Bool[Tensor, "n k"],
    samples: int = SAMPLES,
    rows: int = ROWS,
) -> RegionTable:
    """Return what happens to the reserved images of a shard inside a region.

    Args:
        model: The model.
        shard: Measured images; the open ones among them are left out here.
        box: The declared conditions.
        region: What `choose_region` chose.
        seed: The run's seed.
        failed: Which of the measured samples of each image failed.
        samples: Fresh samples per image, all inside the region.
        rows: Images that are rendered at once on a CPU; changes no result.
    """
    claims = bool(claim_context(shard.context))
    held = reserved(list(map(image_of, shard.id)) if claims else shard.id)
    failed = failed[held]
    shard = shard.take(held.nonzero().squeeze(1))
    images = tuple(map(image_of, shard.id)) if claims else ()
    if not len(shard):
        return RegionTable((), (), torch.zeros(0), torch.zeros(0))
    device = model.device
    z, pattern, lies_inside = samples_inside(
        box, shard.id, region, samples, seed=seed, device=device
    )
    of = torch.arange(len(shard), device=device).repeat_interleave(samples)
    seeds = seeds_of(shard, box, device)
    logits = logits_under_conditions(
        model, box, seeds, of, z.flatten(0, 1), pattern.flatten(), rows=rows
    )
    fails = answered(logits, seeds.y[of]).failed.reshape(pattern.shape) & lies_inside
    share = fails.sum(1) / lies_inside.sum(1).clamp_min(1)
    return RegionTable(shard.id, images, share.cpu(), failed.float().mean(1))


def samples_inside(
    box: ConditionBox,
    ids: Sequence[str],
    region: Region,
    count: int,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> tuple[Float[Tensor, "n k d"], Int[Tensor, "n k"], Bool[Tensor, "n k"]]:
    """Return fresh samples inside a region: codes, what their patterns follow from, and which of
    them lie inside; the others fill up where hardly any did.
    """
    candidates = 2 ** ceil(log2(SPARE * count / region.samples))  # fills the ranges best
    drawn = samples_of(box, ids, candidates, seed=seed, device=device, stream="region")
    inside = region.contains(box, drawn.z.flatten(0, 1)).reshape(drawn.pattern.shape)
    first = (~inside).int().argsort(dim=1, stable=True)[:, :count]
    of = torch.arange(len(ids), device=device)[:, None]
    return drawn.z[of, first], drawn.pattern[of, first], inside.gather(1, first)


def worst_region(region: Region | None, tables: Sequence[RegionTable]) -> WorstRegion | None:
    """Return how often reserved images fail in a region; None where not more often than overall.

    Args:
        region: The result of `choose_region`; None: no region.
        tables: The results of `region_of_shard` for every shard.
    """
    table = joined_tables(tables) if tables else None
    if region is None or table is None or not len(table.id):
        return None
    inside = table.inside.double().numpy()
    overall = table.overall.double().numpy()
    above = bounded_mean_interval(inside - overall, -1.0, 1.0, clusters=table.image, side="low")
    if above.low <= 0:
        return None
    low = bounded_mean_interval(inside, clusters=table.image, side="low").low
    return WorstRegion(region, float(inside.mean()), low, float(overall.mean()), len(table.id))


# --- the search


def _hard(failed: Bool[Tensor, "n k"], margins: Float[Tensor, "n k"]) -> Bool[Tensor, "n k"]:
    """The tenth of the samples that are hardest in comparison with their image's others.

    Margins with only two or three values, as those of labels alone, have many ties at the last
    place: then only harder samples, and if there are none, the failing samples.
    """
    finite = margins.double().nan_to_num(posinf=1e6, neginf=-1e6)
    above = finite - finite.mean(1, keepdim=True)
    place = int((1 - HARDEST) * (above.numel() - 1))
    least = above.flatten().sort().values[place]
    hard = above >= least
    if float(hard.double().mean()) > 2 * HARDEST:
        hard = above > least
    return hard if bool(hard.any()) else failed


def _best_limits(
    box: ConditionBox, z: Float[Tensor, "m d"], hard: Bool[Tensor, " m"]
) -> tuple[Limit, ...]:
    """The limits inside which the bound of the hard samples' share is highest; none where that is
    nowhere higher than overall.
    """
    limits = [limit for name in box.conditions.ranges for limit in _limits(box, name)]
    severities = {name: _severity(box, z, name) for name in box.conditions.ranges}
    single = torch.stack(
        [_reaches(severities[limit_.condition], limit_.side, limit_.share) for limit_ in limits]
    ).double()  # counts are products of matrices
    hits = hard.double()
    best: tuple[tuple[int, ...], float] = (
        (),
        float(_lower(hits.sum(), hits.new_tensor(len(hits)))),
    )
    beam: list[tuple[int, ...]] = [()]
    for _ in range(MOST_LIMITS):
        inside = torch.stack([single[list(chosen)].prod(0) for chosen in beam])
        total = inside @ single.T
        bound = _lower((inside * hits) @ single.T, total)
        bound[total < SMALLEST * len(hits)] = -1
        for place, chosen in enumerate(beam):
            chosen_conditions = {limits[i].condition for i in chosen}
            for i, limit in enumerate(limits):
                # the same conditions in another order are the same region
                if limit.condition in chosen_conditions or (chosen and i < chosen[-1]):
                    bound[place, i] = -1
        order = bound.flatten().argsort(descending=True, stable=True)[:BEAM].tolist()
        # A beam rather than the best alone: two limits that are weak by themselves may meet in a
        # corner where the model is bad.
        bounds = [divmod(i, len(limits)) for i in order if bound.flatten()[i] > 0]
        if bounds and bound[bounds[0]] > best[1]:
            place, i = bounds[0]
            best = ((*beam[place], i), float(bound[place, i]))
        beam = [(*beam[place], i) for place, i in bounds]
        if not beam:
            break
    return tuple(limits[i] for i in best[0])


def _lower(hits: Tensor, total: Tensor) -> Tensor:
    """The lower end of Wilson's interval of a share; -1 of nothing."""
    count = total.clamp_min(1)
    share = hits / count
    weight = CERTAIN**2 / count
    half = CERTAIN * (share * (1 - share) / count + weight / (4 * count)).sqrt()
    return torch.where(total > 0, (share + weight / 2 - half) / (1 + weight), -1.0)


def _limits(box: ConditionBox, name: str) -> list[Limit]:
    """All limits that a region may have on a condition."""
    declared = box.conditions.ranges[name]
    neutral = DECLARABLE[name].neutral
    down = neutral - declared.low
    up = declared.high - neutral
    both = neutral == 0 and abs(down - up) <= 1e-9 * up
    bounds = list[Limit]()
    for share in ENDS:
        if both:
            bounds.append(Limit(name, "beyond", share, share * up))
        if len(_columns(box, name)) > 1:
            continue  # a size without a sign
        if up > 0:
            bounds.append(Limit(name, "over", share, neutral + share * up))
        if down > 0:
            bounds.append(Limit(name, "under", share, neutral - share * down))
    return bounds


def _columns(box: ConditionBox, name: str) -> list[int]:
    """The columns that hold the amount of a condition; of a field a single column for all."""
    fields = [field.start for field in box.fields if box.owner[field.start] == name]
    columns = [i for i, owner in enumerate(box.owner) if owner == name and box.counts[i]]
    return fields or columns


def _severity(box: ConditionBox, z: Float[Tensor, "m d"], name: str) -> Float[Tensor, " m"]:
    """The amount of a condition in each code: 1 and -1 at the ends of its declared range.

    Of a condition with more numbers, such as a shift, the greatest size.
    """
    columns = _columns(box, name)
    for field in box.fields:
        if field.start == columns[0]:
            return field.lengths(z).amax(1) / box.high[field.start]
    code = z[:, columns]
    low, high = (
        torch.tensor([ends[i] for i in columns], dtype=z.dtype, device=z.device)
        for ends in (box.low, box.high)
    )
    signed = torch.where(code > 0, code / high, -code / low).where(code != 0, 0.0)
    if len(columns) > 1:
        return signed.abs().amax(1)
    # of what is neutral at 100 the least value has the greatest code
    return -signed[:, 0] if DECLARABLE[name].neutral == 100 else signed[:, 0]


def _reaches(severity: Float[Tensor, " m"], side: Side, share: float) -> Bool[Tensor, " m"]:
    """Which rows lie beyond a share of the range on that side of neutral."""
    if side == "beyond":
        return severity.abs() > share
    return severity > share if side == "over" else severity < -share
