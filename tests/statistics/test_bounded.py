"""The mean of bounded values: covered as promised whatever the law, also without any failure."""

import numpy as np
import pytest

from hardcase.statistics import binomial_interval, bounded_mean_interval

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


def test_without_a_failure_the_upper_bound_is_what_the_binomial_law_says():
    for count in (1, 60, 1000, 5001, 10_000, 100_000):
        bounds = bounded_mean_interval(np.zeros(count))
        assert bounds.low == 0
        assert bounds.high == pytest.approx(1 - 0.025 ** (1 / count), rel=1e-9)


@pytest.mark.parametrize(("hits", "total"), [(1, 60), (30, 60), (60, 60), (3, 10_000), (0, 7)])
def test_zeros_and_ones_have_clopper_and_pearsons_interval(hits, total):
    values = np.zeros(total)
    values[:hits] = 1
    exact = binomial_interval(hits, total)
    assert bounded_mean_interval(values) == pytest.approx(exact, abs=1e-9)
    # by the inversion too: a value between does not matter where it weighs nothing
    near = np.array(values)
    near[0] += 1e-12 if hits == 0 else -1e-12
    assert bounded_mean_interval(near) == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("count", [2, 5, 60, 400])
def test_the_ends_are_quantiles_of_randomly_weighted_means(count):
    rng = np.random.default_rng(count)
    values = rng.binomial(4, rng.beta(0.5, 2, count)) / 4 - 0.25
    weights = rng.exponential(size=(100_000, count + 1))
    weights /= weights.sum(1, keepdims=True)
    means = weights[:, :count] @ values
    bounds = bounded_mean_interval(values, -1.0, 1.0, level=0.9)
    for end, imagined, chance in ((bounds.low, -1, 0.05), (bounds.high, 1, 0.95)):
        below = float(np.mean(means + imagined * weights[:, count] <= end))
        assert below == pytest.approx(chance, abs=0.003)


def test_many_values_have_nearly_a_normal_interval():
    values = np.random.default_rng(0).beta(0.5, 3, 20_000)
    half = 1.959964 * values.std(ddof=1) / len(values) ** 0.5
    mean = values.mean()
    assert bounded_mean_interval(values) == pytest.approx((mean - half, mean + half), abs=8e-5)


def test_an_interval_with_one_end_spends_the_whole_error_on_it():
    values = np.repeat([0.0, 0.25, 1.0], [900, 60, 40])
    both = bounded_mean_interval(values, level=0.9)
    assert bounded_mean_interval(values, side="high") == pytest.approx((0, both.high))
    assert bounded_mean_interval(values, side="low") == pytest.approx((both.low, 1))


def test_claims_about_one_image_are_one_unit():
    rng = np.random.default_rng(3)
    images = rng.beta(0.3, 4, 200)
    alone = bounded_mean_interval(images)
    names = [str(i) for i in range(200) for _ in range(3)]
    assert bounded_mean_interval(np.repeat(images, 3), clusters=names) == pytest.approx(alone)
    assert bounded_mean_interval(np.zeros(0), clusters=[]) == (0, 1)


def test_rates_of_claims_are_covered_where_images_hold_different_numbers_of_them():
    """Crowded images fail more often: the mean over claims is not the mean over images."""
    rng = np.random.default_rng(4)

    def images(count):
        sizes = rng.choice([1, 2, 3, 8], count, p=[0.6, 0.2, 0.1, 0.1])
        return sizes, np.where(rng.random(count) < 0.02 * sizes, rng.beta(2, 2, count), 0.0)

    sizes, chance = images(2_000_000)
    truth = float((sizes * chance).sum() / sizes.sum())
    covered = 0
    for _ in range(200):
        sizes, chance = images(60)
        names = np.repeat(np.arange(60).astype(str), sizes).tolist()
        low, high = bounded_mean_interval(np.repeat(chance, sizes), clusters=names)
        covered += low <= truth <= high
    assert covered >= 190
