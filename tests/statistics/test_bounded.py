"""The mean of bounded values: covered as promised whatever the law, also without any failure."""

import numpy as np
import pytest

from hardcase.statistics import bounded_mean_interval

DRAWS = 64


def few_carry_most(rng, count):
    """Chances over twelve orders of magnitude; one seed in a hundred carries most of the risk."""
    heavy = rng.random(count) < 0.01
    chance = np.where(heavy, rng.uniform(0.3, 1, count), 10 ** rng.uniform(-12, -2, count))
    mean = 0.01 * 0.65 + 0.99 * 1e-2 / (10 * np.log(10))
    return rng.binomial(DRAWS, chance) / DRAWS, mean


def skewed(rng, count):
    return rng.binomial(DRAWS, rng.beta(0.3, 6, count)) / DRAWS, 0.3 / 6.3


def ordinary(rng, count):
    return rng.binomial(DRAWS, rng.beta(2, 8, count)) / DRAWS, 0.2


def differences(rng, count):
    """Paired differences of two models, mostly 0."""
    value = np.where(rng.random(count) < 0.1, rng.uniform(-0.5, 1, count), 0)
    return value, 0.1 * 0.25


@pytest.mark.parametrize("law", [few_carry_most, skewed, ordinary, differences])
@pytest.mark.parametrize(("count", "repeats"), [(50, 300), (200, 120), (1000, 40)])
def test_intervals_cover_the_mean_as_often_as_promised(law, count, repeats):
    low = -1.0 if law is differences else 0.0
    rng = np.random.default_rng(count)
    covered = 0
    for _ in range(repeats):
        values, mean = law(rng, count)
        bounds = bounded_mean_interval(values, low)
        covered += bounds.low <= mean <= bounds.high
    noise = 2.6 * (0.95 * 0.05 / repeats) ** 0.5
    assert covered / repeats >= 0.95 - noise


def test_without_a_failure_the_upper_bound_is_about_four_over_the_seeds():
    for count in (50, 200, 1000):
        bounds = bounded_mean_interval(np.zeros(count))
        assert bounds.low == 0
        assert 3 / count < bounds.high < 4.5 / count


def test_many_values_have_the_same_interval_by_either_rule():
    values = np.random.default_rng(0).beta(0.5, 3, 5_001)
    student = bounded_mean_interval(values)
    weighted = bounded_mean_interval(values[:-1])
    assert np.allclose(student, weighted, atol=5e-4)
