"""The repeated experiments of SINVAD, end to end on a world of bars."""

import csv
import json

import pytest
import torch

from hardcase.errors import Problem
from hardcase.experiments import (
    feasibility,
    quadruples,
    ratings,
    sinvad_rq1,
    sinvad_rq2,
    sinvad_rq3,
    sinvad_rq4,
)
from hardcase.experiments.world import world
from hardcase.methods.pgd import cw


def written(outcome, bench):
    page = outcome.write(bench.out)
    for name in outcome.figures:
        assert (bench.out / name).stat().st_size > 500, name
    json.loads((bench.out / "results.json").read_text())
    return page.read_text()


def test_rq2_finds_images_on_the_boundary_and_says_what_they_cost(bench, monkeypatch):
    monkeypatch.setattr(sinvad_rq2, "BUDGETS", {"sinvad": (10, 123), "sinvad@paper": (51, 81)})
    ready = bench(seeds=20, paper_seeds=2)
    outcome = sinvad_rq2.run(ready)
    gaps, costs, budgets = outcome.tables
    ours = dict(zip(gaps.columns, gaps.rows[0]))
    assert ours["images"] >= 18
    assert ours["mean gap"] < 0.05 < ours["test set"]
    assert ours["Cliff's delta"] < -0.8
    cost = dict(zip(costs.columns, costs.rows[0]))
    assert cost["success"] > 0.9
    assert cost["questions an image"] < 124
    spent = [row[1] for row in budgets.rows if row[0] == "sinvad"]
    assert spent == sorted(spent)
    assert "boundary.png" in written(outcome, ready)


def test_rq3_measures_each_pair_at_each_share(bench):
    ready = bench(pairs=[[0, 1]], shares=[0.05, 0.1, 0.4, 0.5], attempts=8, walks=5)
    outcome = sinvad_rq3.run(ready)
    correlations, rates = outcome.tables
    names = [sinvad_rq3.OURS, sinvad_rq3.FLOOR, sinvad_rq3.GENETIC, sinvad_rq3.ERROR]
    assert [row[0] for row in correlations.rows] == [row[1] for row in rates.rows] == names
    by_name = {row[1]: row[2:] for row in rates.rows}
    assert by_name[sinvad_rq3.FLOOR] == sorted(by_name[sinvad_rq3.FLOOR])
    assert max(by_name[sinvad_rq3.ERROR]) > 0.1, (
        "half of the labels mixed must show in the test error"
    )
    assert "detection.png" in written(outcome, ready)


def test_rq3_refuses_pairs_that_the_data_does_not_have(bench):
    with pytest.raises(Problem, match="do not fit"):
        sinvad_rq3.run(bench())


def test_rq4_a_larger_code_keeps_more_labels(bench):
    ready = bench(latents=[1, 16], kinds=["linear"])
    outcome = sinvad_rq4.run(ready)
    (table,) = outcome.tables
    assert [row[1] for row in table.rows] == [1, 16]
    assert table.rows[1][4] > table.rows[0][4], "SSIM"
    written(outcome, ready)


@pytest.fixture
def few_strengths(monkeypatch):
    monkeypatch.setattr(quadruples, "EPSILONS", (0.05, 0.2, 0.5))
    monkeypatch.setattr(quadruples, "cw", lambda target: cw(target=target, steps=20, rounds=3))


@pytest.mark.usefixtures("few_strengths")
def test_rq1_quadruples_lie_between_the_same_two_classes(bench):
    here = world(bench())
    made = quadruples.quadruples(here, 6)
    assert 0 < len(made) <= 6
    said = here.subject(made.x.flatten(0, 1).float() / 255).logits.argmax(1).reshape(len(made), 4)
    assert torch.equal(said[:, 0], made.source)
    assert bool((said[:, 1:] == made.target[:, None]).all())
    assert bool((made.source != made.target).all())


@pytest.mark.usefixtures("few_strengths")
def test_rq1_exports_all_that_a_rating_page_needs(bench):
    ready = bench(quadruples=4, raters=3)
    written(sinvad_rq1.run(ready), ready)
    items = list(csv.DictReader((ready.out / "items.csv").open()))
    assert all((ready.out / item["image"]).is_file() for item in items)
    assert {item["method"] for item in items} == set(quadruples.METHODS)
    given = list(csv.DictReader((ready.out / "assignments.csv").open()))
    assert {row["item"] for row in given} <= {item["item"] for item in items}
    assert {row["rater"] for row in given} == {"r000", "r001", "r002"}


def test_a_rater_gets_ten_of_each_and_three_real_ones_and_no_seed_twice():
    mine = [row[2] for row in sinvad_rq1.assign(100, 1, 0)]
    methods = [item.split("-")[1] for item in mine]
    assert [methods.count(name) for name in ("fgsm", "cw", "sinvad", "real")] == [10, 10, 10, 3]
    assert len({item.split("-")[0] for item in mine}) == 33


def answers(path, *, confusing="sinvad"):
    rows = [["rater", "item", "source_score", "target_score", "seconds"]]
    for q in range(6):
        for rater in range(4):
            for method in quadruples.METHODS:
                unclear = method == confusing
                rows.append([f"r{rater}", f"q{q:03d}-{method}", 3 if unclear else 5, 3 - rater % 2 if unclear else 1, 7 if unclear else 6])  # fmt: skip
    path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    return path


def test_ratings_give_the_scores_of_the_paper(bench, tmp_path):
    ready = bench(ratings=str(answers(tmp_path / "ratings.csv")))
    outcome = sinvad_rq1.run(ready)
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
    some = ratings.read(answers(tmp_path / "r.csv", confusing="real"))
    assert ratings.inattentive(some) == {"r0", "r2"}


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
        ratings.read(tmp_path / "r.csv")
    with pytest.raises(Problem, match="cannot be read"):
        ratings.read(tmp_path / "missing.csv")


def test_feasibility_climbs_and_mixes_in_both_spaces(bench):
    ready = bench(seeds=6, climbers=2, passes=1)
    outcome = feasibility.run(ready)
    climbs, ambiguous = outcome.tables
    assert [row[0] for row in climbs.rows] == [name for name, _ in feasibility.CLIMBS]
    assert all(row[3] > 1 for row in climbs.rows)
    assert len(ambiguous.rows) == 2
    written(outcome, ready)


def test_interpolation_begins_and_ends_with_the_images(bench):
    here = world(bench())
    rows = feasibility.interpolations(here, here.test.first(2))
    assert torch.equal((rows["pixels 1"][[0, -1]] * 255).round().to(torch.uint8), here.test.x[:2])
    middle = rows["latent 1"][4]
    assert not torch.allclose(middle, rows["pixels 1"][4], atol=0.02)
