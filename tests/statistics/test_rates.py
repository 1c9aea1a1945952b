"""Intervals of proportions against scipy, against binomial laws, and in words."""

import numpy as np
import pytest
from scipy import stats as reference

from hardcase.statistics import Rate, binomial_interval, wilson_interval


def test_a_rate_tells_its_counts_and_its_interval():
    assert str(Rate(29, 57)) == "29 of 57 = 50.9 % (38.3 to 63.4)"
    assert str(Rate(0, 0)) == "0 of 0"
    assert str(Rate(1200, 4800)) == "1,200 of 4,800 = 25.0 % (23.8 to 26.2)"
    told = Rate(3, 9).to_json()
    assert list(told) == ["hits", "total", "share", "low", "high"]
    assert Rate.from_json(told) == Rate(3, 9)
    assert Rate(0, 0).to_json() == {"hits": 0, "total": 0, "share": None, "low": 0.0, "high": 1.0}


@pytest.mark.parametrize(("hits", "total"), [(0, 7), (3, 9), (20, 20), (29, 57)])
def test_the_interval_of_a_rate_is_wilsons(hits, total):
    from scipy.stats import binomtest

    theirs = binomtest(hits, total).proportion_ci(method="wilson")
    ours = Rate(hits, total)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.7])
@pytest.mark.parametrize("total", [10, 30, 200])
def test_intervals_of_shares_cover_what_they_say(share, total):
    """Exactly, by the binomial law; near 0 Wilson's interval covers a little less at some totals."""
    hits = range(total + 1)
    law = reference.binom.pmf(hits, total, share)
    covered = [low <= share <= high for low, high in (wilson_interval(k, total) for k in hits)]
    assert law @ covered >= 0.91


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
