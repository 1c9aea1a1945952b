"""An evaluator without a search: tests walk by hand."""

from dataclasses import replace

import torch

from hardcase.campaign.evaluator import ShardEvaluator
from hardcase.campaign.loop import enter, numbers
from hardcase.campaign.record import Campaign, Limits, parse_keep
from hardcase.methods.parts import no_search
from hardcase.objectives import with_witnesses
from hardcase.testing.toys import toy_images, toy_subject

MANY = 10**9


def method(**changes):
    return replace(no_search(), **{"until": "budget", "needs": "scores", **changes})


def evaluator(
    images=None, *, queries=MANY, gradients=MANY, subject=None, witnesses=(), keep="best", **changes
):
    images = toy_images() if images is None else images
    made = method(**changes)
    campaign = Campaign(
        subject=subject or toy_subject(),
        method=with_witnesses(made) if witnesses else made,
        witnesses=witnesses,
        keep=parse_keep(keep),
    )
    n = len(images)
    limits = Limits(torch.full((n,), queries), torch.full((n,), gradients))
    chance = numbers(campaign, images, "guides")
    return ShardEvaluator(campaign, enter(campaign, images), limits, (), chance)
