"""The numbers of the report, counted again the slow way."""

import math
from collections import Counter

import numpy as np
import pytest
from drawn import drawn_run, judge

from hardcase.report.page import plain, real_pairs, report_content
from hardcase.report.words import spread
from hardcase.runs.results import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return drawn_run(tmp_path_factory.mktemp("content") / "run", per_seed=2)


@pytest.fixture(scope="module")
def section(run):
    return report_content([run])["runs"][0]


def test_the_matrix_counts_every_test_once(run, section):
    rows = run.findings.select(["expected", "predicted", "seed"]).to_pylist()
    truth = Counter((row["expected"], row["predicted"]) for row in rows)
    weak = section["weakness"]
    assert {(p["expected"], p["predicted"]): p["tests"] for p in weak["pairs"]} == truth
    cells = {(i, j): cell for i, row in enumerate(weak["matrix"]) for j, cell in enumerate(row)}
    assert {place: cell["tests"] for place, cell in cells.items() if cell} == truth
    first = weak["pairs"][0]
    assert first["tests"] == weak["largest"] == max(truth.values())
    names = ("expected", "predicted")
    own = {row["seed"] for row in rows if all(row[name] == first[name] for name in names)}
    assert first["seeds"] == len(own)


def test_classes_add_up_to_the_funnel(run, section):
    steps = {step["step"]: step for step in section["search_results"]}
    classes = section["weakness"]["classes"]
    assert steps["failing"]["count"] == len(set(run.findings.column("seed").to_pylist()))
    for name in ("seeds", "correctly_classified", "searched"):
        assert sum(row[name] for row in classes) == steps[name]["count"]
    assert sum(row["failing"]["hits"] for row in classes) == steps["failing"]["count"]
    assert steps["failing"]["rate"]["total"] == steps["searched"]["count"] == 91
    assert (steps["correctly_classified"]["rate"]["total"], steps["searched"]["rate"]["total"]) == (
        100,
        95,
    )
    assert [step["count"] for step in section["search_results"][4:]] == [None] * 4


def test_real_pairs_are_nearest_seeds_of_the_same_class(run):
    x = run.seed_images().double().flatten(1) / 255
    y = run.seeds.column("label").to_pylist()
    others = [[j for j in range(100) if j != i and y[j] == y[i]] for i in range(100)]
    truth = [min(float((x[i] - x[j]).norm()) for j in own) for i, own in enumerate(others)]
    assert np.sort(real_pairs(run)) == pytest.approx(np.sort(truth), abs=1e-4)


def test_distances_are_those_of_the_tests(run, section):
    l2 = run.findings.column("l2").to_numpy()
    trust = section["trust"]
    assert trust["tests"]["q50"] == pytest.approx(np.median(l2))
    assert trust["tests"]["count"] == len(l2)
    assert trust["nearer"]["hits"] == (l2 < np.median(real_pairs(run))).sum()
    assert trust["generator"]["reconstruction"]["hits"] == 482
    assert (trust["reconstruction"]["hits"], trust["reconstruction"]["total"]) == (4, 95)


def test_the_curve_over_queries_ends_at_the_failing_seeds(run, section):
    first = {}
    for row in run.findings.select(["seed", "queries"]).to_pylist():
        first[row["seed"]] = min(row["queries"], first.get(row["seed"], math.inf))
    for point in section["cost"]["by_queries"]:
        assert point["seeds"] == sum(spent <= point["queries"] for spent in first.values())
    assert section["cost"]["by_queries"][-1]["seeds"] == len(first)
    assert section["cost"]["queries_per_failing"] == 151_234 / len(first)


def test_a_history_that_is_cut_off_or_absent_is_survived(tmp_path):
    run = drawn_run(tmp_path / "run", seeds=20)
    head = "seconds,queries,gradients,seeds_done,failing_seeds,findings"
    (run.folder / "history.csv").write_text(f"{head}\n1.0,10,0,1,1,2\n2.0,2")
    over = report_content([run])["runs"][0]["cost"]
    assert over["over_time"] == [{"seconds": 1.0, "queries": 10, "findings": 2, "failing_seeds": 1}]
    assert over["last_new"] == 1.0
    (run.folder / "history.csv").unlink()
    assert report_content([run])["runs"][0]["cost"]["over_time"] == []


