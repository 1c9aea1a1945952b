"""One loop for every method: a search walks, `look` does everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hardcase.campaign.look import Door
from hardcase.campaign.record import (
    Campaign,
    Counts,
    Limits,
    Shard,
)
from hardcase.randomness import stream
from hardcase.tensors import from_bytes
from hardcase.types import Guide, Images, Seeds

# --- One loop for every method: a search walks, `look` does everything else.


def run_shard(
    campaign: Campaign,
    images: Images,
    limits: Limits,
    *,
    number: int = 0,
    first: int = 0,
    guides: Sequence[Guide] = (),
    stop: Callable[[Counts], bool] = lambda counts: False,
) -> Shard:
    """Search all `images` at once. `first` is the campaign-wide position of the first of them; `stop` is asked before each step."""
    rng = _stream(campaign, "search", number)
    seeds = enter(campaign, images, first, _stream(campaign, "space", number))
    forks = [guide.fork() for guide in guides]
    look = Door(
        campaign, seeds, limits.to(_device(campaign)), forks, _stream(campaign, "guides", number)
    )
    if campaign.method.space.keeps_code:
        look.reconstruct()
    state = campaign.method.search.init(seeds, rng)
    while bool(look.live.any()) and not stop(look.counts):
        state = campaign.method.search.step(state, look, rng)
    unfinished = look.live.cpu()
    return Shard(
        look.recorder.findings(),
        look.counts,
        unfinished,
        {fork.name: fork.delta() for fork in forks},
    )


def enter(campaign: Campaign, images: Images, first: int, rng: torch.Generator) -> Seeds:
    """The images as seeds in the method's space, on the subject's device."""
    device = _device(campaign)
    x, y = from_bytes(images.x.to(device)), images.y.to(device)
    with torch.no_grad():
        z, context = campaign.method.space.encode(x, y, rng)
    known = {name: value.to(device) for name, value in images.context.items()}
    return Seeds(z, x, y, torch.arange(first, first + len(y), device=device), {**known, **context})


def _stream(campaign: Campaign, purpose: str, number: int) -> torch.Generator:
    return stream(campaign.seed, purpose, number, device=_device(campaign))


def _device(campaign: Campaign) -> torch.device:
    return campaign.subject.device
