"""Calibration: honest about generators it has not seen, thresholds that keep what they promise."""

import pytest
import torch

from hardcase.errors import Problem
from hardcase.judges.calibration import People, calibrate
from hardcase.judges.panel import Signals
from hardcase.judges.rules import DecisionRule, auroc

RULES = {
    "label_kept": DecisionRule(signals=("classifiers",), weights=(1.0,), bias=0.0),
    "valid": DecisionRule(signals=("something",), weights=(1.0,), bias=0.0),
}


def rated(count=400, generators=4, noise=0.8, seed=0):
    """Images of which a third lost their label and a ninth show nothing; some raters err."""
    rng = torch.Generator().manual_seed(seed)
    kept, valid = torch.arange(count) % 3 > 0, torch.arange(count) % 9 > 0
    seen = torch.where(valid, torch.where(kept, 2, 1), -1)
    erring = torch.rand(count, generator=rng) < 0.03
    people = People(
        x=torch.zeros(count, 1, 2, 2, dtype=torch.uint8),
        expected=torch.full((count,), 2),
        predicted=torch.ones(count, dtype=torch.int64),
        generator=tuple(
            f"g{i % generators}" for i in torch.randperm(count, generator=rng).tolist()
        ),
        rater1=seen,
        rater2=torch.where(erring, torch.where(seen == 2, 1, 2), seen),
    )
    zero = torch.zeros(count)
    signals = Signals(
        seen=torch.zeros(count, dtype=torch.int64),
        classifiers=3.0 * (kept & valid) - 1.5 + noise * torch.randn(count, generator=rng),
        something=3.0 * valid - 1.5 + noise * torch.randn(count, generator=rng),
        neighbours=zero, nearness=zero, likeness=zero, contrast=zero,
    )  # fmt: skip
    return signals, people


def run(signals, people):
    return calibrate(signals, people, RULES, torch.Generator().manual_seed(1))


def test_thresholds_keep_their_promise_and_rates_have_intervals():
    signals, people = rated()
    found = run(signals, people)
    both = found.measured["confirmed"]
    assert both["precision"]["share"] >= 0.93
    assert both["recall"]["share"] > 0.5
    kept = found.measured["label_kept"]
    assert kept["auroc"]["low"] < kept["auroc"]["value"] < kept["auroc"]["high"]
    assert kept["auroc"]["value"] > 0.95
    assert kept["false_no"]["share"] <= 0.06
    assert kept["split"] == int((people.label_kept == -1).sum()) > 0
    assert found.measured["pooled_over"] == "4 generators"
    assert found.rules["label_kept"].low <= found.rules["label_kept"].high
    assert set(found.measured["generators"]) == {"g0", "g1", "g2", "g3"}


def test_a_generator_is_scored_by_rules_that_have_not_seen_it():
    """Labels of one generator turned round must not change its own pooled scores, only those of the others."""
    from hardcase.judges.calibration import _folds, _pooled

    signals, people = rated()
    folds, _ = _folds(people)
    truth = people.label_kept
    inside = folds[2][1]
    lied = torch.where(inside & (truth >= 0), 1 - truth, truth)
    before, after = (
        _pooled(RULES["label_kept"], signals, each, each == 1, folds) for each in (truth, lied)
    )
    assert torch.equal(before[0][inside], after[0][inside])
    assert [said for said, own in zip(before[1], inside) if own] == [
        said for said, own in zip(after[1], inside) if own
    ]
    assert not torch.allclose(before[0][~inside], after[0][~inside])


def test_one_generator_is_cut_into_parts_and_said_so():
    signals, people = rated(generators=1)
    assert "5 parts" in run(signals, people).measured["pooled_over"]


def test_calibrated_probabilities_are_about_right():
    signals, people = rated(count=1200, noise=1.2)
    assert run(signals, people).measured["label_kept"]["ece"] < 0.1


def test_too_few_bad_ones_are_refused():
    signals, people = rated()
    rows = (people.valid != 0).nonzero().squeeze(1)
    fewer = People(
        people.x[rows], people.expected[rows], people.predicted[rows], tuple(people.generator[i] for i in rows),
        people.rater1[rows], people.rater2[rows],
    )  # fmt: skip
    with pytest.raises(Problem, match="valid = yes"):
        run(signals[rows], fewer)


def test_no_label_has_a_part_in_the_order():
    signals, people = rated(noise=2.0)
    found = run(signals, people)
    known = people.label_kept >= 0
    plain = float(auroc(signals.classifiers[known].double(), people.label_kept[known] == 1))
    assert found.measured["label_kept"]["auroc"]["value"] == pytest.approx(plain)
