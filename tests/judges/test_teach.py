"""Lessons and members: targets that add up, attacks that stay near, networks of any size."""

import pytest
import torch

from hardcase.judges.panel import FEATURES, VIEWS, Density, Member, Seat, even
from hardcase.judges.teach import Shares, attacked, lesson
from hardcase.tensors import from_bytes
from tiny import bars


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    "shares", [Shares(), Shares(blended=0.0), Shares(ruined=0.0), Shares(blended=0.5, ruined=0.5)]
)
def test_targets_are_shares_and_nothing_is_only_said_of_ruins(shares):
    images = bars(64)
    x, y = from_bytes(images.x), images.y
    made, target = lesson(x, y, 3, Density(channels=1, size=12), rng(), shares)
    assert made.shape == x.shape
    assert torch.allclose(target.sum(1), torch.ones(64), atol=1e-5)
    ruined, blended = int(64 * shares.ruined), int(64 * shares.blended)
    plain = 64 - ruined - blended
    assert torch.equal(target[:plain], torch.nn.functional.one_hot(y[:plain], 4).float())
    assert not target[: 64 - ruined, 3].any()
    assert not made.requires_grad


@pytest.mark.parametrize("size", [4, 12, 13])
@pytest.mark.parametrize("view", VIEWS)
def test_members_take_any_size_and_see_through_their_view(size, view):
    net = Member(Seat(view=view, kernel=3), channels=2, size=size, classes=5).eval()
    x = torch.rand(6, 2, size, size, generator=rng())
    assert net(x).shape == (6, 6)
    assert net.features(x).shape == (6, FEATURES)
    alone = torch.cat([net(one[None]) for one in x])
    assert torch.allclose(net(x), alone, atol=1e-4)


def test_even_images_do_not_depend_on_light_and_contrast():
    x = from_bytes(bars(20).x)
    assert torch.allclose(even(0.3 * x + 0.4), even(x), atol=1e-4)
    faint = even(0.02 * x)
    assert float(faint.max()) < 0.25


def test_attacks_raise_the_loss_and_stay_in_their_ball():
    images = bars(30)
    x = from_bytes(images.x)
    net = Member(Seat(view="plain"), channels=1, size=12, classes=3).eval()
    target = torch.nn.functional.one_hot(images.y, 4).float()
    moved = attacked(net, x, target, 0.7, rng())
    length = (moved - x).flatten(1).norm(dim=1)
    assert float(length.max()) <= 0.7 + 1e-4
    assert float(length.min()) > 0.1
    loss = torch.nn.functional.cross_entropy
    with torch.no_grad():
        assert float(loss(net(moved), target)) > float(loss(net(x), target))
