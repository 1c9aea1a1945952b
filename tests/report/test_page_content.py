"""The numbers of the report, counted again the slow way."""

import math

import pytest
from drawn import drawn_run, judge

from hardcase.report.page import plain, report_content
from hardcase.report.words import spread
from hardcase.runs.results import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return drawn_run(tmp_path_factory.mktemp("content") / "run", per_seed=2)


@pytest.fixture(scope="module")
def section(run):
    return report_content([run])["runs"][0]


def test_the_search_counts_its_images(run, section):
    found = section["search"]
    assert found["searched"] == 91
    assert found["broken"] == len(set(run.findings.column("original").to_pylist()))
    assert (found["accepted"], found["clusters"]) == (None, None)
    assert found["generator"]["reconstruction"]["hits"] == 482
    assert (found["reconstruction"]["hits"], found["reconstruction"]["total"]) == (4, 95)


def test_the_curve_over_queries_ends_at_the_broken_images(run, section):
    first = {}
    for row in run.findings.select(["original", "queries"]).to_pylist():
        first[row["original"]] = min(row["queries"], first.get(row["original"], math.inf))
    for point in section["search"]["by_queries"]:
        assert point["seeds"] == sum(spent <= point["queries"] for spent in first.values())
    assert section["search"]["by_queries"][-1]["seeds"] == len(first)


def test_the_choice_takes_the_smallest_of_every_group_first():
    import numpy as np

    group = np.array([0, 0, 0, 1, 1, 2])
    size = np.array([3.0, 1.0, 2.0, 9.0, 8.0, 7.0])
    assert spread(group, size, 4).tolist() == [1, 5, 4, 2]
    assert spread(group, size, 100).tolist() == [1, 5, 4, 2, 3, 0]
    assert spread(group[:0], size[:0], 4).tolist() == []


def test_what_the_label_check_says_is_counted(tmp_path):
    controls = {"unchanged": {"planted": 9, "kept": 8, "lost": 0, "unsure": 1}}
    whole = {"kinds": controls, "found": 3, "planted": 4, "accepted": 1}
    run = judge(drawn_run(tmp_path / "run", per_seed=2), card={"controls": whole})
    content = report_content([run])["runs"][0]
    assert content["check"]["done"]
    assert content["check"]["controls"] == [{"kind": "unchanged", **controls["unchanged"]}]
    accepted = {v["id"] for v in run.verdicts.values() if v["verdict"] == "kept"}
    names = dict(zip(run.findings["id"].to_pylist(), run.findings["original"].to_pylist()))
    assert content["search"]["accepted"] == len({names[one] for one in accepted})
    assert all(fact["accepted"] for fact in content["pairs"])
    words = {fact["verdict"] for fact in content["gallery"]["failures"]}
    assert words == {"accepted", "label lost", "unsure"}


def test_what_was_not_tested_is_said(section):
    lines = section["reproduce"]["not_tested"]
    assert [line.partition(" were")[0] for line in lines[:2]] == [
        "5 of 100 images",
        "4 of 100 images",
    ]
    typed = "hardcase run --data drawn --method sinvad --out 'runs/a b'"
    assert section["reproduce"]["command"] == typed
    hashes = {"subject": "5f3c1a", "peer 1": "9d2e77", "generator": "b01dfa", "data": "77aa01"}
    assert section["reproduce"]["hashes"] == hashes


def test_runs_that_differ_are_not_called_equal(tmp_path):
    one = drawn_run(tmp_path / "a", seeds=30)
    other = drawn_run(tmp_path / "b", seeds=30, budget={"gradients": 40})
    both = report_content([one, other])["comparison"]
    assert [name for name, same in both["same"].items() if not same] == ["budget"]
    assert all(report_content([one, Run(one.folder)])["comparison"]["same"].values())


def test_json_has_no_odd_number():
    given = {"a": [math.nan, 1.5, (math.inf, 2)], 3: None}
    assert plain(given) == {"a": [None, 1.5, [None, 2]], "3": None}
