"""Replay: the same model fails all again, another one is told apart, images show what got worse."""

import math

import pytest
import torch
from aftermath import subject, verdict, write_run

from hardcase.analysis.references import excess
from hardcase.errors import HardcaseError
from hardcase.runs.verify import REGRESSION, write_side_file
from hardcase.statistics import mcnemar
from hardcase.suite.replay import _another_training, against_nulls, nearest, replay, stored_excess

LEVELS = [10, 60, 100, 120, 200]
FOUND = {0: [140, 180], 1: [150], 2: [220]}


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", levels=LEVELS, found=FOUND)


def test_the_same_model_fails_every_test_again(run):
    said = replay(run, subject()).summary()
    assert (said["fixed"]["hits"], said["still_failing"]["hits"], said["tests"]) == (0, 4, 4)
    none = {"hits": 0, "total": 4, "share": 0.0, "low": 0.0}
    assert said["seeds"]["newly_failing"] == {**none, "high": pytest.approx(0.6024, abs=1e-3)}
    assert said["mcnemar_p"] == 1.0
    assert said["accepted"] is None


def test_a_more_tolerant_model_fixes_some_and_a_worse_one_loses_seeds(run):
    found = replay(run, subject(0.65))
    said = found.summary()
    assert (said["fixed"]["hits"], said["still_failing"]["hits"]) == (2, 2)
    assert [row["failing"] for row in found.rows()] == [False, True, False, True]
    assert [row["now"] for row in found.rows()] == [0, 1, 0, 1]
    assert said["seeds"]["newly_right"]["total"] == 1
    said = replay(run, subject(0.3)).summary()
    assert said["still_failing"]["hits"] == 4
    newly = said["seeds"]["newly_failing"]
    assert (newly["hits"], newly["total"]) == (2, 4)
    assert said["seeds"]["mcnemar_p"] == mcnemar(2, 0).p


def test_accepted_ones_are_counted_apart(tmp_path):
    judged = [verdict(), verdict("unsure"), verdict(), verdict()]
    run = write_run(tmp_path / "run", levels=LEVELS, found=FOUND, verdicts=judged)
    said = replay(run, subject(0.65)).summary()["accepted"]
    assert (said["tests"], said["fixed"]["hits"], said["still_failing"]["hits"]) == (3, 2, 1)


def test_other_kinds_are_not_replayed_and_nothing_is_a_problem(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found={0: [140], 1: [150]}, kind=[0, 1])
    assert replay(run, subject()).summary()["tests"] == 1
    with pytest.raises(HardcaseError, match="no failures to"):
        replay(write_run(tmp_path / "empty", levels=LEVELS, found={}), subject())


def test_groups_are_seeds_and_equal_pictures_count_once(tmp_path):
    run = write_run(tmp_path / "run", levels=[100, 100, 100, 10], found={0: [140, 180], 3: [220]})
    said = replay(run, subject(0.65)).summary()
    assert said["by_seed"] == {"some_fixed": 1, "none_fixed": 1, "total": 2}
    worse = replay(run, subject(0.3)).summary()["seeds"]
    assert worse["newly_failing"]["hits"] == 3
    assert worse["groups"] == {"better": 0, "worse": 1, "neither": 1}
    assert worse["groups_p"] > worse["mcnemar_p"]


def test_attempted_seeds_count_and_a_run_without_a_version_before_is_refused(tmp_path):
    run = write_run(tmp_path / "run", levels=[10] * 4, found={1: [200]}, verdicts=[verdict()])
    said = nearest(run)
    assert len(said) == 4
    assert sum(math.isfinite(value) for value in said.values()) == 1
    assert min(said.values()) == run.findings["distance"][0].as_py()
    text = 'model = "zoo:lenet5"\ndata = "mnist5k"\nmethod = "pgd"\n'
    (run.folder / "config.toml").write_text(text)
    with pytest.raises(HardcaseError, match="did not search for regressions"):
        against_nulls(run)


def test_what_a_folder_keeps_is_read_again_and_a_zoo_network_is_retrained(run):
    assert stored_excess(run) is None
    found = {str(i): 0.2 if i < 30 else math.inf for i in range(40)}
    null = {str(i): 0.2 if i < 2 else math.inf for i in range(40)}
    seen = excess(found, {"swapped": null}, rng=torch.Generator().manual_seed(0))
    write_side_file(run.store, REGRESSION, seen.to_json())
    kept = stored_excess(run)
    assert kept["shown"]
    assert kept["excess"] == pytest.approx(0.7)
    assert "a regression" in kept["sentence"]
    (run.folder / REGRESSION).write_text("[]")
    assert stored_excess(run) is None
    assert _another_training("zoo:lenet5") == "zoo:lenet5?seed=1"
    assert _another_training("zoo:resnet50-imagenet") is None
    assert _another_training("models.py:old") is None
