"""How many images decide: tried by drawing so many."""

import numpy as np
import pytest

from hardcase.statistics import bounded_mean_interval, images_to_decide, needed_images


def test_more_images_are_needed_for_smaller_differences():
    spread = np.random.default_rng(0).normal(0, 0.2, 500)
    small, large = (needed_images(spread, effect) for effect in (0.01, 0.02))
    assert 3 * large < small <= 4 * large
    normal = ((1.96 + 1.2816) * spread.std(ddof=1) / 0.01) ** 0.5**-1
    assert normal < small < 1.3 * normal, "the interval is a little wider than a normal one"


def shares(rng, count):
    """Of four samples each; one image in thirty carries most failures. The mean is 1.6 %."""
    heavy = rng.random(count) < 0.03
    chance = np.where(heavy, rng.beta(2, 2, count), 10 ** rng.uniform(-6, -2, count))
    return rng.binomial(4, chance) / 4


@pytest.mark.parametrize("limit", [0.005, 0.035])
def test_so_many_images_decide_in_most_cases(limit):
    rng = np.random.default_rng(7)
    planned = [images_to_decide(shares(rng, 1000), limit) for _ in range(15)]
    assert sum(plan.at_least for plan in planned) <= 2
    count = int(np.median([plan.count for plan in planned]))
    drawn = [bounded_mean_interval(shares(rng, count)) for _ in range(60)]
    decided = np.mean([high <= limit or low > limit for low, high in drawn])
    assert decided > 0.78


def test_near_the_limit_only_a_lower_bound_is_told():
    values = np.repeat([0.0, 0.25, 1.0], [900, 60, 40])
    plan = images_to_decide(values, values.mean() + 0.002)
    assert plan.at_least
    assert plan.count > 5 * len(values)
    assert str(plan).startswith("more than ")
    assert not images_to_decide(values, 0.1).at_least
    assert images_to_decide(values, values.mean()).at_least


def test_a_margin_far_from_the_difference_needs_fewer_images():
    rng = np.random.default_rng(8)
    differences = shares(rng, 1000) - shares(rng, 1000)
    counts = [images_to_decide(differences, margin, -1.0).count for margin in (0.02, 0.05, 0.1)]
    assert counts == sorted(counts, reverse=True)
    assert images_to_decide(np.zeros(60), 0.01).count == pytest.approx(369, rel=0.05)
