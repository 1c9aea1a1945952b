"""Calibration: honest about generators it has not seen, thresholds that keep what they promise."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.judges import calibration
from hardcase.judges.calibration import People, TooFewRated, calibrate, read_people, seed_folds
from hardcase.judges.rules import DecisionRule, Signals
from hardcase.statistics import auroc

SIGNALS = {"label_kept": ("classifiers",), "domain": ("something",)}
RULES = {
    name: DecisionRule(signals=of, weights=(1.0,), bias=0.0, low=0.0)
    for name, of in SIGNALS.items()
}


def rated(count=400, generators=4, noise=0.8, seed=0):
    """Images of which a third lost their label and a ninth show nothing; some raters err."""
    rng = torch.Generator().manual_seed(seed)
    kept, valid = torch.arange(count) % 3 > 0, torch.arange(count) % 9 > 0
    seen = torch.where(valid, torch.where(kept, 2, 1), -1)
    erring = torch.rand(count, generator=rng) < 0.03
    order = torch.randperm(count, generator=rng).tolist()
    people = People(
        x=torch.zeros(count, 1, 2, 2, dtype=torch.uint8),
        expected=torch.full((count,), 2),
        predicted=torch.ones(count, dtype=torch.int64),
        generator=tuple(f"g{i % generators}" for i in order),
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
    return calibrate([signals, signals], people, RULES)


def pooled(signals, people, folds):
    return calibration._pooled(RULES, [signals], people, folds)


def test_thresholds_keep_their_promise_and_rates_have_intervals():
    signals, people = rated()
    found = run(signals, people)
    kept = found.measured["label_kept"]
    assert kept["precision_where_agreed"]["share"] >= 0.95
    assert kept["recall"]["share"] > 0.5
    assert kept["auroc"]["low"] < kept["auroc"]["value"] < kept["auroc"]["high"]
    assert kept["auroc"]["value"] > 0.95
    assert kept["split"] == int((people.label_kept == -1).sum()) > 0
    assert set(found.measured["methods"]) == {"g0", "g1", "g2", "g3"}
    assert found.measured["pooled_over"] == "4 generators"
    assert found.rules["label_kept"].low <= found.rules["label_kept"].high


def test_a_generator_is_scored_by_rules_that_have_not_seen_it():
    """Labels of one generator turned round must not change its own pooled scores, only those of the others."""
    signals, people = rated()
    folds, _ = calibration._folds(people)
    inside = folds[2][1]
    raters = {name: getattr(people, name) for name in ("rater1", "rater2")}
    turned = {name: torch.where(inside, 3 - seen, seen) for name, seen in raters.items()}
    lied = replace(people, **turned)  # 2, the label, becomes 1
    before, after = (pooled(signals, each, folds) for each in (people, lied))
    assert torch.equal(before[0][inside], after[0][inside])
    assert all(one == two for one, two, own in zip(before[1], after[1], inside) if own)
    assert not torch.allclose(before[0][~inside], after[0][~inside])


def test_one_generator_is_cut_into_parts_and_said_so():
    signals, people = rated(generators=1)
    assert "5 parts" in run(signals, people).measured["pooled_over"]


def test_calibrated_probabilities_are_about_right():
    signals, people = rated(count=1200, noise=1.2)
    probability, _ = pooled(signals, people, calibration._folds(people)[0])
    known = people.label_kept >= 0
    order = probability[known].argsort()
    for part in order.tensor_split(5):
        share = (people.label_kept[known][part] == 1).double().mean()
        assert abs(float(probability[known][part].mean() - share)) < 0.1


def test_too_few_bad_ones_are_refused():
    signals, people = rated()
    rows = people.label_kept == 1
    rows[(people.label_kept == 0).nonzero().squeeze(1)[:9]] = True
    with pytest.raises(TooFewRated, match="and lost in 9 images; 10 of each"):
        run(signals[rows], people[rows])


def test_no_label_has_a_part_in_the_order():
    signals, people = rated(noise=2.0)
    found = run(signals, people)
    known = people.label_kept >= 0
    plain = auroc(signals.classifiers[known].double(), people.label_kept[known] == 1)
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


def arrays(count=6, **changes):
    given = {
        "images": np.zeros((count, 8, 8), dtype=np.uint8),
        "expected": np.full(count, 2),
        "predicted": np.arange(count) % 3,
        "generator": np.array([f"g{i % 2}" for i in range(count)]),
        "rater1": np.array([2, 2, 1, -1, -1, 0])[:count],
        "rater2": np.array([2, 1, 1, -1, 2, 2])[:count],
    }
    return {**given, **changes}


def read(given):
    return read_people(given, where="labels.npz", shape=(1, 8, 8), classes=3)


def test_truth_is_what_both_say_and_the_rest_is_split():
    people = read(arrays())
    assert people.x.shape == (6, 1, 8, 8)
    assert people.label_kept.tolist() == [1, -1, 0, 0, -1, -1]
    assert people.domain.tolist() == [1, 1, 1, 0, -1, 1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"images": np.zeros((6, 9, 9), dtype=np.uint8)}, "was made for"),
        ({"images": np.zeros((6, 8, 8))}, "float64"),
        ({"rater1": np.full(6, 3)}, "rater1 runs from 3 to 3"),
        ({"expected": np.full(6, -1)}, "expected runs from -1"),
        ({"rater2": np.zeros(5)}, "rater2 5"),
    ],
)
def test_what_does_not_fit_is_refused(changes, word):
    with pytest.raises(HardcaseError, match=word):
        read(arrays(**changes))


def test_a_missing_array_is_named_and_channels_may_come_last():
    given = arrays()
    del given["generator"]
    with pytest.raises(HardcaseError, match="generator") as raised:
        read(given)
    assert "rater2" in str(raised.value)
    given = arrays(images=np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8))
    people = read_people(given, where="x", shape=(3, 8, 8), classes=3)
    assert torch.equal(people.x[0, 1], torch.from_numpy(given["images"][0, :, :, 1]))
