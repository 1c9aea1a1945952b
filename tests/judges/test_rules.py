"""Rules: fitted as they should be, answering in a word, scored by what people said."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hardcase.judges import rules
from hardcase.judges.rules import DecisionRule, Signals, logistic, verdict_words


def signals(count=300, seed=0):
    rng = torch.Generator().manual_seed(seed)
    truth = torch.arange(count) % 3 > 0
    good = truth * 2.0 + torch.randn(count, generator=rng)
    others = ("neighbours", "nearness", "likeness", "contrast")
    columns = {name: torch.randn(count, generator=rng) for name in others}
    seen = torch.zeros(count, dtype=torch.int64)
    return Signals(seen=seen, classifiers=good, something=-good, **columns), truth


def test_logistic_regression_is_the_known_one_does_not_run_away_and_holds_to_its_prior():
    """scikit-learn penalises no intercept, but a constant column of 10 as hard as ours."""
    read, truth = signals()
    values = read.classifiers.double()
    ours = logistic(values, truth, tight=2.0)
    options = {"class_weight": "balanced", "tol": 1e-12, "max_iter": 5000, "fit_intercept": False}
    inputs = np.stack([values.numpy(), np.full(len(values), 10.0)], 1)
    theirs = LogisticRegression(C=0.5, **options).fit(inputs, truth.numpy())
    slope, tenth = theirs.coef_[0].tolist()
    assert ours == pytest.approx((slope, 10 * tenth), rel=1e-4)
    values = torch.tensor([-1.0, -0.5, 0.5, 1.0], dtype=torch.float64)
    slope, bias = logistic(values, torch.tensor([False, False, True, True]))
    assert 0 < slope < 10
    assert bias == pytest.approx(0, abs=1e-6)
    slope, _ = logistic(read.neighbours, truth, tight=1e6, prior=(0.7, 0.0))
    assert slope == pytest.approx(0.7, abs=1e-2)


def test_votes_are_in_units_of_spread_and_are_not_fitted():
    read, truth = signals()
    votes = {"classifiers": 1.0, "neighbours": 0.5, "contrast": 0.25}
    rule = rules.rule_from_votes(votes, read, truth)
    spread = read.of(rule.signals).double().std(0)
    counted = torch.tensor(rule.weights, dtype=torch.float64) * spread
    assert (counted / counted[0]).tolist() == pytest.approx([1.0, 0.5, 0.25])
    right = (rule.evidence(read) > 0) == truth
    assert float(right.float().mean()) > 0.75
    spread_out = replace(read, neighbours=1000 * read.neighbours + 7)
    wider = rules.rule_from_votes(votes, spread_out, truth)
    assert wider.weights[1] == pytest.approx(rule.weights[1] / 1000)
    assert torch.allclose(wider.evidence(spread_out), rule.evidence(read), atol=1e-4)


def test_people_correct_scale_and_offset_only():
    read, truth = signals()
    rule = DecisionRule(signals=("classifiers",), weights=(10.0,), bias=3.0)
    fitted = rules.fit_to_people(rule, rule.evidence(read), truth)
    assert (fitted.weights, fitted.bias) == (rule.weights, rule.bias)
    said = rule.evidence(read) * fitted.scale + fitted.offset > 0
    assert float((said == truth).float().mean()) > 0.8
    assert fitted.scale < 0.5


def a_rule(name, low, high):
    return DecisionRule(signals=(name,), weights=(1.0,), bias=0.0, low=low, high=high)


def test_a_verdict_follows_the_mean_of_trainings_that_do_not_contradict_each_other():
    """Log-odds of two trainings: both sure, one unsure, opposite, both refusing, nothing at all, one a little below."""
    zero = torch.zeros(6)
    first, second = (
        Signals(
            torch.zeros(6, dtype=torch.int64),
            torch.tensor(odds),
            zero,
            torch.tensor([5.0, 5.0, 5.0, 5.0, -5.0, 5.0]),
            zero,
            zero,
            zero,
        )
        for odds in ([4.0, 4.0, 4.0, -4.0, 4.0, 4.0], [4.0, 0.0, -4.0, -4.0, 4.0, 2.0])
    )
    both = {"label_kept": a_rule("classifiers", 0.1, 0.9), "domain": a_rule("something", 0.5, 1.0)}
    words, chances = verdict_words(both, [first, second])
    assert words == ["kept", "unsure", "unsure", "lost", "foreign", "kept"]
    assert chances[2] == pytest.approx(0.5)
    split = replace(first, seen=torch.full((6,), -1))  # model families disagree about the class
    assert verdict_words(both, [split])[0] == ["unsure"] * 4 + ["foreign", "unsure"]


def test_error_rates_leave_split_ones_out_and_count_the_unsure():
    words = ["kept", "lost", "unsure", "kept", "lost", "foreign", "kept"]
    truth = torch.tensor([1, 1, 1, 0, 0, 0, -1])
    rates = rules.error_rates(words, truth)
    counted = {
        name: (rate["hits"], rate["total"])
        for name, rate in rates.items()
        if name not in ("split", "losses")
    }
    assert counted == {
        "precision": (1, 3),
        "precision_where_agreed": (1, 2),
        "recall": (1, 3),
        "lost_right": (2, 3),
        "unsure": (1, 7),
    }
    assert (rates["split"], rates["losses"]) == (1, 3)


def test_the_alarm_refuses_one_right_answer_in_twenty():
    accepted = torch.tensor([True, True, True, False])
    confidence = torch.tensor([0.52, 0.53, 0.99, 0.99])
    found, facts = rules.silent(confidence, torch.linspace(0.5, 1.0, 101), accepted)
    assert facts["alarm"] == pytest.approx(0.525)
    assert found.tolist() == [False, True, True, False]
    assert (
        facts["high_confidence"]["hits"],
        facts["caught"]["hits"],
        facts["high_confidence"]["total"],
    ) == (2, 1, 3)
    nothing, facts = rules.silent(torch.rand(5), torch.zeros(0), torch.zeros(5, dtype=torch.bool))
    assert not nothing.any()
    assert (facts["alarm"], facts["high_confidence"]["total"]) == (1.0, 0)
