"""An evaluator without a search: tests walk by hand."""

import torch

from hardcase.campaign.evaluator import ShardEvaluator
from hardcase.campaign.loop import encode_images, rng_for
from hardcase.campaign.record import Campaign, Limits, parse_keep
from hardcase.objectives import Margin, with_witnesses
from hardcase.oracles import LeavesLabel
from hardcase.spaces.pixel import Pixels
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, Method

MANY = 10**9


class NoSearch:
    """Whoever walks by hand needs no search."""

    def init(self, seeds, rng):
        return {}

    def step(self, state, evaluate, rng):
        evaluate.retire(evaluate.live.nonzero().squeeze(1))
        return state


def method(**changes):
    given = {
        "name": "by hand",
        "space": Pixels(),
        "search": NoSearch(),
        "objective": Margin(),
        "oracle": LeavesLabel(),
        "needs": "scores",
        "until": "budget",
        "budget": Budget(queries=1),
    }
    return Method(**{**given, **changes})


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
    chance = rng_for(campaign, images, "guides")
    return ShardEvaluator(campaign, encode_images(campaign, images), limits, (), chance)
