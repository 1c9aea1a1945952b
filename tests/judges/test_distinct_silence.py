"""Silent failures: what a subject's own confidence would have caught."""

import pytest
import torch

from hardcase.judges.distinct import alarm, ece, silence, silent


def test_the_alarm_refuses_one_right_answer_in_twenty():
    right = torch.linspace(0.5, 1.0, 101)
    assert alarm(right) == pytest.approx(0.525)
    assert silent(torch.tensor([0.52, 0.53, 0.99]), right).tolist() == [False, True, True]


def test_facts_have_their_counts():
    right, wrong = torch.full((40,), 0.9), torch.tensor([0.95, 0.95, 0.5, 0.4])
    said = silence(wrong, right)
    assert (said["silent"]["hits"], said["caught"]["hits"], said["silent"]["total"]) == (2, 2, 4)
    curve = said["risk_coverage"]
    assert curve[0] == {"coverage": 2 / 44, "risk": 1.0, "confidence": pytest.approx(0.95)}
    assert curve[-1]["coverage"] == 1.0
    assert curve[-1]["risk"] == pytest.approx(4 / 44)
    assert said["ece_tests"] == pytest.approx(float(wrong.double().mean()))


def test_ece_of_known_bins():
    confidence = torch.tensor([0.95] * 10 + [0.65] * 10, dtype=torch.float64)
    right = torch.tensor([1.0] * 8 + [0.0] * 2 + [1.0] * 6 + [0.0] * 4, dtype=torch.float64)
    assert ece(confidence, right) == pytest.approx(0.5 * 0.15 + 0.5 * 0.05)


def test_nothing_confirmed_is_no_error():
    said = silence(torch.zeros(0), torch.rand(5))
    assert said["ece_tests"] is None
    assert said["silent"]["total"] == 0
    assert silence(torch.zeros(0), torch.zeros(0))["risk_coverage"] == []
