"""Intervals and permutation tests against published examples, against scipy, and against what they promise."""

import numpy as np
import pytest
import torch
from scipy import stats as reference

from hardcase import statistics
from hardcase.errors import Problem
from hardcase.inference import max_statistic, mean_interval, median_interval, newcombe_paired
from hardcase.randomness import stream
from tiny import LAWS, check_coverage, holds


def rows(both, one, other, neither):
    first = [1] * both + [1] * one + [0] * other + [0] * neither
    second = [1] * both + [0] * one + [1] * other + [0] * neither
    return torch.tensor(first).bool(), torch.tensor(second).bool()


def test_paired_differences_as_in_newcombes_table_and_holm_by_hand():
    ours = newcombe_paired(*rows(36, 12, 2, 0))
    assert (ours.low, ours.high) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    nothing = newcombe_paired(*rows(0, 0, 0, 200))
    assert nothing.low < 0 < nothing.high, "0 of 200 twice is not certain"
    with pytest.raises(Problem, match="row by row"):
        newcombe_paired(torch.ones(2).bool(), torch.ones(3).bool())
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_best_of_many_that_show_nothing_is_seldom_called_something():
    rng = stream(5, "best")
    drawn = (torch.randn(9, 24, generator=rng) for _ in range(200))
    best = [float(max_statistic(sample, rng=rng).min()) <= 0.05 for sample in drawn]
    assert sum(best) / 200 <= 0.05 + 2.6 * (0.05 * 0.95 / 200) ** 0.5
    shifted = torch.randn(12, 24, generator=rng)
    shifted[:, 3] += 3
    p = max_statistic(shifted, rng=rng)
    assert int(p.argmin()) == 3
    assert float(p[3]) < 0.01
    assert float(max_statistic(torch.zeros(5, 2), rng=rng).min()) == 1


def test_a_sample_of_zeros_and_ones_is_a_share_and_equal_values_have_no_interval():
    ours = mean_interval(torch.zeros(200, dtype=torch.bool))
    assert (ours.low, ours.high) == pytest.approx(statistics.interval(0, 200))
    mixed = mean_interval(torch.tensor([0.0] * 9 + [1.0]))
    assert (mixed.low, mixed.high) == pytest.approx(statistics.interval(1, 10))
    assert mean_interval(torch.zeros(6)).text(".0f") == "0 in all 6"
    assert mean_interval([97.8, 98.7]).text(".1f") == "98.2 (no interval: 2 runs)"
    assert not median_interval([1.0, 2, 3, 4, 5]).known
    assert not mean_interval([]).known


def test_three_to_five_units_have_students_interval_and_say_so():
    values = [3.0, 4.0, 4.5, 7.0]
    theirs = reference.ttest_1samp(values, 0).confidence_interval()
    ours = mean_interval(values, unit="trainings")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.kind == "(t, 4 trainings)"


@pytest.mark.parametrize("count", [6, 9, 12])
def test_an_interval_holds_what_a_permutation_test_does_not_reject(count):
    values = torch.randn(count, generator=stream(count), dtype=torch.float64)
    found = mean_interval(values)
    for end, sign in ((found.low, 1), (found.high, -1)):
        samples = [(values - end - sign * shift).numpy() for shift in (1e-6, -1e-6)]
        how = {"permutation_type": "samples", "n_resamples": np.inf}
        tests = [reference.permutation_test((sample,), np.mean, **how) for sample in samples]
        assert tests[0].pvalue > 0.05 >= tests[1].pvalue


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("counts", "repeats"),
    [((3, 4, 5, 6, 8, 12, 30), 150), pytest.param(range(3, 31), 2000, marks=pytest.mark.long)],
)
@pytest.mark.parametrize(("kind", "least"), [(mean_interval, 3), (median_interval, 6)])
def test_intervals_cover_what_they_say(kind, least, counts, repeats, law):
    rng = np.random.default_rng(0)
    draw, truth = LAWS[law]
    if kind is median_interval:
        truth = float(np.median(draw(np.random.default_rng(1), 400_000)))
    for count in counts:
        if count >= least:
            rows = torch.from_numpy(draw(rng, repeats, count))
            check_coverage([holds(kind(row), truth) for row in rows])


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("total", [10, 30, 200])
def test_intervals_of_shares_cover_what_they_say(share, total):
    """Exactly, by the binomial law; near 0 Wilson's interval covers a little less at some totals."""
    hits = range(total + 1)
    law = reference.binom.pmf(hits, total, share)
    covered = [low <= share <= high for low, high in (statistics.interval(k, total) for k in hits)]
    assert law @ covered >= 0.91


@pytest.mark.parametrize("total", [20, 60, 200])
def test_intervals_of_paired_shares_cover_what_they_say(total):
    rng = np.random.default_rng(total)
    cells = rng.choice(4, size=(400, total), p=(0.5, 0.2, 0.1, 0.2))
    pairs = [map(torch.from_numpy, (row < 2, row % 2 == 0)) for row in cells]
    check_coverage([holds(newcombe_paired(*pair), 0.1) for pair in pairs], most=1)
