"""Intervals and permutation tests against published examples, against scipy, and against what they promise."""

import math

import pytest
import torch
from scipy import stats as reference

from hardcase import statistics
from hardcase.errors import Problem
from hardcase.inference import (
    clopper_pearson,
    cluster_means,
    crossed,
    max_statistic,
    newcombe,
    newcombe_paired,
    sign_flip,
    simultaneous,
)
from hardcase.randomness import stream


@pytest.mark.parametrize(("hits", "total"), [(0, 200), (10, 100), (7, 7), (1, 3)])
def test_the_exact_interval_is_scipys(hits, total):
    theirs = reference.binomtest(hits, total).proportion_ci(method="exact")
    assert clopper_pearson(hits, total) == pytest.approx((theirs.low, theirs.high))


@pytest.mark.parametrize(
    ("hits", "totals", "low", "high"),
    [
        ((56, 48), (70, 80), 0.0524, 0.3339),
        ((9, 3), (10, 10), 0.1705, 0.8090),
        ((5, 0), (56, 29), -0.0381, 0.1926),
        ((0, 0), (10, 20), -0.1611, 0.2775),
        ((10, 0), (10, 20), 0.6791, 1.0),
    ],
)
def test_differences_of_shares_as_in_newcombes_table(hits, totals, low, high):
    ours = newcombe(hits, totals)
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=1e-4)


def rows(both, one, other, neither):
    first = [1] * both + [1] * one + [0] * other + [0] * neither
    second = [1] * both + [0] * one + [1] * other + [0] * neither
    return torch.tensor(first).bool(), torch.tensor(second).bool()


def test_paired_differences_as_in_newcombes_table():
    ours = newcombe_paired(*rows(36, 12, 2, 0))
    assert (ours.low, ours.high) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    nothing = newcombe_paired(*rows(0, 0, 0, 200))
    assert nothing.low < 0 < nothing.high, "0 of 200 twice is not certain"
    with pytest.raises(Problem, match="row by row"):
        newcombe_paired(torch.ones(2).bool(), torch.ones(3).bool())


def test_a_sample_of_zeros_and_ones_is_a_share():
    ours = statistics.mean(torch.zeros(200, dtype=torch.bool), rng=stream(0))
    assert (ours.low, ours.high) == pytest.approx(statistics.interval(0, 200))
    mixed = statistics.mean(torch.tensor([0.0] * 9 + [1.0]), rng=stream(0))
    assert (mixed.low, mixed.high) == pytest.approx(statistics.interval(1, 10))


def test_lengths_that_are_all_zero_are_no_share():
    """Six runs without any gain in coverage say nothing of a gain of 39 points."""
    assert math.isnan(statistics.mean(torch.zeros(6), rng=stream(0)).low)


def test_sign_flips_are_exact_where_they_can_be():
    values = torch.tensor([0.3, 1.2, -0.1, 0.8, 0.4, 0.9])
    theirs = reference.permutation_test(
        (values.numpy(),),
        lambda x, axis: x.mean(axis=axis),
        permutation_type="samples",
        n_resamples=10**6,
    )
    ours = sign_flip(values, rng=stream(0))
    assert ours.exact
    assert ours.p == pytest.approx(theirs.pvalue)
    drawn = sign_flip(values, rng=stream(0), permutations=50)
    assert not drawn.exact
    assert drawn.p >= 1 / 51


def test_sign_flips_keep_their_level():
    rng = stream(3, "level")
    low = [sign_flip(torch.randn(8, generator=rng), rng=rng).p <= 0.05 for _ in range(400)]
    assert sum(low) / 400 <= 0.05 + 2.6 * (0.05 * 0.95 / 400) ** 0.5


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_best_of_many_that_show_nothing_is_seldom_called_something():
    rng = stream(5, "best")
    best = [
        float(max_statistic(torch.randn(9, 24, generator=rng), rng=rng).min()) <= 0.05
        for _ in range(200)
    ]
    assert sum(best) / 200 <= 0.05 + 2.6 * (0.05 * 0.95 / 200) ** 0.5
    shifted = torch.randn(12, 24, generator=rng)
    shifted[:, 3] += 3
    p = max_statistic(shifted, rng=rng)
    assert int(p.argmin()) == 3
    assert float(p[3]) < 0.01
    assert float(max_statistic(torch.zeros(5, 2), rng=rng).min()) == 1


def test_clusters_are_averaged():
    means = cluster_means(torch.tensor([1.0, 3.0, 10.0]), torch.tensor([7, 7, 2]))
    assert means.tolist() == [10.0, 2.0], "in the order of their numbers"


def test_crossed_intervals_are_wider_than_those_of_rows_alone():
    rng = stream(1, "crossed")
    raters = torch.randn(1, 8, generator=rng)
    table = torch.randn(60, 1, generator=rng) + 2 * raters + torch.randn(60, 8, generator=rng)
    table[0, 0] = torch.nan
    both = crossed(table, rng=stream(2), repeats=400)
    images = statistics.mean(table[1:].mean(1), rng=stream(2), repeats=400)
    assert both.low < float(table.nanmean()) < both.high
    assert both.high - both.low > 1.5 * (images.high - images.low)
    with pytest.raises(Problem, match="both directions"):
        crossed(torch.ones(5, 1), rng=rng)


def test_intervals_to_a_control_hold_together():
    """Treatments that are as good as the control: all of them are covered in 19 of 20 experiments."""
    rng = torch.Generator().manual_seed(0)
    missed = 0
    for _ in range(200):
        noise = torch.randn(12, 6, generator=rng) + torch.randn(12, 1, generator=rng)
        found = simultaneous(noise, rng=rng, repeats=400)
        missed += any(one.low > 0 or one.high < 0 for one in found)
    assert missed / 200 <= 0.08
    better = noise + torch.tensor([5.0, 0, 0, 0, 0, 0])
    assert simultaneous(better, rng=rng)[0].low > 0
