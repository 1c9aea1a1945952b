"""The loop of every method: a search walks, `evaluate` does everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.campaign.evaluator import ShardEvaluator as ShardEvaluator
    from hardcase.campaign.loop import encode_images as encode_images, run_shard as run_shard
    from hardcase.campaign.record import (
        Campaign as Campaign,
        Counts as Counts,
        Keep as Keep,
        Limits as Limits,
        Shard as Shard,
        limits as limits,
        parse_keep as parse_keep,
    )

__getattr__, __dir__, __all__ = lazy(__name__)
