"""How full the tiles of a device are: rows that a search asks about, of all rows that its networks compute.

A device is played on the processor: calls have one constant tile, and shards ask together as on a GPU. No speed is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import nn

from benchmarks.figures import Figure
from hardcase import data, tensors
from hardcase.campaign import device
from hardcase.campaign.in_memory import search_campaign
from hardcase.context import Context
from hardcase.models import zoo
from hardcase.models.health import usable
from hardcase.models.subject import Subject

COMMAND = "python -m benchmarks tiles"
RESULT = "bench-tiles"
TILE = 64
SEEDS = 1024
SHARD = 128
METHODS = {"feature-perturbation": "gan", "natural": "", "sinvad": "vae"}
"""Methods and their generators."""


def figures() -> Iterator[Figure]:
    train, test = data.load("mnist5k", split="train"), data.load("mnist5k", split="test")
    subject = Subject(zoo.trained_classifier("lenet5", train, test)[0], name="lenet5")
    seeds = usable(subject, test).sample(count=SEEDS, seed=0)
    for name, generator in METHODS.items():
        named = {"generator": generator} if generator else {}
        context = Context.of(subject, seeds, name, train=train, **named)
        alone, together = (filled(context, shared) for shared in (False, True))
        yield Figure(
            name=f"tiles-filled-{name}",
            value=together,
            unit="of the rows of all calls",
            against=f"{alone:.3f} where shards are searched one after the other; tiles of {TILE}, shards of {SHARD}",
            command=COMMAND,
        )


def filled(context: Context, shared: bool) -> float:
    """The share of rows that are no padding, with shards side by side or one after the other."""
    campaign = context.campaign
    seeds = context.seeds.images()
    computed = 0

    def count(_net: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal computed
        computed += len(args[0])

    apart = mock.patch.object(device, "shares_tiles", return_value=False)
    hook = campaign.subject.net.register_forward_pre_hook(count)  # type: ignore[attr-defined]
    try:
        with constant_tiles():
            if shared:
                found = search_campaign(campaign, seeds, shard=SHARD)
            else:
                with apart:
                    found = search_campaign(campaign, seeds, shard=SHARD)
    finally:
        hook.remove()
    return int(found.queries.sum()) / computed


@contextmanager
def constant_tiles() -> Iterator[None]:
    """Every call of a network here has one tile of rows, as on a device."""
    tensors._steady.discard("cpu")
    tensors.use_tile("cpu", TILE)
    try:
        yield
    finally:
        tensors.use_tile("cpu", None)
        tensors._steady.add("cpu")
