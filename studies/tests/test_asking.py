"""Asking replayed on recorded raters: made ones here, and the published ones where the file is."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hardcase.judges.asking import FindingPopulation
from scipy.special import expit

from hardcase_studies import asking
from hardcase_studies.asking import RatedRun


def a_run(name, seed, size=40, shift=0.0):
    """A made generator: a judge that ranks well, two raters who mostly agree."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(1, 2, size)
    first = rng.random(size) < expit(odds + shift)
    second = np.where(rng.random(size) < 0.9, first, ~first)
    kept = np.where(first == second, first.astype(int), -1)
    people = FindingPopulation(tuple(map(str, range(size))), odds, 0.6, size)
    unsure = np.zeros(size, dtype=bool)
    return RatedRun(name, np.arange(size), people, kept, (first, second), unsure)


@pytest.fixture
def runs():
    return [a_run("a", 0), a_run("b", 1, shift=-2)]


@pytest.mark.parametrize("chooser", asking._CHOOSERS)
def test_every_chooser_asks_as_often_as_it_may_and_never_twice(runs, chooser):
    rows = asking._CHOOSERS[chooser](runs, 20, 0, 3)
    assert sum(map(len, rows)) == 20
    assert all(len(set(own)) == len(own) for own in rows)


def test_what_was_asked_is_answered_and_more_answers_decide_more(runs):
    measured = [asking.asked_about(runs, n, "chosen", 0, 1).measured() for n in (0, 20, 60)]
    undecided = [one["undecided"].hits for one in measured]
    assert undecided[0] > undecided[2]
    assert measured[2]["right"].hits > measured[0]["right"].hits
    everything = asking.asked_about(runs, 80, "random", 0, 1)
    assert (everything.first == np.concatenate([run.raters[0] for run in runs])).all()
    assert everything.measured()["undecided"].hits == 0


def test_rates_hold_when_stopped_and_a_larger_run_keeps_the_distribution(runs):
    for count in (asking.answers_for_rate, asking.answers_at_random):
        ended = [count(runs[0], rater, seed) for rater in (0, 1) for seed in range(3)]
        assert all(holds for _, holds in ended)
        assert all(answers <= 40 for answers, _ in ended)
    large = asking.resampled(runs[0], 500, 0)
    assert len(large.population) == 500
    assert large.raters[0].mean() == pytest.approx(np.mean(runs[0].raters), abs=0.07)


def test_the_tables_say_what_is_missed(runs, bench, monkeypatch):
    monkeypatch.setattr(asking, "SHARES", (0.0, 0.15))
    monkeypatch.setattr(asking, "LARGE", 50)
    goals = (asking.Goal("never", 0.15, "right", ">= 1.01"), asking.DIGIT_GOALS[0])
    made = asking.outcome("made", runs, replace(bench(), repeats=1), goals, "made")
    outcomes = {row[0]: row[3] for row in made.tables[0].rows}
    assert outcomes["never"] == "missed"
    assert made.tables[1].rows[0][0] == "none asked"


@pytest.mark.usefixtures("quick_judge")
def test_rated_images_become_runs_that_are_judged_by_the_rules_of_the_others(
    bench, people, monkeypatch
):
    monkeypatch.setattr(asking, "SHARES", (0.0, 0.15))
    monkeypatch.setattr(asking, "LARGE", 20)
    made = asking.digits(replace(bench(people=str(people)), repeats=1))
    assert made.name == "asking-digits"
    assert made.tables[0].notes[0].startswith("judge of npz:")
    assert [row[0] for row in made.tables[2].rows] == ["a", "b", "all"]
    assert made.tables[0].notes[-1] == "raters agree on 84 of 90 images"


@pytest.mark.long
def test_the_published_ratings_are_replayed(bench):
    file = Path(os.environ.get("HARDCASE_RATED_DIGITS", "human_labels_mnist.npz"))
    if not file.exists():
        pytest.skip("needs the ratings of Riccio and Tonella: HARDCASE_RATED_DIGITS=FILE.npz")
    made = asking.digits(bench(people=str(file)))
    figures = {row[0]: row[1] for row in made.tables[0].rows}
    assert figures["verdicts right where both raters agree, none asked"] >= 0.85
