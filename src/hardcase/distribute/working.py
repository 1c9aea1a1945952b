"""One shard searched and packed, wherever that happens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from traceback import walk_tb
from typing import Any

from hardcase.campaign import Campaign, Counts, Shard, run_shard
from hardcase.distribute.record import Outcome, Pulse, Task
from hardcase.errors import INTERNAL, USAGE, Problem
from hardcase.store import Packed, findings_table, pack_deltas, spent_table, summarise, to_parquet
from hardcase.types import Guide


def run_task(
    campaign: Campaign, task: Task, guides: Sequence[Guide] = (), pulse: Pulse = lambda counts: None
) -> Outcome:
    """Search one shard and pack what it found. `guides`: as they were when the round began."""
    late = math.inf if task.deadline is None else task.deadline

    def stop(counts: Counts) -> bool:
        pulse(counts)
        return monotonic() >= late

    begun, before = monotonic(), _service(campaign)
    try:
        shard = run_shard(
            campaign, task.images, task.limits, number=task.number, first=task.first, guides=guides, stop=stop
        )
    except (Problem, MemoryError):
        raise
    except Exception as error:
        raise _told(task, error) from error
    extra = {"seconds": round(monotonic() - begun, 4), "service": dict(_service(campaign) - before)}
    return _packed(campaign, task, shard, extra)


def _packed(campaign: Campaign, task: Task, shard: Shard, extra: dict[str, Any]) -> Outcome:
    own = shard.findings.seed.cpu() - task.first
    ids = [task.images.id[i] for i in own.tolist()]
    method = campaign.method
    found = findings_table(shard.findings, task.images.x[own], ids, method=method.name, oracle=method.oracle.kind)
    counts = shard.counts
    late = ["out of time" if late else "done" for late in shard.unfinished.tolist()]
    spent = spent_table(
        {
            "id": list(task.images.id),
            "status": ["skipped: reconstruction" if lost else word for lost, word in zip(counts.lost.tolist(), late)],
            "looked": counts.queries,
            **{name: getattr(counts, name) for name in ("failing", "queries", "gradients", "peer_queries")},
        }
    )
    packed = Packed(to_parquet(found), to_parquet(spent), pack_deltas(shard.deltas))
    return Outcome(task.number, packed, {**summarise(found, spent), **extra})


def _service(campaign: Campaign) -> Counter[str]:
    """What the subject and its peers count of their own accord: calls, retries, answers from a cache, inputs without one."""
    tallies = (getattr(model, "tally", None) for model in (campaign.subject, *campaign.peers))
    return sum((Counter(tally) for tally in tallies if tally), Counter[str]())


def _told(task: Task, error: Exception) -> Problem:
    """An exception as a problem that can travel between processes; what is stored stays."""
    what = f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
    stored = "Shards that were finished are stored; this one is searched again on resume. The log has the traceback."
    if "CUDA" in what or "Accelerator" in what:
        return Problem(
            f"the GPU failed in shard {task.number}: {what}", stored, fix='device = "cpu" in config.toml', code=INTERNAL
        )
    if any(
        frame.f_code.co_name == "forward" and frame.f_globals.get("__name__") == "hardcase.subject"
        for frame, _ in walk_tb(error.__traceback__)
    ):
        return Problem(f"the model raised an error in shard {task.number}: {what}", stored, fix="the model", code=USAGE)
    return Problem(f"shard {task.number} could not be searched: {what}", stored, code=INTERNAL)
