"""Intervals of proportions against scipy, against binomial laws, and in words."""

import numpy as np
import pytest
from scipy import stats as reference

from hardcase.statistics import Rate, binomial_interval, wilson_interval


def test_a_rate_tells_its_counts_and_its_interval():
    assert str(Rate(29, 57)) == "29 of 57 = 50.9 % (37.3 to 64.4)"
    assert str(Rate(0, 0)) == "0 of 0"
    assert str(Rate(1200, 4800)) == "1,200 of 4,800 = 25.0 % (23.8 to 26.3)"
    told = Rate(3, 9).to_json()
    assert list(told) == ["hits", "total", "share", "low", "high"]
    assert Rate.from_json(told) == Rate(3, 9)
    assert Rate(0, 0).to_json() == {"hits": 0, "total": 0, "share": None, "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(("hits", "total"), [(0, 7), (3, 9), (20, 20), (29, 57)])
def test_the_intervals_of_a_rate_are_scipys(hits, total):
    from scipy.stats import binomtest

    theirs = binomtest(hits, total)
    exact = theirs.proportion_ci(method="exact")
    rate = Rate(hits, total)
    assert (rate.low, rate.high) == pytest.approx((exact.low, exact.high), abs=1e-6)
    wilson = theirs.proportion_ci(method="wilson")
    assert wilson_interval(hits, total) == pytest.approx((wilson.low, wilson.high), abs=1e-6)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("total", [10, 30, 200])
def test_intervals_of_shares_cover_what_they_say(share, total):
    """Exactly, by the binomial law; near 0 Wilson's interval covers a little less at some totals."""
    hits = range(total + 1)
    law = reference.binom.pmf(hits, total, share)
    covered = [low <= share <= high for low, high in (wilson_interval(k, total) for k in hits)]
    assert law @ covered >= 0.91
    exact = [low <= share <= high for low, high in (binomial_interval(k, total) for k in hits)]
    assert law @ exact >= 0.95


def test_draws_of_fixed_images_are_covered_though_their_chances_differ():
    rng = np.random.default_rng(1)
    chance = rng.beta(0.2, 2, 100)
    covered = 0
    for _ in range(400):
        hits = int(rng.binomial(16, chance).sum())
        low, high = binomial_interval(hits, 1600)
        covered += low <= chance.mean() <= high
    assert covered >= 0.95 * 400
    assert binomial_interval(0, 0) == (0, 1)


@pytest.mark.parametrize("total", [60, 1000, 10_000])
@pytest.mark.parametrize("share", [1e-4, 1e-3, 0.01, 0.1])
def test_a_rate_of_rare_failures_is_covered(total, share):
    hits = range(round(total * share + 12 * (total * share) ** 0.5 + 12))
    law = reference.binom.pmf(hits, total, share)
    covered = [low <= share <= high for low, high in (binomial_interval(k, total) for k in hits)]
    assert law @ covered >= 0.95


def test_a_rate_of_units_that_stand_together_has_the_interval_of_the_units():
    apart, together = Rate(40, 400), Rate(40, 400, units=100)
    assert together.high - together.low > 1.9 * (apart.high - apart.low)
