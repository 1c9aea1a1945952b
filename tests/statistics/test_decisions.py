"""Limits: the interval that is shown decides a pass, one that shares its error decides a fail."""

import numpy as np
import pytest

from hardcase.statistics import decide, decide_counts


def values(hits, total=1000):
    return np.repeat([1.0, 0.0], [hits, total - hits])


@pytest.mark.parametrize(
    ("limit", "expected"), [(0.08, "pass"), (0.05, "inconclusive"), (0.03, "fail")]
)
def test_a_mean_and_its_count_are_held_alike(limit, expected):
    one = decide(values(50), limit)
    two = decide_counts(50, 50, 1000, limit)
    assert (one.outcome, two.outcome) == (expected, expected)
    assert (one.low, one.high) == pytest.approx((two.low, two.high))
    assert (one.needed is not None) == (expected == "inconclusive")


def test_many_limits_make_a_fail_harder_and_a_pass_no_easier():
    limit = decide(values(50), 0.5).low - 1e-6
    assert decide(values(50), limit).outcome == "fail"
    assert decide(values(50), limit, limits=20).outcome == "inconclusive"
    above = decide(values(50), 0.5).high + 1e-6
    assert decide(values(50), above, limits=20).outcome == "pass"


def test_what_is_unknown_speaks_both_ways_and_more_images_do_not_help():
    counted = values(50)
    most = counted.copy()
    most[50:100] = 1
    found = decide(counted, 0.09, most=most)
    assert found.outcome == "inconclusive"
    assert found.needed is None
    assert found.low == decide(counted, 0.09).low
    assert decide_counts(50, 100, 1000, 0.09).outcome == "inconclusive"
    assert decide_counts(50, 900, 1000, 0.01).outcome == "fail"


def test_nothing_measured_decides_nothing():
    assert decide(np.zeros(0), 0.5).outcome == "inconclusive"
    assert decide_counts(0, 0, 0, 0.5).outcome == "inconclusive"


@pytest.mark.parametrize("limits", [1, 5])
def test_at_the_limit_a_gate_is_seldom_wrong(limits):
    rng = np.random.default_rng(limits)
    wrong_fail = wrong_pass = 0
    for _ in range(400):
        gate = [decide(rng.binomial(4, 0.1, 200) / 4, 0.1, limits=limits) for _ in range(limits)]
        wrong_fail += any(one.outcome == "fail" for one in gate)
        wrong_pass += all(one.outcome == "pass" for one in gate)
    assert max(wrong_fail, wrong_pass) <= 400 * 0.05
