"""Intervals of means and medians against scipy, and against what they promise."""

import numpy as np
import pytest
import torch
from scipy import stats as reference

from hardcase.randomness import stream
from hardcase.statistics import mean_interval, median_interval, wilson_interval
from tiny import LAWS, check_coverage, holds


def test_a_sample_of_zeros_and_ones_is_a_share_and_equal_values_have_no_interval():
    ours = mean_interval(torch.zeros(200, dtype=torch.bool))
    assert (ours.low, ours.high) == pytest.approx(wilson_interval(0, 200))
    mixed = mean_interval(torch.tensor([0.0] * 9 + [1.0]))
    assert (mixed.low, mixed.high) == pytest.approx(wilson_interval(1, 10))
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


def test_the_interval_of_a_bounded_figure_stays_within_its_bounds():
    values = [0.75, 0.0, 0.0, 0.0]
    free = mean_interval(values)
    assert free.low < 0
    bound = mean_interval(values, within=(0.0, 1.0))
    assert (bound.low, bound.high) == (0.0, free.high)
    assert not mean_interval([0.5, 0.5], within=(0.0, 1.0)).known
