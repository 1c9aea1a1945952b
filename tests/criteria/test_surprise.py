"""Nearest neighbours, exact even where the fast product would be wrong; densities as scipy's, on their span where they are singular."""

import pytest
import torch
from scipy.stats import gaussian_kde

from hardcase.criteria.surprise import (
    Gaussian,
    Likelihood,
    Mahalanobis,
    ReferencePoints,
    Traces,
    fit_notes,
    refuse_few,
)
from hardcase.errors import HardcaseError
from hardcase.randomness import stream


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
    with pytest.raises(HardcaseError, match="empty"):
        ReferencePoints.of(torch.empty(0, 3)).nearest(torch.zeros(1, 3))


def embedded(count=80, rank=5, width=12, seed=0):
    """Points of `rank` dimensions, and the same ones lying in a space of `width`."""
    rng = stream(seed, "singular")
    inner = torch.randn(count, rank, generator=rng, dtype=torch.float64) * torch.arange(1, rank + 1)
    turn = torch.linalg.qr(torch.randn(width, rank, generator=rng, dtype=torch.float64)).Q
    return inner, inner @ turn.t()


def activations(count=400, units=44, seed=0):
    """As of a layer of a trained network: correlated, rectified, of very different scales."""
    rng = stream(seed, "traces")
    mixed = torch.randn(units, units, generator=rng, dtype=torch.float64)
    scales = torch.logspace(0, -2.5, units, dtype=torch.float64)
    hidden = (torch.randn(count, units, generator=rng, dtype=torch.float64) * scales) @ mixed
    return (hidden + 1).relu().float()


def of_two_classes(values):
    label = torch.arange(len(values)) % 2
    return Traces(values, label, label)


def test_a_shape_is_the_same_wherever_it_lies():
    inner, outer = embedded()
    one, two = Gaussian.of(inner), Gaussian.of(outer)
    assert (one.rank, two.rank) == (5, 5)
    assert (one.projected, two.projected) == (False, True)
    assert two.size == pytest.approx(one.size)
    apart = [
        torch.cdist(gaussian.traces.double(), gaussian.traces.double()) for gaussian in (one, two)
    ]
    assert torch.allclose(*apart, atol=1e-4)


@pytest.mark.parametrize("smallest", [1.0, 1e-3, 1e-5])
def test_likelihood_is_scipys_wherever_that_is_defined(smallest):
    """Also where one unit almost repeats another: the ratio of variances goes down to 1e-10."""
    values = activations()
    values[:, 1] = values[:, 0] + smallest * values[:, 1]
    traces = of_two_classes(values)
    new = values[:20] + 0.05 * torch.randn(20, 44, generator=stream(1))
    new[:, 1] = new[:, 0] + smallest * torch.rand(20, generator=stream(2))
    ours = Likelihood.fit(traces, floor=0)
    assert fit_notes(ours)["classes projected on their span"] == 0
    label = torch.arange(20) % 2
    theirs = torch.empty(20, dtype=torch.float64)
    for one in (0, 1):
        density = gaussian_kde(values[one::2].double().T.numpy())
        theirs[one::2] = -torch.from_numpy(density.logpdf(new[one::2].double().T.numpy()))
    torch.testing.assert_close(ours(new, label).double(), theirs, rtol=2e-3, atol=2e-3)


def test_scales_of_units_do_not_decide_the_rank():
    values = activations().double()
    wide = values * torch.logspace(-6, 6, 44, dtype=torch.float64)
    assert Gaussian.of(values).rank == Gaussian.of(wide).rank == 44


def test_a_trace_off_the_span_is_infinitely_surprising():
    inner, outer = embedded(count=160)
    lsa = Likelihood.fit(of_two_classes(outer.float()), floor=0)
    assert fit_notes(lsa)["classes projected on their span"] == 2
    some, label = outer[:9].float(), torch.arange(9) % 2
    assert bool(lsa(some, label).isfinite().all())
    turn = torch.linalg.lstsq(inner, outer).solution.t()
    away = torch.linalg.qr(torch.cat([turn, torch.eye(12, dtype=torch.float64)], 1)).Q[:, 5]
    assert bool(lsa(some + (100 * away).float(), label).isinf().all())
    assert bool(Mahalanobis.fit(of_two_classes(outer.float()))(some, label).isfinite().all())


def test_classes_of_another_rank_have_no_value_and_are_counted():
    values = activations(count=600)
    label = torch.arange(600) % 3
    values[label == 2, 5] = values[label == 2, 4]
    lsa = Likelihood.fit(Traces(values, label, label), floor=0)
    assert [lsa.gaussians[c].rank for c in (0, 1, 2)] == [44, 44, 43]
    assert lsa(values[:30], label[:30]).isnan().tolist() == (label[:30] == 2).tolist()
    assert len(lsa.training()) == 400
    assert fit_notes(lsa)["classes without value, of another rank"] == 1


def test_few_training_images_are_said():
    rough, enough = (Likelihood.fit(of_two_classes(activations(n)), floor=0) for n in (100, 600))
    assert "50 traces of 44 units" in fit_notes(rough)["few training images"]
    assert "few training images" not in fit_notes(enough)
    assert fit_notes(enough)["training traces per unit"] == 6.82


def test_fewer_traces_than_units_are_refused():
    traces = of_two_classes(torch.randn(20, 30, generator=stream(1, "few")))
    for fit in (Likelihood.fit, Mahalanobis.fit):
        with pytest.raises(HardcaseError, match="so few"):
            refuse_few(fit(traces))
