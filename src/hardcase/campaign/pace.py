"""How many seeds a few minutes are enough for, by one timed pass of every network."""

from __future__ import annotations

import logging
from time import monotonic

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.campaign.record import Campaign
from hardcase.types import Budget, Model

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
