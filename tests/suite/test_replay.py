"""Replay: the same model fails all again, another one is told apart, seeds show what got worse."""

import pytest
from aftermath import subject, verdict, write_run

from hardcase.errors import Problem
from hardcase.statistics import mcnemar
from hardcase.suite.replay import replay

LEVELS = [10, 60, 100, 120, 200]
FOUND = {0: [140, 180], 1: [150], 2: [220]}


def test_the_same_model_fails_every_test_again(tmp_path):
    said = replay(write_run(tmp_path / "run", levels=LEVELS, found=FOUND), subject()).summary()
    assert (said["fixed"]["hits"], said["still_failing"]["hits"], said["tests"]) == (0, 4, 4)
    none = {"hits": 0, "total": 4, "share": 0.0, "low": 0.0}
    assert said["seeds"]["newly_failing"] == {**none, "high": pytest.approx(0.4899, abs=1e-3)}
    assert said["mcnemar_p"] == 1.0
    assert said["confirmed"] is None


def test_a_more_tolerant_model_fixes_some(tmp_path):
    found = replay(write_run(tmp_path / "run", levels=LEVELS, found=FOUND), subject(0.65))
    said = found.summary()
    assert (said["fixed"]["hits"], said["still_failing"]["hits"]) == (2, 2)
    assert [row["failing"] for row in found.rows()] == [False, True, False, True]
    assert [row["now"] for row in found.rows()] == [0, 1, 0, 1]
    assert said["seeds"]["newly_right"]["total"] == 1


def test_seeds_show_what_got_worse(tmp_path):
    said = replay(write_run(tmp_path / "run", levels=LEVELS, found=FOUND), subject(0.3)).summary()
    assert said["still_failing"]["hits"] == 4
    newly = said["seeds"]["newly_failing"]
    assert (newly["hits"], newly["total"]) == (2, 4)
    assert said["seeds"]["mcnemar_p"] == mcnemar(2, 0).p


def test_confirmed_ones_are_counted_apart(tmp_path):
    judged = [verdict(), verdict(kept=None), verdict(), verdict()]
    run = write_run(tmp_path / "run", levels=LEVELS, found=FOUND, verdicts=judged)
    said = replay(run, subject(0.65)).summary()["confirmed"]
    assert (said["tests"], said["fixed"]["hits"], said["still_failing"]["hits"]) == (3, 2, 1)


def test_other_kinds_are_not_replayed_and_nothing_is_a_problem(tmp_path):
    run = write_run(tmp_path / "run", levels=LEVELS, found={0: [140], 1: [150]}, kind=[0, 1])
    assert replay(run, subject()).summary()["tests"] == 1
    with pytest.raises(Problem, match="no failing findings"):
        replay(write_run(tmp_path / "empty", levels=LEVELS, found={}), subject())


def test_groups_are_seeds_and_equal_pictures_count_once(tmp_path):
    run = write_run(tmp_path / "run", levels=[100, 100, 100, 10], found={0: [140, 180], 3: [220]})
    said = replay(run, subject(0.65)).summary()
    assert said["by_seed"] == {"some_fixed": 1, "none_fixed": 1, "total": 2}
    worse = replay(run, subject(0.3)).summary()["seeds"]
    assert worse["newly_failing"]["hits"] == 3
    assert worse["groups"] == {"better": 0, "worse": 1, "neither": 1}
    assert worse["groups_p"] > worse["mcnemar_p"]
