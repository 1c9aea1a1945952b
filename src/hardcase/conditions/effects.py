"""Which conditions cost most: by how much the failure rate falls with a condition held at neutral.

The effect of a condition is a *net* effect. Holding it at neutral repairs samples and breaks
others, often as many, so failing samples alone would make every condition look costly. Samples that
fail are all evaluated again with the condition at neutral. Of those that pass, the samples nearest
to the boundary are all evaluated again, since nearly all that newly fail are among them; of the
others a random sample per image, weighted by how many it represents. The mean over samples of

    F (1 - N) - (1 - F) B N / q

is then unbiased: F says whether a sample fails, N whether it does with the condition at neutral, B
whether it was chosen, and q how likely that was. With a single chosen sample per image the figure
of an image lies between -1 and 1, as the effect itself does, so that an interval needs no wider
range. Images (of claims: the images that they are about) are the units.

    table = effects_of_shard(model, shard, box, seed=..., failed=..., margins=...)   # in any worker
    result = effects(tables) # once

A shard's table follows from its arguments alone. It costs about 1.3 queries per image and condition
where a fortieth of the samples fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hardcase.campaign.claims import claim_context, image_of
from hardcase.conditions.box import ConditionBox, samples_of
from hardcase.conditions.risk import (
    ROWS,
    answered,
    joined_tables,
    logits_under_conditions,
    seeds_of,
)
from hardcase.randomness import Rng, keys_of
from hardcase.statistics import bounded_mean_interval
from hardcase.types import Images, Model

__all__ = ["Effect", "EffectTable", "effects", "effects_of_shard", "near_margin"]

NEAR = 0.05
"""Share of the passing samples that are all evaluated again: on digits the nearest twentieth holds
91 % of those that newly fail."""


@dataclass(frozen=True, slots=True)
class EffectTable:
    """The estimated net effect of every condition, image by image.

    Args:
        id: Names of the images.
        image: The image of each row, where rows are claims.
        difference: By condition, an unbiased estimate of the share of the image's samples that
            fail, minus the share that fails with that condition at neutral.
        queries: How many samples of each image were evaluated again, per condition.
    """

    id: tuple[str, ...]
    image: tuple[str, ...]
    difference: Mapping[str, Float[Tensor, " n"]]
    queries: Int[Tensor, " n"]


@dataclass(frozen=True, slots=True)
class Effect:
    """By how much the failure rate falls if a condition is held at neutral.

    Args:
        condition: The name of the condition.
        value: The estimate; below 0 where the condition repairs more than it breaks.
        low: The lower end of its interval; the intervals of all conditions hold together.
        high: The upper end.
    """

    condition: str
    value: float
    low: float
    high: float

    @property
    def shown(self) -> bool:
        """Whether there is an effect: the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, Any]:
        """Return what run.json keeps of it."""
        return {
            "condition": self.condition,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "shown": self.shown,
        }


