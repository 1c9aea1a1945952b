"""The risk of a network in training: fixed, harmless, equal to the risk of the frozen network."""

import pytest
import torch

import hardcase as hc
from hardcase.conditions import condition_box, measure_risk
from hardcase.errors import HardcaseError
from hardcase.testing.toys import toy_images, toy_subject
from hardcase_teams.training import TrainingRisk

SHIFT = {"shift": "±20 %"}


def test_it_is_the_risk_of_the_frozen_network_and_leaves_everything_as_it_was():
    subject, images = toy_subject(), toy_images(12)
    net = subject.net.train()
    risk = TrainingRisk(SHIFT, images=images, count=12, draws=8)
    state = torch.random.get_rng_state()
    found = risk.measure(net)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert net.training
    box = condition_box(hc.Conditions.load(SHIFT), images.shape)
    frozen = measure_risk(hc.Subject(net), images, box, samples=8)
    same = {name: int(count) for name, count in zip(frozen.id, frozen.failing)}
    assert {name: int(count) for name, count in zip(found.id, found.failing)} == same
    assert risk.measure(net).value == found.value


@pytest.mark.parametrize("form", [list, tuple, dict])
def test_validation_batches_are_read_once_and_denormalised(form):
    images = toy_images(10)
    x = (images.x.float() / 255 - 0.5) / 0.25
    batches = [(x[:6], images.y[:6]), (x[6:], images.y[6:])]
    if form is dict:
        batches = [{"pixel_values": a, "labels": b} for a, b in batches]
    else:
        batches = [form(batch) for batch in batches]
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(x[0].numel(), 4))
    risk = TrainingRisk(SHIFT, count=8, draws=2, mean=(0.5,), std=(0.25,))
    risk.measure(net, batches)
    assert torch.equal(risk._images.x, images.x[:8])
    assert risk.measure(net, ()).value == risk.measure(net, ()).value


def test_it_is_due_every_so_often_and_goes_on_after_a_checkpoint():
    risk = TrainingRisk(SHIFT, every=3)
    assert [risk.due() for _ in range(4)] == [False, False, True, False]
    again = TrainingRisk(SHIFT, every=3)
    again.load_state_dict(risk.state_dict())
    assert [again.due() for _ in range(3)] == [False, True, False]
    assert again.improved(0.5)
    assert not again.improved(0.5)
    assert again.improved(0.4)


def test_what_cannot_be_measured_is_said():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    with pytest.raises(HardcaseError):
        TrainingRisk(SHIFT).measure(net, [])
    with pytest.raises(HardcaseError):
        TrainingRisk(SHIFT).measure(net, ["words"])
    with pytest.raises(HardcaseError):
        TrainingRisk(SHIFT, every=0)
