"""The loop closed: a judge fitted to one half of the raters, on other images and other generators."""

import shutil

import numpy as np
import pytest
import torch
from asking import NAMES, as_people
from drawn import drawn_run

from hardcase import Run, Verdicts, judge
from hardcase.errors import HardcaseError
from hardcase.judges.calibration import calibrate, read_people
from hardcase.judges.rules import DecisionRule, Signals
from hardcase.report import report
from hardcase_study import analyse, export, new, rated, record


def test_what_people_saw_as_arrays(make, tmp_path):
    study = make(raters=12)
    as_people(study)
    found = rated(study.folder)
    with np.load(export(study, "npz", tmp_path / "rated.npz")) as stored:
        assert {*stored} == {*found}
        assert (stored["rater1"] == found["rater1"]).all()
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


def test_one_rater_labels_nothing_twice(make):
    from hardcase.judges.calibration import TooFewRated
    from hardcase_study import simulate

    study = make(raters=12)
    simulate(study, raters=1)
    with pytest.raises(HardcaseError, match="no person has answered"):
        rated(study.folder)
    as_people(study, raters=1)
    with pytest.raises(TooFewRated, match="by one person who is not flagged, none by two"):
        rated(study.folder)


@pytest.fixture
def own_run(runs, tmp_path):
    """A run that may be written into."""
    shutil.copytree(runs / "sinvad", tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def answered(own_run, tmp_path):
    """A study of that run, of which nothing was known before people answered it."""
    study = new([own_run], "label", tmp_path / "study", per_rater=30)
    assert record(study.folder) == {}
    as_people(study)
    return study


def test_what_people_said_is_entered_into_the_run_and_told(own_run, answered):
    entry = record(answered.folder)[str(own_run)]
    found = analyse(answered.folder)["confirmed"]["sinvad"]
    assert entry["rate"] == found
    run = Run(own_run)
    assert run.record["people"] == entry
    assert entry["rated"] == len(entry["findings"]) == found["rated"] > 20
    words = list(entry["findings"].values())
    assert entry["confirmed"] == words.count("confirmed") > 10
    assert entry["undecided"] == words.count("undecided")
    told = run.summary().splitlines()[-1]
    assert f"{found['rated']} of {found['failing']} rated" in told
    assert f"[{100 * found['low']:.1f}, {100 * found['high']:.1f}]" in told
    assert "people looked" in (own_run / report(run)).read_text().lower()
    kept = judge(run, by=lambda pairs: Verdicts(["unsure"] * len(pairs)))
    assert kept.record["people"] == entry


def test_rated_findings_are_never_drawn_again_also_from_a_copy(own_run, answered, tmp_path):
    entry = record(answered.folder)[str(own_run)]
    shutil.copytree(answered.settings["runs"]["sinvad"]["folder"], tmp_path / "copy")
    seeds = {
        row["original"]
        for row in Run(own_run).findings.to_pylist()
        if row["id"] in entry["findings"]
    }
    again = new([own_run, tmp_path / "copy"], "label", tmp_path / "again")
    tests = [one for one in again.stimuli.values() if one.role == "test"]
    assert tests
    assert not {one.seed for one in tests} & seeds
    assert again.settings["runs"]["own"]["rated_before"] == len(seeds)
    as_people(again)
    both = record(again.folder, runs=[own_run])[str(own_run)]
    assert set(both["findings"]) > set(entry["findings"])
    assert len(both["studies"]) == 2


def test_a_run_is_known_by_its_findings(own_run, answered, tmp_path):
    moved = own_run.rename(tmp_path / "moved")
    assert record(answered.folder) == {}
    assert list(record(answered.folder, runs=[moved])) == [str(moved)]
    drawn_run(tmp_path / "own", seed=9)
    assert record(answered.folder) == {}


def test_halves_are_different_people(make):
    study = make("label", raters=6)
    store = as_people(study)
    raters = sorted(one.id for one in store.raters())
    from hardcase_study.calibration import _halves

    first, second = _halves(raters)
    assert not first & second
    assert first | second == set(raters)
    assert abs(len(first) - len(second)) <= 1


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
        "domain": DecisionRule(signals=("something",), weights=(1.0,), bias=0.0, low=0.0),
    }

    def measured(given):
        people = read_people(given, where="x", shape=(1, 4, 4), classes=10)
        return calibrate([signals], people, rules).measured

    found = measured(arrays)
    assert "two halves of the raters" in found["pooled_over"]
    assert found["label_kept"]["recall"]["total"] == int((second == 2).sum())
    assert found["label_kept"]["losses"] == int((second != 2).sum())
    plain = measured({name: value for name, value in arrays.items() if name != "seed"})
    both = int(((first == 2) & (second == 2)).sum())
    assert plain["label_kept"]["recall"]["total"] == both
    assert found["label_kept"]["auroc"]["value"] < plain["label_kept"]["auroc"]["value"]
