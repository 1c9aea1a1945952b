"""Asking replayed on recorded raters: made ones here, and the published ones where the file is."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit

from hardcase_studies import asking
from hardcase_studies.asking import RatedRun


def a_run(name, seed, size=40, shift=0.0):
    """A made generator: a judge that ranks well, two raters who mostly agree."""
    rng = np.random.default_rng(seed)
    chances = expit(rng.normal(1, 2, size))
    first = rng.random(size) < expit(np.log(chances / (1 - chances)) + shift)
    second = np.where(rng.random(size) < 0.9, first, ~first)
    return RatedRun(name, chances, (first, second))


@pytest.fixture
def runs():
    return [a_run("a", 0), a_run("b", 1, shift=-2)]


@pytest.mark.parametrize(
    ("choose", "judged"), [("random", False), ("random", True), ("doubt", True)]
)
def test_rates_hold_when_a_session_ends(runs, choose, judged):
    ended = [
        asking.answers_for_rate(run, rater, seed, choose=choose, judged=judged)
        for run in runs
        for rater in (0, 1)
        for seed in range(3)
    ]
    assert all(holds for _, holds in ended)
    assert all(answers <= 40 for answers, _ in ended)


def test_a_larger_run_keeps_the_distribution(runs):
    large = asking.resampled(runs[0], 500, 0)
    assert len(large.p_kept) == 500
    assert large.raters[0].mean() == pytest.approx(np.mean(runs[0].raters), abs=0.07)
    assert large.p_kept.mean() == pytest.approx(runs[0].p_kept.mean(), abs=0.07)


def test_the_tables_have_a_row_for_each_generator_and_for_all(runs, bench, monkeypatch):
    monkeypatch.setattr(asking, "LARGE", 50)
    made = asking.outcome("made", runs, replace(bench(), repeats=1))
    for table in made.tables:
        assert [row[0] for row in table.rows] == ["a", "b", "all"]
        assert len(table.rows[0]) == len(table.columns) == len(asking.COLUMNS)


@pytest.mark.usefixtures("quick_judge")
def test_rated_images_become_runs_that_are_judged_by_the_rules_of_the_others(
    bench, people, monkeypatch
):
    monkeypatch.setattr(asking, "LARGE", 20)
    made = asking.digits(replace(bench(people=str(people)), repeats=1))
    assert made.name == "asking-digits"
    assert [row[0] for row in made.tables[0].rows] == ["a", "b", "all"]


@pytest.mark.long
def test_the_published_ratings_are_replayed(bench):
    file = Path(os.environ.get("HARDCASE_RATED_DIGITS", "human_labels_mnist.npz"))
    if not file.exists():
        pytest.skip("needs the ratings of Riccio and Tonella: HARDCASE_RATED_DIGITS=FILE.npz")
    made = asking.digits(bench(people=str(file)))
    everyone = dict(zip(made.tables[0].columns, made.tables[0].rows[-1]))
    assert min(everyone[name] for name in asking.COLUMNS[4:]) >= 0.95
