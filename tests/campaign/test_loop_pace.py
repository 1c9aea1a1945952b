import pytest

from hardcase.campaign import loop
from hardcase.campaign.record import Campaign
from hardcase.registry import resolve
from hardcase.tensors import from_bytes
from hardcase.testing.methods import toy_method
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import Budget


@pytest.mark.parametrize(
    ("seconds", "most", "count"), [(1.0, 100, 100), (18.0, 100, 50), (400.0, 100, 20), (1.0, 7, 7)]
)
def test_photographs_get_as_many_seeds_as_there_is_time_for(caplog, seconds, most, count):
    assert loop.seeds_in_time(seconds, most=most) == count
    assert f"{count} seeds: by one timed pass" in caplog.text


def test_a_seed_takes_its_budget_times_one_pass_of_every_network(monkeypatch):
    ticks = iter([0.0, 2.0])
    monkeypatch.setattr(loop, "monotonic", lambda: next(ticks))
    subject = Counting(toy_subject())
    campaign = Campaign(subject=subject, method=toy_method(resolve("method", "pgd")))
    images = from_bytes(toy_images(4).x)
    assert loop.seconds_per_seed(campaign, images, Budget(gradients=60)) == 30.0
    assert subject.rows == 8, "once to prepare it and once with the clock"
