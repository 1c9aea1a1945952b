"""Rules: fitted as they should be, answering in three words."""

from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hardcase.judges.panel import Signals
from hardcase.judges.rules import DecisionRule, agreeing, learned, logistic


def signals(count=300, seed=0):
    rng = torch.Generator().manual_seed(seed)
    truth = torch.arange(count) % 3 > 0
    good = truth * 2.0 + torch.randn(count, generator=rng)
    columns = {
        name: torch.randn(count, generator=rng)
        for name in ("neighbours", "nearness", "likeness", "contrast")
    }
    return Signals(
        seen=torch.zeros(count, dtype=torch.int64), classifiers=good, something=-good, **columns
    ), truth


def test_logistic_regression_is_the_known_one():
    given, truth = signals()
    values = given.of(["classifiers", "neighbours"]).double()
    ours = logistic(values, truth, tight=2.0)
    theirs = LogisticRegression(C=1 / 2.0, class_weight="balanced", tol=1e-10, max_iter=500).fit(
        values.numpy(), truth.numpy()
    )
    assert ours[:2].tolist() == pytest.approx(theirs.coef_[0].tolist(), abs=0.01)
    assert float(ours[2]) == pytest.approx(float(theirs.intercept_[0]), abs=0.02)


def test_separable_answers_do_not_run_away():
    values = torch.tensor([[-1.0], [-0.5], [0.5], [1.0]], dtype=torch.float64)
    weights = logistic(values, torch.tensor([False, False, True, True]), tight=1.0)
    assert bool(weights.isfinite().all())
    assert 0 < float(weights[0]) < 10


def test_a_strong_prior_holds():
    given, truth = signals()
    values = given.of(["neighbours"]).double()
    assert logistic(values, truth, tight=1e6, prior=(0.7, 0.0)).tolist()[0] == pytest.approx(
        0.7, abs=1e-2
    )


def test_votes_are_in_units_of_spread_and_are_not_fitted():
    given, truth = signals()
    votes = {"classifiers": 1.0, "neighbours": 0.5, "contrast": 0.25}
    rule = learned(votes, given, truth)
    spread = given.of(rule.signals).double().std(0)
    counted = torch.tensor(rule.weights, dtype=torch.float64) * spread
    assert (counted / counted[0]).tolist() == pytest.approx([1.0, 0.5, 0.25])
    right = (rule.evidence(given) > 0) == truth
    assert float(right.float().mean()) > 0.75
    wider = learned(votes, replace(given, neighbours=1000 * given.neighbours + 7), truth)
    assert wider.weights[1] == pytest.approx(rule.weights[1] / 1000)
    assert torch.allclose(
        wider.evidence(replace(given, neighbours=1000 * given.neighbours + 7)),
        rule.evidence(given),
        atol=1e-4,
    )


def test_three_answers():
    rule = DecisionRule(signals=("classifiers",), weights=(1.0,), bias=0.0, low=0.2, high=0.9)
    assert rule.answers(torch.tensor([0.1, 0.2, 0.5, 0.9, 0.95], dtype=torch.float64)) == (
        False,
        None,
        None,
        True,
        True,
    )


def test_a_rule_survives_its_card():
    rule = DecisionRule(
        signals=("classifiers", "contrast"),
        weights=(1.0, 0.5),
        bias=-0.3,
        scale=0.4,
        offset=1.0,
        low=0.1,
        high=0.7,
    )
    assert DecisionRule.from_card(rule.to_card()) == rule


def test_people_correct_scale_and_offset_only():
    given, truth = signals()
    rule = DecisionRule(signals=("classifiers",), weights=(10.0,), bias=3.0)
    fitted = agreeing(rule, rule.evidence(given), truth)
    assert (fitted.weights, fitted.bias) == (rule.weights, rule.bias)
    middle = float(
        ((rule.evidence(given) * fitted.scale + fitted.offset > 0) == truth).float().mean()
    )
    assert middle > 0.8
    assert fitted.scale < 0.5
