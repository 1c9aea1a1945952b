"""One loop for every method: a search walks, `evaluate` does everything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hardcase.lazy import lazy

if TYPE_CHECKING:
    from hardcase.campaign.evaluator import ShardEvaluator
    from hardcase.campaign.loop import enter, run_shard
    from hardcase.campaign.record import Campaign, Counts, Keep, Limits, Shard, limits, parse_keep

__getattr__, __dir__, __all__ = lazy(__name__)
