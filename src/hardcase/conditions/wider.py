"""Were the declared ranges too kind? The failure rate where every range is wider than declared.

A sample is widened by stretching it away from the unmodified image, up to what a condition can
physically do: a JPEG quality does not fall below 1. Sample 0 of an image is the sample under which
it was measured, so that the rates of several widths differ by the widths alone.

    table = wider_of_shard(model, shard, box, seed=...)   # in any worker
    rates = wider(tables)                                 # once

A single sample per image is most informative for a fixed number of queries: the images are the
units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
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
from hardcase.statistics import bounded_mean_interval
from hardcase.types import Images, Model

__all__ = ["SCALES", "WiderRate", "WiderTable", "stretched", "wider", "wider_of_shard"]

SCALES = (1.25, 1.5)
"""How many times as wide as declared."""


@dataclass(frozen=True, slots=True)
class WiderTable:
    """What happened to the images of a shard under wider ranges.

    Args:
        id: Their names.
        image: The image of each row, where rows are claims.
        shares: By scale, the share of samples that failed.
    """

    id: tuple[str, ...]
    image: tuple[str, ...]
    shares: Mapping[float, Float[Tensor, " n"]]


@dataclass(frozen=True, slots=True)
class WiderRate:
    """The failure rate under ranges of another width.

    Args:
        scale: How many times as wide as declared.
        value: The rate.
        low: The lower end of its 95 % interval.
        high: The upper end.
        images: How many images.
    """

    scale: float
    value: float
    low: float
    high: float
    images: int

    def to_json(self) -> dict[str, Any]:
        """Return what run.json keeps of it."""
        return {
            "scale": self.scale,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "images": self.images,
        }


def wider_of_shard(
    model: Model,
    shard: Images,
    box: ConditionBox,
    *,
    seed: int,
    scales: Sequence[float] = SCALES,
    samples: int = 1,
    rows: int = ROWS,
) -> WiderTable:
    """Return what happens to the images of a shard under wider ranges.

    Args:
        model: The model.
        shard: Images.
        box: The declared conditions.
        seed: The run's seed.
        scales: How many times as wide as declared.
        samples: Samples per image: the first of those of the measurement, stretched.
        rows: Images that are rendered at once on a CPU; changes no result.
    """
    device = model.device
    seeds = seeds_of(shard, box, device)
    drawn = samples_of(box, shard.id, samples, seed=seed, device=device)
    z = drawn.z.flatten(0, 1)
    codes = torch.cat([stretched(box, z, scale) for scale in scales])
    of = torch.arange(len(shard), device=device).repeat_interleave(samples).repeat(len(scales))
    pattern = drawn.pattern.flatten().repeat(len(scales))
    logits = logits_under_conditions(model, box, seeds, of, codes, pattern, rows=rows)
    failed = answered(logits, seeds.y[of]).failed.cpu().reshape(len(scales), len(shard), samples)
    images = tuple(map(image_of, shard.id)) if claim_context(shard.context) else ()
    return WiderTable(shard.id, images, dict(zip(scales, failed.float().mean(2))))


def wider(tables: Sequence[WiderTable]) -> list[WiderRate]:
    """Return the failure rate at every scale, over all shards."""
    if not tables:
        return []
    table = joined_tables(tables)
    rates = list[WiderRate]()
    for scale, shares in table.shares.items():
        values = shares.double().numpy()
        low, high = bounded_mean_interval(values, clusters=table.image)
        rates.append(WiderRate(scale, float(values.mean()), low, high, len(values)))
    return rates


def stretched(box: ConditionBox, z: Float[Tensor, "m d"], scale: float) -> Float[Tensor, "m d"]:
    """Return codes so many times as far from the unmodified image, within what is possible."""
    factors = torch.ones(2, box.size, dtype=z.dtype, device=z.device)  # codes above and below 0
    for i, name in enumerate(box.owner):
        if box.counts[i]:
            row = DECLARABLE[name]
            declared = box.conditions.ranges[name]
            up = _factor(scale, declared.high - row.neutral, row.most - row.neutral)
            down = _factor(scale, row.neutral - declared.low, row.neutral - row.least)
            if row.neutral == 100:  # the least value has the greatest code
                up, down = down, up
            factors[0, i] = up
            factors[1, i] = down
    for field in box.fields:  # a field goes as far in every direction
        factors[:, field.start : field.stop] = factors[0, field.start]
    return z * torch.where(z > 0, factors[0], factors[1])


def _factor(scale: float, declared: float, possible: float) -> float:
    """How many times as far a side of a range can go."""
    return min(scale, possible / declared) if declared > 0 else 1.0
