"""Rules: fitted as they should be, answering in three words, scored as the libraries score."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from hardcase.judges import rules
from hardcase.judges.rules import DecisionRule, Signals, auroc, auroc_interval, logistic
from tiny import LAWS, check_coverage


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


@pytest.mark.parametrize(
    ("law", "shift"), [("normal", 1.0), ("skewed shares", 0.08), ("zero-inflated", 1.0)]
)
@pytest.mark.parametrize(("yes", "no"), [(3, 3), (5, 30), (10, 10), (30, 30)])
def test_intervals_of_auroc_cover_what_they_say(law, shift, yes, no):
    """Scores of what is true are shifted; zeros are ties."""
    draw, _ = LAWS[law]
    rng = np.random.default_rng(0)
    false, true = (draw(rng, 4000) + more for more in (0, shift))
    truth = np.arange(yes + no) < yes
    area = auroc(*map(torch.from_numpy, (np.r_[true, false], np.arange(8000) < 4000)))
    scores = draw(rng, 400, yes + no) + shift * truth
    found = [auroc_interval(*map(torch.from_numpy, (row, truth))) for row in scores]
    check_coverage([one["low"] <= area <= one["high"] for one in found])


def test_the_interval_of_auroc_says_how_many_there_were():
    truth = torch.arange(13) < 10
    found = auroc_interval(truth.double(), truth)
    assert (found["value"], found["yes"], found["no"]) == (1.0, 10, 3)
    assert 0.5 < found["low"] < 0.9, "a perfect order of few images is not certain"
    assert found["high"] == 1
    turned = auroc_interval(-truth.double(), truth)
    assert turned["high"] == pytest.approx(1 - found["low"])
    nothing = auroc_interval(torch.rand(5), torch.ones(5, dtype=torch.bool))
    assert nothing["value"] is None


def test_error_rates_leave_split_ones_out_and_count_the_undecided():
    answers = [True, False, None, True, False, None, True]
    truth = torch.tensor([1, 1, 1, 0, 0, 0, -1])
    rates = rules.error_rates(answers, truth)
    assert (rates["tpr"]["hits"], rates["tpr"]["total"]) == (1, 3)
    assert (rates["tnr"]["hits"], rates["tnr"]["total"]) == (1, 3)
    assert rates["false_yes"]["hits"] == rates["false_no"]["hits"] == 1
    assert (rates["undecided"]["hits"], rates["undecided"]["total"], rates["split"]) == (2, 7, 1)


def test_precision_counts_split_ones_as_wrong():
    found = rules.precision([True, True, None, False], torch.tensor([True, False, True, True]))
    assert found["precision"]["share"] == 0.5
    assert found["recall"]["share"] == pytest.approx(1 / 3)


def test_the_alarm_refuses_one_right_answer_in_twenty():
    confirmed = torch.tensor([True, True, True, False])
    confidence = torch.tensor([0.52, 0.53, 0.99, 0.99])
    found, facts = rules.silent(confidence, torch.linspace(0.5, 1.0, 101), confirmed)
    assert facts["alarm"] == pytest.approx(0.525)
    assert found.tolist() == [False, True, True, False]
    assert (facts["silent"]["hits"], facts["caught"]["hits"], facts["silent"]["total"]) == (2, 1, 3)
    nothing, facts = rules.silent(torch.rand(5), torch.zeros(0), torch.zeros(5, dtype=torch.bool))
    assert not nothing.any()
    assert (facts["alarm"], facts["silent"]["total"]) == (1.0, 0)
