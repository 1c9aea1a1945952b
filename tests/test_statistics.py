"""Statistics against scipy and against their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as reference

from hardcase import statistics
from hardcase.errors import Problem
from hardcase.randomness import stream

values = st.lists(st.integers(-5, 5), min_size=2, max_size=12)


@given(values, values)
def test_cliffs_delta_is_its_definition(a: list[int], b: list[int]) -> None:
    pairs = [(x > y) - (x < y) for x in a for y in b]
    assert statistics.cliffs_delta(a, b) == pytest.approx(sum(pairs) / len(pairs))
    assert statistics.a12(a, b) == pytest.approx(sum((p + 1) / 2 for p in pairs) / len(pairs))


@given(values, values)
def test_swapping_the_samples_turns_the_sign(a: list[int], b: list[int]) -> None:
    assert statistics.cliffs_delta(a, b) == pytest.approx(-statistics.cliffs_delta(b, a))
    assert statistics.welch(a, b).difference == pytest.approx(-statistics.welch(b, a).difference)


def test_welch_agrees_with_scipy() -> None:
    rng = stream(0, "welch")
    a, b = torch.randn(40, generator=rng) * 3, torch.randn(25, generator=rng) + 1
    ours, theirs = (
        statistics.welch(a, b),
        reference.ttest_ind(a.numpy(), b.numpy(), equal_var=False),
    )
    assert ours.t == pytest.approx(theirs.statistic, rel=1e-5)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-4)
    assert ours.freedom == pytest.approx(theirs.df, rel=1e-5)


def test_welch_without_spread() -> None:
    assert statistics.welch([1, 1], [1, 1, 1]).p == 1
    assert statistics.welch([1, 1], [2, 2]).p == 0


def test_pearson_agrees_with_scipy_and_its_interval_holds_the_value() -> None:
    rng = stream(0, "pearson")
    x = torch.randn(60, generator=rng)
    y = 0.5 * x + torch.randn(60, generator=rng)
    ours = statistics.pearson(x, y, rng=stream(1, "draws"))
    assert ours.value == pytest.approx(reference.pearsonr(x.numpy(), y.numpy()).statistic, rel=1e-4)
    theirs = reference.pearsonr(x.numpy(), y.numpy()).confidence_interval()
    assert ours.low == pytest.approx(theirs.low, abs=0.08)
    assert ours.high == pytest.approx(theirs.high, abs=0.08)


def test_groups_are_averaged_and_constant_ones_left_out() -> None:
    x = torch.tensor([[0.0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]])
    y = torch.tensor([[0.0, 1, 2, 3], [3, 2, 1, 0], [7, 7, 7, 7]])
    assert statistics.pearson(x, y, rng=stream(0)).value == pytest.approx(0)
    assert statistics.pearson(x[:1], y[:1], rng=stream(0)).value == pytest.approx(1)


def test_samples_are_drawn_together() -> None:
    x = torch.arange(20.0)
    apart = statistics.bootstrap(lambda a, b: (a - b).mean(-1), (x, x + 1), rng=stream(0))
    assert (apart.low, apart.value, apart.high) == pytest.approx((-1, -1, -1))


def test_an_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    sample = torch.randn(300, 30, generator=stream(0, "coverage"))
    hits = [abs(i.low + i.high) / 2 < (i.high - i.low) / 2 for row in sample for i in [_mean(row)]]
    assert 0.88 < sum(hits) / len(hits) < 0.99


def test_same_stream_same_interval() -> None:
    x = torch.randn(30, generator=stream(0))
    assert statistics.mean(x, rng=stream(3)) == statistics.mean(x, rng=stream(3))


@pytest.mark.parametrize(
    ("delta", "word"), [(0.1, "negligible"), (-0.2, "small"), (0.4, "medium"), (-0.98, "large")]
)
def test_magnitude(delta: float, word: str) -> None:
    assert statistics.magnitude(delta) == word


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(Problem, match="cannot be compared"):
        statistics.welch([1.0], [1.0, 2.0])
    with pytest.raises(Problem, match="cannot be compared"):
        statistics.cliffs_delta([float("nan")], [1.0])
    with pytest.raises(Problem, match="equal shapes"):
        statistics.pearson([1.0, 2], [1.0, 2, 3], rng=stream(0))


def _mean(row: torch.Tensor) -> statistics.Interval:
    return statistics.mean(row, rng=stream(0, "draws"), repeats=400)


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


def test_pairs_are_asked_for() -> None:
    with pytest.raises(Problem, match="no pairs"):
        statistics.wilcoxon([1, 2], [1, 2, 3])


def test_mcnemar_is_the_exact_binomial() -> None:
    assert statistics.mcnemar(0, 0).p == 1.0
    assert statistics.mcnemar(8, 1).p == pytest.approx(2 * (9 + 1) / 2**9)
    assert statistics.mcnemar(1, 8) == statistics.mcnemar(8, 1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_and_keeps_the_order(p: list[float]) -> None:
    corrected = statistics.holm(p)
    assert all(after >= before and after <= 1 for before, after in zip(p, corrected))
    assert all(
        corrected[i] <= corrected[j] for i in range(len(p)) for j in range(len(p)) if p[i] < p[j]
    )
    assert corrected[p.index(min(p))] == pytest.approx(min(1.0, min(p) * len(p)))