def test_spread_takes_the_smallest_of_every_group_first():
    group = np.array([1, 1, 1, 2, 2, 3])
    size = np.array([0.3, 0.1, 0.2, 0.9, 0.8, 0.5])
    assert spread(group, size, 10).tolist() == [1, 5, 4, 2, 3, 0]
    assert spread(group, size, 3).tolist() == [1, 5, 4]
    assert spread(group[:0], size[:0], 3).tolist() == []


def test_triples_are_twelve_of_different_pairs_until_there_are_groups(section):
    pairs = [(fact["expected"], fact["predicted"]) for fact in section["triples"]]
    assert len(pairs) == len(set(pairs)) == 12
    distances = [fact["l2"] for fact in section["triples"]]
    assert distances == sorted(distances)


def test_triples_are_one_of_each_group_of_accepted_tests(tmp_path):
    run = judge(drawn_run(tmp_path / "run", per_seed=2), card={"auroc": 0.9})
    section = report_content([run])["runs"][0]
    assert run.verdicts is not None
    said = [run.verdicts[fact["id"]] for fact in section["triples"]]
    assert all(one["verdict"] == "kept" for one in said)
    accepted = {v["group"] for v in run.verdicts.values() if v["verdict"] == "kept"}
    assert sorted(one["group"] for one in said) == sorted(accepted)
    counts = {row["step"]: row["count"] for row in section["search_results"]}
    assert counts["clusters"] == len(accepted)
    assert section["summary"]["accepted"]["hits"] == counts["accepted"] > 0
    words = {fact["verdict"] for fact in section["gallery"]["tests"]}
    assert words == {"accepted", "no image of this data", "label lost", "unsure"}


def test_the_gallery_holds_200_of_every_pair_and_counts_the_rest(tmp_path):
    run = drawn_run(tmp_path / "run", per_seed=4)
    gallery = report_content([run])["runs"][0]["gallery"]
    assert (len(gallery["tests"]), gallery["left_out"]) == (200, len(run) - 200)
    shown = {(fact["expected"], fact["predicted"]) for fact in gallery["tests"]}
    rows = run.findings.select(["expected", "predicted"]).to_pylist()
    assert shown == {(row["expected"], row["predicted"]) for row in rows}


def test_many_classes_are_cut_to_the_busiest_and_all_pairs_stay_in_the_json(tmp_path):
    run = drawn_run(tmp_path / "run", classes=tuple(f"class {i}" for i in range(300)))
    weak = report_content([run])["runs"][0]["weakness"]
    assert weak["shown"] == list(range(10))
    assert weak["left_out"] == 290
    assert sum(pair["tests"] for pair in weak["pairs"]) == len(run)
    assert len(weak["classes"]) == 300


def test_what_was_not_tested_is_said(run, section):
    lines = section["reproduce"]["not_tested"]
    assert [line.partition(":")[0] for line in lines[:2]] == ["5 seeds of 100", "4 seeds of 100"]
    assert any("pgd" in line and "fgsm" in line for line in lines)
    typed = "hardcase run --data drawn --method sinvad --out 'runs/a b'"
    assert section["reproduce"]["command"] == typed
    hashes = {"subject": "5f3c1a", "peer 1": "9d2e77", "generator": "b01dfa", "data": "77aa01"}
    assert section["reproduce"]["hashes"] == hashes


def test_runs_that_differ_are_not_called_equal(tmp_path):
    one = drawn_run(tmp_path / "a", seeds=30)
    other = drawn_run(tmp_path / "b", seeds=30, budget={"gradients": 40})
    both = report_content([one, other])["comparison"]
    assert both["same"] == {"model": True, "data": True, "images": True, "budget": False}
    assert all(report_content([one, Run(one.folder)])["comparison"]["same"].values())


def test_seeds_of_single_classes_have_no_pairs_and_json_no_odd_number(tmp_path):
    run = drawn_run(tmp_path / "run", seeds=10)
    assert len(real_pairs(run)) == 0
    assert report_content([run])["runs"][0]["trust"]["pairs"] is None
    given = {"a": [math.nan, 1.5, (math.inf, 2)], 3: None}
    assert plain(given) == {"a": [None, 1.5, [None, 2]], "3": None}
