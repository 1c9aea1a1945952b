import pytest

from hardcase.campaign import pace
from hardcase.campaign.record import Campaign
from hardcase.registry import resolve
from hardcase.tensors import from_bytes
from hardcase.testing.methods import toy_method
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import Budget

IMAGES = from_bytes(toy_images(4).x)


def campaign(subject):
    return Campaign(subject=subject, method=toy_method(resolve("method", "pgd")))


@pytest.mark.parametrize(
    ("seconds", "most", "count"), [(1.0, 100, 100), (18.0, 100, 50), (400.0, 100, 20), (1.0, 7, 7)]
)
def test_photographs_get_as_many_seeds_as_there_is_time_for(
    monkeypatch, caplog, seconds, most, count
):
    monkeypatch.setattr(pace, "seconds_per_seed", lambda *_: seconds)
    one = campaign(toy_subject())
    assert pace.seeds_in_time(one, IMAGES, Budget(gradients=60), most=most) == count
    assert f"{count} seeds: by one timed pass" in caplog.text


def test_a_seed_takes_its_budget_times_one_pass_of_every_network(monkeypatch):
    ticks = iter([0.0, 2.0])
    monkeypatch.setattr(pace, "monotonic", lambda: next(ticks))
    subject = Counting(toy_subject())
    assert pace.seconds_per_seed(campaign(subject), IMAGES, Budget(gradients=60)) == 30.0
    assert subject.rows == 8, "once to prepare it and once with the clock"
