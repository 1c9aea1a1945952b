"""Tests of samples against scipy and against their definitions."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats as reference

from hardcase import statistics
from hardcase.errors import HardcaseError
from hardcase.randomness import stream
from hardcase.statistics import max_statistic

values = st.lists(st.integers(-5, 5), min_size=2, max_size=12)


@given(values, values)
def test_cliffs_delta_is_its_definition(a: list[int], b: list[int]) -> None:
    pairs = [(x > y) - (x < y) for x in a for y in b]
    assert statistics.cliffs_delta(a, b) == pytest.approx(sum(pairs) / len(pairs))
    assert statistics.a12(a, b) == pytest.approx(sum((p + 1) / 2 for p in pairs) / len(pairs))


def test_magnitude_of_what_can_be_compared() -> None:
    words = {0.1: "negligible", -0.2: "small", 0.4: "medium", -0.98: "large"}
    assert {delta: statistics.magnitude(delta) for delta in words} == words
    with pytest.raises(HardcaseError, match="cannot be compared"):
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
    with pytest.raises(HardcaseError, match="no pairs"):
        statistics.wilcoxon([1, 2], [1, 2, 3])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_and_keeps_the_order(p: list[float]) -> None:
    corrected = statistics.holm(p)
    assert all(after >= before and after <= 1 for before, after in zip(p, corrected))
    pairs = product(zip(p, corrected), repeat=2)
    assert all(one[1] <= other[1] for one, other in pairs if one[0] < other[0])
    assert corrected[p.index(min(p))] == pytest.approx(min(1.0, min(p) * len(p)))


def test_holm_by_hand() -> None:
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
