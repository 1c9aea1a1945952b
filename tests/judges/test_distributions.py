"""Distances between sets of images: against torchmetrics' own, and what is said of a run."""

import pytest
import torch
from torch.nn.functional import normalize

from hardcase.judges.distributions import apart, frechet, kernel_distance


def drawn(count, shift=0.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=rng) * torch.linspace(0.5, 2, 6) + shift


def test_the_frechet_distance_is_that_of_the_covariances():
    a, b = drawn(40), drawn(60, 0.5, seed=1)
    first, second = torch.cov(a.T.double()), torch.cov(b.T.double())
    root = torch.linalg.eigvals(first @ second).sqrt().real.sum()
    plain = (a.mean(0) - b.mean(0)).double().square().sum() + first.trace() + second.trace()
    assert frechet(a, b) == pytest.approx(float(plain - 2 * root), rel=1e-5)
    assert frechet(a, a) == pytest.approx(0, abs=1e-9)


def test_the_kernel_distance_is_the_unbiased_one():
    a, b = drawn(5), drawn(4, 1.0, seed=1)

    def k(x, y):
        return (float(x.double() @ y.double()) / 6 + 1) ** 3

    within = [
        sum(k(x, y) for i, x in enumerate(s) for j, y in enumerate(s) if i != j)
        / (len(s) * (len(s) - 1))
        for s in (a, b)
    ]
    across = sum(k(x, y) for x in a for y in b) / 20
    assert kernel_distance(a, b) == pytest.approx(sum(within) - 2 * across, rel=1e-6)


def test_a_run_is_told_beside_what_chance_gives():
    rng = torch.Generator().manual_seed(0)
    seeds = normalize(drawn(200, seed=1), dim=1)
    near = apart(normalize(drawn(200), dim=1), seeds, rng)
    far = apart(normalize(drawn(200, 1.0), dim=1), seeds, rng)
    assert abs(near["kid"]) < 0.1 * far["kid"]
    assert abs(far["kid_halves_of_seeds"]) < 0.1 * far["kid"]
    assert near["fid"] < far["fid"]
    assert apart(drawn(3), drawn(200), rng) is None
