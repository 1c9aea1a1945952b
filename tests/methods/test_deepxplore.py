"""DeepXplore as published: an image on which the models differ from the start is coverage and no failure."""

import pytest
import torch

from hardcase.campaign.in_memory import search
from hardcase.campaign.loop import run_shard
from hardcase.campaign.record import Campaign, limits
from hardcase.methods.deepxplore import deepxplore, deepxplore_published
from hardcase.methods.neurons import Profiles
from hardcase.tensors import from_bytes
from hardcase.testing.toys import toy_images, toy_subject

IMAGES = toy_images(24)
SUBJECT = toy_subject()
PEER = toy_subject()
with torch.no_grad():
    PEER.net.out.weight[0] *= 0.6  # it reads dim north-west images otherwise
PROFILES = Profiles(from_bytes(IMAGES.x[:1]), lambda: IMAGES)


def differing():
    x = from_bytes(IMAGES.x)
    one, two = (net(x).logits.argmax(1) for net in (SUBJECT, PEER))
    return one != two


@pytest.mark.parametrize("name", ["paper", "code"])
def test_models_that_differ_from_the_start_are_coverage_and_no_finding(name):
    options = {"paper": {"deviating": "random", "renew": 1}, "code": {}}[name]
    method = deepxplore_published(
        SUBJECT, PROFILES, (PEER,), constraint="occlusion", size=4, **options
    )
    done = search(SUBJECT, method, IMAGES, peers=(PEER,), seed=1)
    apart = differing() & (SUBJECT(from_bytes(IMAGES.x)).logits.argmax(1) == IMAGES.y)
    assert bool(apart.any()), "the toys differ somewhere"
    found = set(done.findings.seed.tolist())
    assert not found & set(apart.nonzero().squeeze(1).tolist())
    assert bool((done.findings.distance > 0).all())
    assert done.queries[apart].tolist() == [1] * int(apart.sum()), "one look, and the next image"


def test_our_form_still_tells_them():
    method = deepxplore(SUBJECT, PROFILES, (PEER,))
    done = search(SUBJECT, method, IMAGES, peers=(PEER,), seed=1)
    nothing = done.findings.distance == 0
    assert int(nothing.sum()) == int((differing()).sum())


def test_what_differs_from_the_start_is_learnt_as_coverage():
    method = deepxplore_published(SUBJECT, PROFILES, (PEER,), constraint="occlusion", size=4)
    only = IMAGES.take(differing().nonzero().squeeze(1))
    campaign = Campaign(subject=SUBJECT, peers=(PEER,), method=method)
    shard = run_shard(campaign, only, limits(method.budget, len(only)), guides=method.guides)
    assert not len(shard.findings)
    learnt = [value for delta in shard.deltas.values() for value in delta.values()]
    assert sum(float(value.double().sum()) for value in learnt) > 0
