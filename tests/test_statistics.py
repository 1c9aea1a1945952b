"""Statistics against scipy and against their definitions."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats as reference

from hardcase import statistics
from hardcase.errors import Problem
from hardcase.statistics import Rate

values = st.lists(st.integers(-5, 5), min_size=2, max_size=12)


@given(values, values)
def test_cliffs_delta_is_its_definition(a: list[int], b: list[int]) -> None:
    pairs = [(x > y) - (x < y) for x in a for y in b]
    assert statistics.cliffs_delta(a, b) == pytest.approx(sum(pairs) / len(pairs))
    assert statistics.a12(a, b) == pytest.approx(sum((p + 1) / 2 for p in pairs) / len(pairs))


def test_magnitude_of_what_can_be_compared() -> None:
    words = {0.1: "negligible", -0.2: "small", 0.4: "medium", -0.98: "large"}
    assert {delta: statistics.magnitude(delta) for delta in words} == words
    with pytest.raises(Problem, match="cannot be compared"):
        statistics.cliffs_delta([float("nan")], [1.0])


@settings(deadline=None, max_examples=40)
@given(values, values)
def test_rank_tests_agree_with_scipy(a: list[int], b: list[int]) -> None:
    ours = statistics.mann_whitney(a, b)
    if len({*a, *b}) > 1:
        assert ours.p == pytest.approx(reference.mannwhitneyu(a, b, alternative="two-sided").pvalue)
    else:
        assert ours.p == 1.0
    size = min(len(a), len(b))
    pairs = [(x, y) for x, y in zip(a[:size], b[:size]) if x != y]
    signed = statistics.wilcoxon(a[:size], b[:size])
    assert signed.count == len(pairs)
    if pairs:
        assert signed.p == pytest.approx(reference.wilcoxon([x - y for x, y in pairs]).pvalue)


def test_mcnemar_is_the_exact_binomial_and_pairs_are_asked_for() -> None:
    assert statistics.mcnemar(0, 0).p == 1.0
    assert statistics.mcnemar(8, 1).p == pytest.approx(2 * (9 + 1) / 2**9)
    assert statistics.mcnemar(1, 8) == statistics.mcnemar(8, 1)
    with pytest.raises(Problem, match="no pairs"):
        statistics.wilcoxon([1, 2], [1, 2, 3])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_and_keeps_the_order(p: list[float]) -> None:
    corrected = statistics.holm(p)
    assert all(after >= before and after <= 1 for before, after in zip(p, corrected))
    pairs = product(zip(p, corrected), repeat=2)
    assert all(one[1] <= other[1] for one, other in pairs if one[0] < other[0])
    assert corrected[p.index(min(p))] == pytest.approx(min(1.0, min(p) * len(p)))


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
