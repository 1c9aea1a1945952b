"""Calibration: honest about generators it has not seen, thresholds that keep what they promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hardcase.judges.calibration import People, TooFewRated, calibrate, seed_folds
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


def part(people, rows):
    return People(
        people.x[rows], people.expected[rows], people.predicted[rows], tuple(people.generator[i] for i in rows),
        people.rater1[rows], people.rater2[rows],
    )  # fmt: skip


def test_a_question_to_which_people_gave_one_answer_keeps_its_rule():
    """Where every image shows something, nothing is known of what shows nothing."""
    signals, people = rated()
    rows = (people.valid != 0).nonzero().squeeze(1)
    plain = {name: replace(rule, high=0.7) for name, rule in RULES.items()}
    rng = torch.Generator().manual_seed(1)
    found = calibrate(signals[rows], part(people, rows), RULES, rng, plain=plain)
    assert found.measured["not_fitted"] == ["valid"]
    assert found.rules["valid"] == plain["valid"]
    assert found.rules["label_kept"] != plain["label_kept"]
    assert found.measured["valid"]["auroc"]["value"] is None
    assert found.measured["valid"]["tnr"]["total"] == 0
    assert found.measured["valid"]["tpr"]["total"] == len(rows)


def test_too_few_bad_ones_are_refused():
    signals, people = rated()
    lost = (people.label_kept == 0).nonzero().squeeze(1)[:9]
    rows = torch.cat([(people.label_kept == 1).nonzero().squeeze(1), lost])
    with pytest.raises(TooFewRated, match="and lost in 9 images; 10 of each"):
        run(signals[rows], part(people, rows))


def test_no_label_has_a_part_in_the_order():
    signals, people = rated(noise=2.0)
    found = run(signals, people)
    known = people.label_kept >= 0
    plain = float(auroc(signals.classifiers[known].double(), people.label_kept[known] == 1))
    assert found.measured["label_kept"]["auroc"]["value"] == pytest.approx(plain)


@pytest.mark.parametrize("generators", [1, 3])
def test_folds_share_no_seed_and_no_generator(generators):
    rng = np.random.default_rng(0)
    made = [f"g{i}" for i in rng.integers(0, generators, 90)]
    seed = [f"s{i}" for i in rng.integers(0, 30, 90)]
    measured = np.zeros(90, dtype=int)
    for fit, measure in seed_folds(made, seed):
        measured += measure
        fitted_seeds = {s for s, inside in zip(seed, fit) if inside}
        assert not fitted_seeds & {s for s, inside in zip(seed, measure) if inside}
        if generators > 1:
            fitted = {g for g, inside in zip(made, fit) if inside}
            assert not fitted & {g for g, inside in zip(made, measure) if inside}
        assert fit.any()
    assert (measured == 1).all()
