"""Which seeds a run starts from: asked of the subject once, then read from the run folder."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hardcase.campaign import Campaign
from hardcase.errors import Problem
from hardcase.health import answers
from hardcase.store import Store, seeds_table
from hardcase.store.mending import seeds_are_whole, set_aside
from hardcase.store.tables import SEEDS, read
from hardcase.types import Images

UNUSABLE = ("skipped: misclassified", "skipped: non-finite")


def seed_rows(images: Images, logits: Float[Tensor, "n k"]) -> pa.Table:
    """The table of seeds at the beginning of a run: only rightly classified ones wait to be searched from."""
    probabilities = logits.softmax(1)
    zeros = [0] * len(images)
    columns = {
        "id": list(images.id),
        "label": images.y.tolist(),
        "predicted": probabilities.argmax(1).tolist(),
        "confidence": probabilities.amax(1).tolist(),
        "status": _status(images, logits),
        **dict.fromkeys(("looked", "failing", "queries", "gradients", "peer_queries"), zeros),
    }
    return seeds_table(columns, images.x)


def usable(rows: pa.Table) -> Int[Tensor, " u"]:
    """The positions of the seeds that are searched from."""
    waiting = [status not in UNUSABLE for status in rows["status"].to_pylist()]
    return torch.tensor(waiting, dtype=torch.bool).nonzero().squeeze(1)


def stored_rows(store: Store, campaign: Campaign, images: Images) -> tuple[pa.Table, list[str]]:
    """The seeds' names and states as they are stored; if they are damaged, the subject is asked again. Also notes."""
    path = store.folder / "seeds.parquet"
    try:
        rows = read(path, SEEDS, ["id", "status"] if seeds_are_whole(store) else None)
        if rows["id"].to_pylist() == list(images.id):  # making an array of them would import pandas
            return rows, []
    except Problem:
        pass
    place = set_aside(path)
    rows = seed_rows(images, answers(campaign.subject, images, campaign.batch))
    store.write_seeds(rows)
    why = f"was damaged and is set aside as {place.name}" if place else "was missing"
    return rows, [f"seeds.parquet {why}; the subject was asked again"]


def _status(images: Images, logits: Float[Tensor, "n k"]) -> list[Any]:
    finite = logits.isfinite().all(1).tolist()
    right = (logits.argmax(1) == images.y).tolist()
    return [
        "skipped: non-finite" if not good else "waiting" if hit else "skipped: misclassified"
        for good, hit in zip(finite, right)
    ]
