"""Criteria inside a campaign: as guides, beside each other, and the same whatever the cut into shards."""

from dataclasses import replace

import pytest
import torch
from worlds import World

from hardcase.campaign.record import Campaign
from hardcase.criteria.criterion import Measure, toward
from hardcase.methods import pgd
from hardcase.randomness import Rng
from hardcase.tensors import from_bytes


@pytest.fixture(scope="module")
def world():
    return World()


def test_readers_of_one_layer_that_want_different_things(world):
    specs = ("kmnc", "nc:scale=input,order=scale-mean,layers=conv-linear", "nbc:mode=unit")
    criteria = [world.make(spec)() for spec in specs]
    (taps,) = Campaign(subject=world.subject, method=pgd(), criteria=tuple(criteria)).taps()
    x = from_bytes(world.images.x)
    with torch.no_grad():
        shared = world.subject(x, taps).activations
    for spec, criterion in zip(specs, criteria, strict=True):
        alone = world.make(spec)()
        probe = world.evaluate(x, alone)
        alone.update(probe)
        criterion.update(replace(probe, activations=shared))
        assert criterion.value() == alone.value() > 0


@pytest.mark.parametrize(
    ("spec", "draws"),
    [
        ("snac", 1),
        # one draw moves by more than guidance adds
        pytest.param("nbc:mode=unit", 12, marks=pytest.mark.long),
        ("kmnc:k=50", 1),
        ("tknc:k=1", 1),
        ("dsc:n=50,layers=hidden-dense", 1),
        ("ssc:pairs=seed-test", 1),
    ],
)
def test_following_a_criterion_covers_more_than_walking_at_random(world, spec, draws):
    """Twenty small steps along the gradient against twenty at random, from the same images, the mean of some draws."""
    make = world.make(spec)
    led, random = (
        sum(_walk(world, make(), guided=guided, draw=draw) for draw in range(draws))
        for guided in (True, False)
    )
    assert led > random


def _walk(world, criterion: Measure, *, guided, draw):
    x0, noise = from_bytes(world.images.x[:20]), torch.Generator().manual_seed(draw)
    rng = Rng.numbered(draw, "guides", 20)
    rows, x, pull = torch.arange(20), from_bytes(world.images.x[:20]), toward(criterion)
    criterion.update(world.evaluate(x, criterion, seeds=x0, ids=rows))
    for step in range(20):
        if step % 5 == 0:
            targets = criterion.choose(rows, rng)
        x = x.detach().requires_grad_()
        probe = world.evaluate(x, criterion, seeds=x0, ids=rows)
        score = pull(replace(probe, targets=targets))
        (slope,) = torch.autograd.grad(score.sum(), x)
        slope = slope if guided else torch.randn(x.shape, generator=noise)
        x = (
            x + 0.3 * slope / slope.flatten(1).norm(dim=1).clamp_min(1e-9)[:, None, None, None]
        ).clamp(0, 1)
        criterion.update(world.evaluate(x.detach(), criterion, seeds=x0, ids=rows))
    return criterion.value()