def effects_of_shard(
    model: Model,
    shard: Images,
    box: ConditionBox,
    *,
    seed: int,
    failed: Bool[Tensor, "n k"],
    margins: Float[Tensor, "n k"] | None,
    near: float | None = None,
    rows: int = ROWS,
) -> EffectTable:
    """Return the net effects of all conditions on the images of a shard.

    Args:
        model: The model.
        shard: Images that were measured under the samples of `box` by this seed.
        box: The declared conditions. Of a single condition nothing is evaluated: its effect is the
            robustness gap.
        seed: The run's seed.
        failed: Which samples of each image failed.
        margins: The lead of another class over the label in each sample, in logits; below 0 where
            the sample passed. None where the model answers by labels alone: every sample is then
            evaluated again.
        near: Passing samples whose margin is at least `near` are all evaluated again; by
            default the nearest twentieth of this shard's. This choice changes how precise the
            estimate is, never what it estimates.
        rows: Images that are rendered at once on a CPU; changes no result.
    """
    names = tuple(box.conditions.ranges)
    images = tuple(map(image_of, shard.id)) if claim_context(shard.context) else ()
    if len(names) < 2:
        nothing = torch.zeros(len(shard), dtype=torch.int64)
        return EffectTable(shard.id, images, {}, nothing)
    draw = Rng(seed, "effects", keys_of(shard.id)).uniform(
        torch.arange(len(shard)), failed.shape[1:]
    )
    weight = weights_of_samples(failed, margins, draw, near=near)
    device = model.device
    seeds = seeds_of(shard, box, device)
    samples = samples_of(box, shard.id, failed.shape[1], seed=seed, device=device)
    of, sample = weight.nonzero().to(device).unbind(1)
    z = samples.z[of, sample]
    # all conditions in one call: a device computes whole tiles of rows
    neutral = torch.cat([box.held(z, name) for name in names])
    every = of.repeat(len(names))
    pattern = samples.pattern[of, sample].repeat(len(names))
    logits = logits_under_conditions(model, box, seeds, every, neutral, pattern, rows=rows)
    again = answered(logits, seeds.y[every]).failed.cpu().reshape(len(names), -1)
    return EffectTable(
        id=shard.id,
        image=images,
        difference={
            name: differences(failed, weight, answers) for name, answers in zip(names, again)
        },
        queries=(weight > 0).sum(1),
    )


def near_margin(failed: Bool[Tensor, "n k"], margins: Float[Tensor, "n k"]) -> float:
    """Return the margin from which on a passing sample is in the nearest twentieth."""
    passing = margins[~failed]
    if not len(passing):
        return 0.0
    place = int((1 - NEAR) * (len(passing) - 1))
    return float(passing.sort().values[place])  # torch's quantile takes no more than 2^24 values


def weights_of_samples(
    failed: Bool[Tensor, "n k"],
    margins: Float[Tensor, "n k"] | None,
    draw: Float[Tensor, "n k"],
    *,
    near: float | None = None,
) -> Float[Tensor, "n k"]:
    """Return the weight of each sample: how many it represents; 0 where it is not evaluated again.

    Args:
        failed: Which samples failed.
        margins: The lead of another class over the label; None: every sample has weight 1.
        draw: A uniform number for each sample, which chooses among the far samples.
        near: Passing samples from this margin on stand for themselves.
    """
    if margins is None:
        return torch.ones_like(draw)
    if near is None:
        near = near_margin(failed, margins)
    alone = failed | (margins >= near) | margins.isnan()
    far = ~alone
    first = draw.masked_fill(alone, -1).argmax(1, keepdim=True)
    chosen = torch.zeros_like(far).scatter_(1, first, value=True) & far
    stands_for = far.sum(1, keepdim=True).to(draw.dtype)
    return torch.where(chosen, stands_for, alone.to(draw.dtype))


def differences(
    failed: Bool[Tensor, "n k"], weight: Float[Tensor, "n k"], again: Bool[Tensor, " m"]
) -> Float[Tensor, " n"]:
    """Return the estimated net effect on every image.

    Args:
        failed: Which samples failed.
        weight: How many samples each represents.
        again: Whether those with a weight failed again with the condition at neutral.
    """
    change = torch.zeros_like(weight)
    change[weight > 0] = failed[weight > 0].to(weight.dtype) - again.to(weight.dtype)
    return (change * weight).mean(1)


def effects(tables: Sequence[EffectTable], *, level: float = 0.95) -> list[Effect]:
    """Return the effects of all conditions over all shards, the largest first.

    Args:
        tables: The results of `effects_of_shard` for every shard.
        level: How sure the intervals of all conditions are together (Bonferroni).
    """
    if not tables or not tables[0].difference:
        return []
    table = joined_tables(tables)
    each = 1 - (1 - level) / len(table.difference)
    effects = list[Effect]()
    for name, difference in table.difference.items():
        values = difference.double().numpy()
        low, high = bounded_mean_interval(values, -1.0, 1.0, level=each, clusters=table.image)
        effects.append(Effect(name, float(np.mean(values)), low, high))
    return sorted(effects, key=lambda effect: -effect.value)
