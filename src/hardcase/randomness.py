"""Named random streams below one seed: nothing in hardcase draws from global randomness."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator of one named purpose, e.g. ``stream(7, "search", shard)``; streams do not overlap or interact."""
    text = "/".join(map(str, (seed, *names)))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator(device=device).manual_seed(number)
