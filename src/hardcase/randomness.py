"""Named random streams below one seed: nothing in hardcase draws from global randomness."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor


def stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one named purpose, e.g. ``stream(7, "search", shard)``; streams do not overlap or interact."""
    text = "/".join(map(str, (seed, *names)))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator(device=device).manual_seed(number)


def balanced_order(
    labels: Int[Tensor, " n"], ids: Sequence[str], *, seed: int
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"]]:
    """All rows in a random order in which the classes take turns, and the turn (from 0) of each row in it.

    The order follows from ids, labels and seed alone, however the rows are stored; a shorter draw begins a longer one.
    """
    by_name = torch.tensor(sorted(range(len(ids)), key=ids.__getitem__), dtype=torch.int64)
    drawn = by_name[torch.randperm(len(ids), generator=stream(seed, "sample"))]
    grouped = labels[drawn].argsort(stable=True)
    sorted_labels = labels[drawn][grouped].contiguous()
    turn = torch.empty_like(grouped)
    turn[grouped] = torch.arange(len(ids)) - torch.searchsorted(sorted_labels, sorted_labels)
    order = turn.argsort(stable=True)
    return drawn[order], turn[order]
