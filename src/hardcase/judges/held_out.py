"""A second judge for spaces that the usual one was taught about: its lessons leave that family out.

A panel that learned that bending keeps a label cannot be surprised by bent digits, so part of what
it confirms is so by construction. The second one learned neither that the searched kind of change
keeps a label nor that it loses one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hardcase.judges import teach
from hardcase.judges.judge import PanelJudge
from hardcase.judges.panel import Panel
from hardcase.judges.teach import Tell
from hardcase.runs.results import Run
from hardcase.statistics import Rate
from hardcase.types import Images, Verdicts

FAMILIES = {
    "bending": ("warp", "camera"),
    "retouching": ("light", "focus", "sensor", "weather"),
}
"""Parts of appearance by the family of lessons (`judges.synthetic.FAMILIES`) that treats them."""


def families_of(run: Run) -> tuple[str, ...]:
    """The families of lessons that the space of a run belongs to; empty for any other space."""
    text = str((run.record.get("space") or {}).get("text") or "")
    parts = re.findall(r"[a-z]+", re.sub(r"\([^)]*\)", "", text))
    return tuple(name for name, own in FAMILIES.items() if any(part in own for part in parts))


def untaught_judge(
    run: Run,
    judge: PanelJudge,
    first: Images,
    second: Images,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Tell = None,
    make: bool = False,
) -> PanelJudge | None:
    """The judge of the same data whose lessons leave out what was searched.

    Args:
        run: A stored run.
        judge: Its usual judge.
        first: The images that a judge of the run learns from.
        second: The split that holds its seeds.
        seed: Of the judge's training.
        device: Where it computes.
        progress: Told how its training goes.
        make: Train it if it is not in the cache.

    Returns:
        None if the usual judge was not taught about this space, or there is no other and none is to
        be made.
    """
    families = families_of(run)
    if not families or not isinstance(judge.panel, Panel):
        return None
    usual = teach.schooling_for(first, second, seed=seed, device=device)
    schooling = replace(usual, untaught=families)
    kept = teach.folder(first, second, seed=seed, schooling=schooling)
    if not make and not (kept / "card.json").is_file():
        return None
    return teach.trained(
        first, second, seed=seed, schooling=schooling, device=device, progress=progress
    )


def asked_beside(run: Run, judge: PanelJudge, said: Verdicts) -> dict[str, Any]:
    """What run.json and the report say of the second judge.

    Args:
        run: A stored run.
        judge: The one whose lessons leave out what was searched.
        said: What it says of the findings.
    """
    names = run.findings["seed"].to_pylist()
    seeds = {
        seed
        for seed, valid, kept in zip(names, said.valid, said.label_kept, strict=True)
        if valid and kept
    }
    attempted = run.counts()["funnel"]["attempted"] or 0
    return {
        "untaught": list(families_of(run)),
        "weights": judge.card["weights"],
        "accuracy": judge.card["accuracy"],
        "measured_images": judge.card["measured_images"],
        "confirmed": Rate(len(seeds), attempted).to_json(),
    }


def beside_in_words(entry: Mapping[str, Any]) -> str:
    """The line that a summary says of the second judge."""
    families = " and ".join(entry["untaught"])
    rate = Rate.from_json(entry["confirmed"])
    return f"beside: a judge that was never taught about {families} confirms {rate}"
