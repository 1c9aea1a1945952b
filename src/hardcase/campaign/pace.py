"""How much is computed at once: seeds in a given time, seeds of a shard, rows of a call."""

from __future__ import annotations

import logging
from time import monotonic

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign.record import Campaign
from hardcase.tensors import TILE, steady
from hardcase.types import Budget, Method, Model

__all__ = ["rows_per_call", "seconds_per_seed", "seeds_in_time", "shard_size"]

ONE_SHOT = 4
"""Queries or gradients per seed up to which a shard is over so soon that its files cost more."""
GUIDED = (1024, 4096)
"""The fewest and the most seeds of a shard for methods with guides, by the size of the images: they
learn from each other while they are searched.
"""
ROOM = 2**20
"""Numbers of the images that a CPU is given at once: a gradient keeps a few hundred times that."""
FEWEST = 20
"""Images of photographs that a search on a CPU starts from, at least."""
ENOUGH_TIME = 360.0
"""Seconds that such a search may take, so that it ends with its judge within ten minutes."""
SPENT = 0.4
"""Share of its budget that such a seed spends on the average, rounded up: 0.31 of 60 gradients were
measured, since a seed ends soon after it was found.
"""

_log = logging.getLogger(__name__)


def seeds_in_time(
    campaign: Campaign, x: Float[Tensor, "m c h w"], budget: Budget, *, most: int
) -> int:
    """As many seeds as `ENOUGH_TIME` is enough for, between `FEWEST` and `most`, and said.

    Args:
        campaign: Whose networks are timed.
        x: A few images on their device.
        budget: What a seed may spend.
        most: Not more than these.
    """
    seconds = seconds_per_seed(campaign, x, budget)
    usual = SPENT * seconds
    count = min(most, max(FEWEST, int(ENOUGH_TIME / max(usual, 1e-9))))
    _log.warning(
        "%d seeds: by one timed pass about %.1f s each, at most %.1f s; in all about %.0f min;"
        " --seeds N",
        *(count, usual, seconds, max(1, count * usual / 60)),
    )
    return count


def seconds_per_seed(campaign: Campaign, x: Float[Tensor, "m c h w"], budget: Budget) -> float:
    """How long a seed takes that spends its budget, by one timed pass of every network."""
    graded = budget.gradients is not None

    def asked(model: Model) -> None:
        rows = x.clone().requires_grad_(graded and model.offers == "gradients")
        said = model(rows).logits
        if said.requires_grad:
            torch.autograd.grad(said.sum(), rows)

    spent = 0.0
    for model in (campaign.subject, *campaign.peers, *campaign.witnesses):
        with campaign.arithmetic(), torch.set_grad_enabled(graded):
            asked(model)  # the first call of a network prepares it
            began = monotonic()
            asked(model)
        spent += (monotonic() - began) / len(x)
    return spent * (budget.gradients or budget.queries or 1)


def shard_size(method: Method, numbers: int, device: torch.device) -> int:
    """How many seeds are searched at once.

    Without guides the size changes no finding, so it follows the device; with guides it is the
    same everywhere, and large enough for a GPU.

    Args:
        method: What searches them.
        numbers: Numbers of one image.
        device: Where it computes.
    """
    if method.guides:
        return max(GUIDED[0], min(GUIDED[1], 2**24 // numbers))
    if not steady(device):
        most = 16384 if method.needs == "gradients" else 4096
        return max(32, min(most, 2**27 // numbers))
    limit = method.budget
    shortest = min(limit.queries or ONE_SHOT + 1, limit.gradients or ONE_SHOT + 1)
    most = 256 if shortest <= ONE_SHOT else 32
    return max(32, min(most, 2**23 // numbers))


def rows_per_call(numbers: int, device: torch.device, tile: int | None) -> int:
    """How many rows a network is given at once: as many as keep a GPU busy and still fit.

    Args:
        numbers: Numbers of one image.
        device: Where it computes.
        tile: Rows of which every call is a multiple; None: any number.
    """
    if steady(device):
        return max(tile or TILE, min(256, ROOM // numbers))
    return max(tile or 1, min(8192, 2**22 // numbers))
