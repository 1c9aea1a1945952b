"""The loop closed: a judge fitted to one half of the raters, on other seeds and other generators."""

import numpy as np
import pytest
import torch
from asking import NAMES, as_people

from hardcase.judges.calibration import calibrate, read_people
from hardcase.judges.panel import Signals
from hardcase.judges.rules import DecisionRule
from hardcase.study import folds, rated


def test_what_people_saw_as_arrays(make, runs):
    study = make(raters=12)
    as_people(study)
    found = rated(study.folder)
    count = len(found["expected"])
    assert 40 < count <= len(study.main)
    assert found["images"].shape == (count, 1, 28, 28)
    assert found["images"].dtype == np.uint8
    assert set(found["generator"]) == {"sinvad", "real"}
    real = found["generator"] == "real"
    assert (found["rater1"][real] == found["expected"][real]).mean() > 0.7
    people = read_people(found, where="study", shape=(1, 28, 28), classes=10)
    assert len(people) == count
    assert people.seed == tuple(found["seed"])


def test_halves_are_different_people(make):
    study = make("label", raters=6)
    store = as_people(study)
    raters = sorted(one.id for one in store.raters())
    from hardcase.study.calibration import _halves

    first, second = _halves(raters)
    assert not first & second
    assert first | second == set(raters)
    assert abs(len(first) - len(second)) <= 1


@pytest.mark.parametrize("generators", [1, 3])
def test_folds_share_no_seed_and_no_generator(generators):
    rng = np.random.default_rng(0)
    made = [f"g{i}" for i in rng.integers(0, generators, 90)]
    seed = [f"s{i}" for i in rng.integers(0, 30, 90)]
    measured = np.zeros(90, dtype=int)
    for fit, measure in folds(made, seed):
        measured += measure
        fitted_seeds = {s for s, inside in zip(seed, fit) if inside}
        assert not fitted_seeds & {s for s, inside in zip(seed, measure) if inside}
        if generators > 1:
            fitted = {g for g, inside in zip(made, fit) if inside}
            assert not fitted & {g for g, inside in zip(made, measure) if inside}
        assert fit.any()
    assert (measured == 1).all()


def test_the_judge_is_fitted_to_one_half_of_the_raters_and_measured_on_the_other():
    rng = torch.Generator().manual_seed(0)
    count = 240
    kept = torch.arange(count) % 3 > 0
    valid = torch.arange(count) % 9 > 0
    first = torch.where(valid, torch.where(kept, 2, 1), -1)
    second = torch.where((torch.rand(count, generator=rng) < 0.2) & valid, 1, first)
    arrays = {
        "images": np.zeros((count, 1, 4, 4), np.uint8),
        "expected": np.full(count, 2),
        "predicted": np.ones(count, int),
        "generator": np.array([NAMES[i % 3] for i in range(count)]),
        "seed": np.array([f"s{i // 6}" for i in range(count)]),
        "rater1": first.numpy(),
        "rater2": second.numpy(),
    }
    zero = torch.zeros(count)
    signals = Signals(
        seen=torch.zeros(count, dtype=torch.int64),
        classifiers=3.0 * (kept & valid) - 1.5 + 0.5 * torch.randn(count, generator=rng),
        something=3.0 * valid - 1.5 + 0.5 * torch.randn(count, generator=rng),
        neighbours=zero, nearness=zero, likeness=zero, contrast=zero,
    )  # fmt: skip
    rules = {
        "label_kept": DecisionRule(signals=("classifiers",), weights=(1.0,), bias=0.0),
        "valid": DecisionRule(signals=("something",), weights=(1.0,), bias=0.0),
    }

    def measured(given):
        people = read_people(given, where="x", shape=(1, 4, 4), classes=10)
        return calibrate(signals, people, rules, torch.Generator().manual_seed(1)).measured

    found = measured(arrays)
    assert "two halves of the raters" in found["pooled_over"]
    assert found["label_kept"]["tpr"]["total"] == int((second == 2).sum())
    assert found["label_kept"]["tnr"]["total"] == int((second != 2).sum())
    plain = measured({name: value for name, value in arrays.items() if name != "seed"})
    assert plain["label_kept"]["tpr"]["total"] == int(((first == 2) & (second == 2)).sum())
    assert found["label_kept"]["auroc"]["value"] < plain["label_kept"]["auroc"]["value"]
