"""Gradients for a black box: stand-ins lead, the subject's answers correct them, nothing of it is charged as its gradient."""

import pytest
import torch

from hardcase.campaign.in_memory import search_campaign
from hardcase.campaign.record import Campaign
from hardcase.errors import Problem
from hardcase.methods.natural import natural_blackbox
from hardcase.models.subject import Subject
from hardcase.models.wrappers import LabelOnly
from hardcase.randomness import Rng
from hardcase.searches.standins import StandIns
from hardcase.spaces.pixel import Pixels
from hardcase.tensors import margin
from hardcase.testing.toys import CLASSES, Counting, Quarters, toy_images, toy_subject
from hardcase.types import Feedback, Seeds

SHAPE = (1, 8, 8)


def beside(shift):
    """The subject's sight, a little to the side."""
    net = Quarters(60.0)
    net.mean.weight.data = net.mean.weight.data.reshape(4, 8, 8).roll(shift, 2).flatten(1)
    return Subject(net, classes=CLASSES, name=f"beside {shift}")


def found(subject, **options):
    method = natural_blackbox(SHAPE, subject, (beside(1),), space="warp*light", **options)
    campaign = Campaign(subject=subject, method=method)
    return search_campaign(campaign, toy_images(8))


@pytest.mark.parametrize("make", [lambda: Counting(toy_subject(), offers="scores"), lambda: LabelOnly(toy_subject())])  # fmt: skip
def test_a_black_box_is_led_by_its_stand_ins(make):
    done = found(make(), queries=60)
    assert done.succeeded >= 4
    assert bool((done.gradients == 0).all()), "the subject gave no gradient"
    assert bool((done.queries <= 60).all())


def test_what_the_subject_answers_corrects_the_direction():
    source = StandIns(networks=(beside(1),), space=Pixels(), noise=0.0, correct=1.0)
    images = toy_images(1)
    z = images.x.float() / 255
    seeds = Seeds(z, z, images.y, torch.zeros(1, dtype=torch.int64))
    subject = toy_subject()

    class Lead:
        live = torch.ones(1, dtype=torch.bool)

        def __call__(self, z, rows, aim=None):
            raise AssertionError("only gradients are asked for")

        choose = retire = __call__

        def gradient(self, z, rows, aim=None):
            lead = margin(subject(z).logits, images.y)
            no = torch.zeros(1, dtype=torch.bool)
            return Feedback(z, lead, no, images.y, lead * 0, ~no, lead), torch.zeros_like(z)

    rows = torch.arange(1)
    rng = Rng.numbered(0, "standins", 1)
    state = {**source.start(seeds), "z": z, "start": z}
    _, first, state = source(state, Lead(), rows, rng)
    step = 0.01 * torch.ones_like(z)
    _, slope, after = source({**state, "z": z + step}, Lead(), rows, rng)
    assert not torch.equal(slope, first)
    told = after["lead"] - state["lead"]
    expected = ((after["leaned"] + state["leaned"]) / 2 + after["correction"]).mul(step).sum()
    assert expected.item() == pytest.approx(told.item(), abs=1e-4)


def test_without_stand_ins_it_is_an_evolution_and_asking_for_them_is_told():
    assert type(natural_blackbox(SHAPE).search).__name__ == "Evolution"
    with pytest.raises(Problem, match="nobody can stand in"):
        natural_blackbox(SHAPE, search="standins")
    named = natural_blackbox(SHAPE, toy_subject(), (beside(1),))
    assert named.details["standins"] == [beside(1).hash]
    assert named.budget.queries == 200
