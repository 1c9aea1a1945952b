"""Searches by queries alone: they widen until something fails and come back; surrogates lead, answers correct them."""

import pytest
import torch

from hardcase.campaign.in_memory import search
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.errors import HardcaseError
from hardcase.methods.appearance_search import natural_blackbox
from hardcase.models.adapters import LabelOnly
from hardcase.objectives import Margin
from hardcase.oracles import LeavesLabel
from hardcase.searches.black_box import Evolution, SurrogateGradients, _ranked
from hardcase.spaces.pixel import Pixels
from hardcase.testing.toys import Counting, toy_images, toy_subject
from hardcase.types import Budget, Method, Seeds
from tiny import beside

BOXES = [lambda: Counting(toy_subject(), offers="scores"), lambda: LabelOnly(toy_subject())]


def method(queries=300, **options):
    search = Evolution(**{"spread": 0.05, "most": 0.4, **options})
    parts = {"space": Pixels(), "search": search, "objective": Margin(), "oracle": LeavesLabel()}
    how = {"until": "budget", "needs": "label", "budget": Budget(queries=queries)}
    return Method(name="evolution", **parts, **how)


def test_ranks_stand_for_scores_and_equal_scores_pull_nowhere():
    ranks = _ranked(torch.tensor([[3.0, -1.0, 100.0], [2.0, 2.0, 2.0]]))
    assert ranks.tolist() == [[0.0, -0.5, 0.5], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("make", BOXES)
def test_a_black_box_fails_within_its_budget(make):
    found = search(make(), method(600), toy_images(6))
    assert found.succeeded == 6
    assert bool((found.queries <= 600).all())


def test_the_way_back_makes_changes_smaller():
    near = search(toy_subject(), method(bisections=8), toy_images(6))
    far = search(toy_subject(), method(bisections=1), toy_images(6))
    assert float(near.findings.distance.mean()) < float(far.findings.distance.mean())


SHAPE = (1, 8, 8)


def found(subject, surrogates, **options):
    method = natural_blackbox(SHAPE, subject, surrogates, space="warp*light", **options)
    campaign = Campaign(subject=subject, method=method)
    return run_shard(campaign, toy_images(8), limits(method.budget, 8))


@pytest.mark.parametrize("make", BOXES)
def test_a_black_box_is_led_by_its_stand_ins(make):
    done = found(make(), (beside(1),), queries=60)
    assert len(set(done.findings.seed.tolist())) >= 4
    assert bool((done.counts.gradients == 0).all()), "the subject gave no gradient"
    assert bool((done.counts.queries <= 60).all())


def test_every_pass_of_a_stand_in_is_counted():
    networks = (Counting(beside(1)), Counting(beside(2)))
    counts = found(Counting(toy_subject(), offers="scores"), networks, queries=20).counts
    passes = sum(network.rows for network in networks)
    assert int(counts.surrogate_queries.sum()) == passes > 0
    assert counts.surrogate_gradients.equal(counts.surrogate_queries)


def test_answers_tell_how_far_a_stand_in_is_to_be_followed_and_what_it_misses():
    source = SurrogateGradients(count=2, forget=0.0)
    images = toy_images(1)
    z = images.x.float() / 255
    seeds = Seeds(z, z, images.y, torch.zeros(1, dtype=torch.int64))
    rng = torch.Generator().manual_seed(0)
    truth = torch.cat([torch.tensor([2.0, 0.0]), 0.3 * torch.randn(64, generator=rng)])
    seen = torch.zeros(1, 66)
    state = {**source.start(seeds), "margin": torch.zeros(1)}
    rows = torch.arange(1)

    def error():
        return float((state["estimate"] - truth).norm())

    before = error()
    for _ in range(200):
        seen = seen + 0.5 * torch.randn(1, 66, generator=rng)
        asked = z + seen[:, 2:].reshape_as(z)
        new = {"margins": seen[:, :2], "asked": asked, "margin": seen @ truth}
        state |= {**new, **source._filtered(new, state, rows)}
    assert error() < 0.25 * before, "all answers count, not the last alone"


def test_without_stand_ins_it_is_an_evolution_and_asking_for_them_is_told():
    assert type(natural_blackbox(SHAPE).search).__name__ == "Evolution"
    with pytest.raises(HardcaseError, match="nobody can stand in"):
        natural_blackbox(SHAPE, search="surrogates")
    named = natural_blackbox(SHAPE, toy_subject(), (beside(1),))
    assert named.details["surrogates"] == [beside(1).hash]
    assert named.budget.queries == 200
