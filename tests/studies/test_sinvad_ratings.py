"""SINVAD's study with people: what is exported, and what is made of the answers."""

import csv

import pytest
import torch

from hardcase.errors import Problem
from hardcase.methods.pgd import cw
from hardcase_studies import sinvad_ratings
from hardcase_studies.lab import Lab


@pytest.fixture
def few_strengths(monkeypatch):
    monkeypatch.setattr(sinvad_ratings, "EPSILONS", (0.05, 0.2, 0.5))
    monkeypatch.setattr(sinvad_ratings, "cw", lambda target: cw(target=target, steps=20, rounds=3))


@pytest.mark.usefixtures("few_strengths")
def test_rq1_quadruples_lie_between_the_same_two_classes(bench):
    here = Lab(bench())
    made = sinvad_ratings.quadruples(here, 6)
    assert 0 < len(made) <= 6
    said = here.subject(made.x.flatten(0, 1).float() / 255).logits.argmax(1).reshape(len(made), 4)
    assert torch.equal(said[:, 0], made.source)
    assert bool((said[:, 1:] == made.target[:, None]).all())
    assert bool((made.source != made.target).all())


@pytest.mark.usefixtures("few_strengths")
def test_rq1_exports_all_that_a_rating_page_needs(bench, written):
    ready = bench(quadruples=4, raters=3)
    written(sinvad_ratings.run(ready), ready)
    items = list(csv.DictReader((ready.out / "items.csv").open()))
    assert all((ready.out / item["image"]).is_file() for item in items)
    assert {item["method"] for item in items} == set(sinvad_ratings.METHODS)
    given = list(csv.DictReader((ready.out / "assignments.csv").open()))
    assert {row["item"] for row in given} <= {item["item"] for item in items}
    assert {row["rater"] for row in given} == {"r000", "r001", "r002"}


def test_a_rater_gets_ten_of_each_and_three_real_ones_and_no_seed_twice():
    mine = [row[2] for row in sinvad_ratings.assign(100, 1, 0)]
    methods = [item.split("-")[1] for item in mine]
    assert [methods.count(name) for name in ("fgsm", "cw", "sinvad", "real")] == [10, 10, 10, 3]
    assert len({item.split("-")[0] for item in mine}) == 33


def answers(path, *, confusing="sinvad"):
    rows = [["rater", "item", "source_score", "target_score", "seconds"]]
    for q in range(6):
        for rater in range(4):
            for method in sinvad_ratings.METHODS:
                unclear = method == confusing
                rows.append([f"r{rater}", f"q{q:03d}-{method}", 3 if unclear else 5, 3 - rater % 2 if unclear else 1, 7 if unclear else 6])  # fmt: skip
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    return path


def test_ratings_give_the_scores_of_the_paper(bench, tmp_path, written):
    ready = bench(ratings=str(answers(tmp_path / "ratings.csv")))
    outcome = sinvad_ratings.run(ready)
    seen = {row[0]: dict(zip(outcome.tables[0].columns, row)) for row in outcome.tables[0].rows}
    assert seen["sinvad"]["confusion (Fig. 9)"] == pytest.approx(4.5)
    assert seen["real"]["confusion (Fig. 9)"] == pytest.approx(1)
    assert seen["fgsm"]["source − target (Fig. 10)"] == pytest.approx(4)
    assert seen["sinvad"]["acceptability"] == pytest.approx(5.5)
    assert seen["sinvad"]["most confusing"] == 1
    assert seen["sinvad"]["of these, p < 0.05"] == 6
    tests = {(row[0], row[1]): row for row in outcome.tables[1].rows}
    assert tests["confusion", "fgsm"][4] == 1
    written(outcome, ready)


def test_who_does_not_see_the_real_ones_is_counted(tmp_path):
    some = sinvad_ratings.read(answers(tmp_path / "r.csv", confusing="real"))
    assert sinvad_ratings.inattentive(some) == {"r0", "r2"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rater,item\nr1,q000-fgsm", "no column 'source_score'"),
        ("rater,item,source_score,target_score,seconds\nr1,q000-fgsm,9,1,2", "line 2 is no rating"),
        ("rater,item,source_score,target_score,seconds\nr1,fgsm,1,1,2", "line 2 is no rating"),
    ],
)
def test_bad_ratings_are_told(tmp_path, text, words):
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(Problem, match=words):
        sinvad_ratings.read(tmp_path / "r.csv")
    with pytest.raises(Problem, match="cannot be read"):
        sinvad_ratings.read(tmp_path / "missing.csv")
