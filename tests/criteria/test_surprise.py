"""Nearest neighbours: exact even where the fast product would be wrong."""

import pytest
import torch

from hardcase.criteria.surprise import ReferencePoints
from hardcase.errors import Problem


def brute(points, corpus, skip=None):
    apart = torch.cdist(
        points.double(), corpus.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )
    if skip is not None:
        apart.scatter_(1, skip[:, None], torch.inf)
    return apart.min(1)


@pytest.mark.parametrize("count", [1, 40, 513, 3000])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_nearest(count, offset):
    rng = torch.Generator().manual_seed(count)
    corpus, points = (
        torch.randn(count, 20, generator=rng) + offset,
        torch.randn(30, 20, generator=rng) + offset,
    )
    distance, place = ReferencePoints.of(corpus).nearest(points)
    expected = brute(points, corpus)
    assert torch.equal(place, expected.indices)
    torch.testing.assert_close(distance.double(), expected.values, rtol=1e-5, atol=1e-5)


def test_points_so_close_that_products_cannot_tell():
    rng = torch.Generator().manual_seed(0)
    corpus = torch.randn(2000, 8, generator=rng)
    corpus[1000:] = corpus[:1000] + 1e-5 * torch.randn(1000, 8, generator=rng)
    points = corpus[:50] + 1e-5 * torch.randn(50, 8, generator=rng)
    wrong = torch.cdist(points + 50, corpus + 50).argmin(1)
    _distance, place = ReferencePoints.of(corpus).nearest(points)
    assert torch.equal(place, brute(points, corpus).indices)
    assert not torch.equal(place, wrong), "the test is too easy"


def test_ties_go_to_the_first_and_one_can_be_skipped():
    corpus = torch.zeros(900, 3)
    corpus[700:] = 1
    distance, place = ReferencePoints.of(corpus).nearest(
        torch.tensor([[0.0, 0, 0], [1, 1, 1]]), skip=torch.tensor([0, 700])
    )
    assert place.tolist() == [1, 701]
    assert distance.tolist() == [0, 0]


def test_nothing_to_be_near_to():
    with pytest.raises(Problem, match="empty"):
        ReferencePoints.of(torch.empty(0, 3)).nearest(torch.zeros(1, 3))
