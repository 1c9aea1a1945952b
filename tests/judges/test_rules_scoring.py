"""Scores against scikit-learn and against their definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hardcase.judges.rules import auroc, auroc_interval, error_rates, precision, reliability


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30))
def test_auroc_agrees_with_scikit_learn(rows):
    score, truth = (torch.tensor(column) for column in zip(*rows))
    ours = float(auroc(score.double(), truth))
    if 0 < int(truth.sum()) < len(truth):
        assert ours == pytest.approx(roc_auc_score(truth.numpy(), score.numpy()))
    else:
        assert math.isnan(ours)


def test_the_interval_holds_the_value_and_says_how_many_there_were():
    rng = torch.Generator().manual_seed(0)
    truth = torch.arange(200) % 4 > 0
    found = auroc_interval(truth + torch.randn(200, generator=rng), truth, rng)
    assert found["low"] < found["value"] < found["high"]
    assert found["high"] - found["low"] < 0.25
    assert (found["yes"], found["no"]) == (150, 50)
    assert auroc_interval(torch.rand(5), torch.ones(5, dtype=torch.bool), rng)["value"] is None


def test_error_rates_leave_split_ones_out_and_count_the_undecided():
    answers = [True, False, None, True, False, None, True]
    truth = torch.tensor([1, 1, 1, 0, 0, 0, -1])
    rates = error_rates(answers, truth)
    assert (rates["tpr"]["hits"], rates["tpr"]["total"]) == (1, 3)
    assert (rates["tnr"]["hits"], rates["tnr"]["total"]) == (1, 3)
    assert rates["false_yes"]["hits"] == rates["false_no"]["hits"] == 1
    assert (rates["undecided"]["hits"], rates["undecided"]["total"], rates["split"]) == (2, 7, 1)


def test_precision_counts_split_ones_as_wrong():
    found = precision([True, True, None, False], torch.tensor([True, False, True, True]))
    assert found["precision"]["share"] == 0.5
    assert found["recall"]["share"] == pytest.approx(1 / 3)


def test_reliability_of_a_perfect_and_of_a_boastful_judge():
    truth = torch.tensor([True, False] * 50)
    honest, gap = reliability(torch.full((100,), 0.5), truth)
    assert len(honest) == 1
    assert gap == pytest.approx(0.0)
    _, gap = reliability(torch.full((100,), 0.99), truth)
    assert gap == pytest.approx(0.49)
