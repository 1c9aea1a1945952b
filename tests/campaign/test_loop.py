"""One shard: images enter the same way wherever they are, and a search cannot spoil them."""

from dataclasses import dataclass, replace

import pytest
import torch

from hardcase.campaign import loop
from hardcase.campaign.loop import encode_images, rng_for, run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.methods import pgd
from hardcase.registry import resolve
from hardcase.spaces.pixel import Linf, Occlusion, Pixels
from hardcase.tensors import from_bytes
from hardcase.testing.methods import toy_method
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import Budget, Search


@dataclass(frozen=True)
class Spoiling:
    """A search that makes its images darker before it starts."""

    search: Search

    def init(self, seeds, rng):
        seeds.z.sub_(0.2)
        seeds.x.mul_(0.5)
        seeds.y.zero_()
        return self.search.init(seeds, rng)

    def step(self, state, evaluate, rng):
        return self.search.step(state, evaluate, rng)


def test_a_search_that_edits_its_seeds_moves_no_ball():
    method = replace(pgd(), space=Pixels(Linf(0.1)))
    method = replace(method, search=Spoiling(method.search))
    images = toy_images(8)
    campaign = Campaign(subject=toy_subject(), method=method)
    found = run_shard(campaign, images, limits(method.budget, 8)).findings
    assert len(found) > 0
    apart = (from_bytes(found.x) - from_bytes(images.x[found.seed])).abs().flatten(1).amax(1)
    assert bool((apart <= 0.1).all()), "farther from the data set's own seed than the ball is wide"
    assert torch.equal(found.expected, images.y[found.seed])
    assert found.distance.tolist() == pytest.approx(apart.tolist(), abs=0.5 / 255)


def test_seeds_enter_the_same_way_in_any_company():
    """A rectangle drawn for an image is the same in the run, in a report and in another shard."""
    method = replace(pgd(), space=Occlusion(size=(3, 3)))
    campaign, images = Campaign(subject=toy_subject(), method=method), toy_images(12)
    whole = encode_images(campaign, images)
    some = torch.tensor([7, 2, 11])
    part = encode_images(campaign, images.take(some), first=4)
    assert torch.equal(part.context["box"], whole.context["box"][some])
    assert part.id.tolist() == [4, 5, 6]
    assert len(set(map(tuple, whole.context["box"].tolist()))) > 4


def test_purposes_draw_apart():
    campaign, images, rows = Campaign(subject=toy_subject(), method=pgd()), toy_images(3), torch.arange(3)  # fmt: skip
    one, two = (rng_for(campaign, images, name).uniform(rows, (4,)) for name in ("search", "space"))
    assert not torch.equal(one, two)


@pytest.mark.parametrize(
    ("seconds", "most", "count"), [(1.0, 100, 100), (18.0, 100, 50), (400.0, 100, 20), (1.0, 7, 7)]
)
def test_photographs_get_as_many_seeds_as_there_is_time_for(caplog, seconds, most, count):
    assert loop.seeds_in_time(seconds, most=most) == count
    said = f"{count} of {most} images are searched: by one timed pass"
    assert (said in caplog.text) == (count < most)


def test_a_seed_takes_its_budget_times_one_pass_of_every_network(monkeypatch):
    ticks = iter([0.0, 2.0])
    monkeypatch.setattr(loop, "monotonic", lambda: next(ticks))
    subject = Counting(toy_subject())
    campaign = Campaign(subject=subject, method=toy_method(resolve("method", "pgd")))
    images = from_bytes(toy_images(4).x)
    assert loop.seconds_per_seed(campaign, images, Budget(gradients=60)) == 30.0
    assert subject.rows == 8, "once to prepare it and once with the clock"
