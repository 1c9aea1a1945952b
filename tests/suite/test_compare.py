"""Comparing runs: honest about budgets, paired where it says so, one page without outside requests."""

import json
import re

import pytest
from aftermath import verdict, write_run

import hardcase as hc
from hardcase import statistics
from hardcase.errors import HardcaseError
from hardcase.suite.compare import compare
from hardcase.testing.toys import toy_images, toy_subject

DARK = [10] * 12


def pair(home, **second):
    said = [verdict(("lost", "kept")[i < 6]) for i in range(10)]
    a = write_run(home / "a", levels=DARK, found={i: [200] for i in range(10)}, verdicts=said)
    given = {"found": {i: [150] for i in range(4)}, "verdicts": [verdict()] * 4, **second}
    return a, write_run(home / "b", levels=DARK, **given)


def test_rates_pairs_and_corrections(tmp_path):
    table = compare(*pair(tmp_path)).table
    assert [run["name"] for run in table["runs"]] == ["a", "b"]
    assert table["differ"] == []
    (both,) = table["pairs"]
    assert both["shared_seeds"] == 12
    tests = {test["what"]: test for test in both["tests"]}
    failing = tests["images with a failure"]
    assert failing["only"] == [6, 0]
    assert failing["p"] == pytest.approx(statistics.mcnemar(6, 0).p)
    assert failing["difference"]["value"] == pytest.approx(0.5)
    assert failing["difference"]["low"] < 0.5 < failing["difference"]["high"]
    assert tests["images whose nearest failure is accepted"]["only"] == [2, 0]
    near = tests["L2 of the nearest failure of a failing seed"]
    assert near["a12"] == 1.0
    assert near["magnitude"] == "large"
    corrected = statistics.holm([test["p"] for test in both["tests"]])
    assert [test["p_holm"] for test in both["tests"]] == pytest.approx(corrected)


def test_many_findings_of_a_seed_are_one_outcome(tmp_path):
    """Of three failures of an image the nearest counts, though a farther one is accepted."""
    found = {i: [20, 120, 200] for i in range(4)}
    said = [verdict("lost"), verdict(), verdict()] * 4
    many = write_run(tmp_path / "many", levels=DARK, found=found, verdicts=said)
    found = {i: [200] for i in range(4)}
    one = write_run(tmp_path / "one", levels=DARK, found=found, verdicts=[verdict()] * 4)
    (both,) = compare(many, one).table["pairs"]
    tests = {test["what"]: test for test in both["tests"]}
    assert tests["images whose nearest failure is accepted"]["only"] == [0, 4]


def test_unequal_budgets_and_unjudged_runs_are_said(tmp_path):
    table = compare(*pair(tmp_path, budget={"queries": 99})).table
    assert table["sentence"].startswith("The budgets are not equal")
    assert table["differ"] == ["budget"]
    table = compare(*pair(tmp_path / "unjudged", verdicts=None)).table
    assert table["runs"][1]["accepted"] is None
    assert all("accepted" not in test["what"] for test in table["pairs"][0]["tests"])


def test_no_shared_seeds_leaves_only_what_is_not_paired(tmp_path):
    a = write_run(tmp_path / "a", levels=DARK, found={0: [200]})
    b = write_run(tmp_path / "b", levels=[200] * 3 + [10], found={3: [220]})
    (both,) = compare(a, b).table["pairs"]
    assert both["shared_seeds"] == 1
    none = write_run(tmp_path / "c", levels=DARK, found={})
    (both,) = compare(a, none).table["pairs"]
    left = [test["what"] for test in both["tests"]]
    assert left == ["images with a failure", "queries to the first failing input"]


def test_runs_of_other_classes_are_refused_and_one_is_not_enough(tmp_path):
    a, b = pair(tmp_path, classes=["x", "y"])
    with pytest.raises(HardcaseError, match="same classes"):
        compare(a, b)
    with pytest.raises(HardcaseError, match="at least two"):
        compare(a)


def test_the_page_says_everything_and_asks_for_nothing(tmp_path):
    pair(tmp_path, method="<b>rude</b>")
    page = compare(tmp_path / "a", str(tmp_path / "b")).report(tmp_path / "out/compare.html")
    text = page.read_text()
    assert "<b>rude</b>" not in text
    assert "&lt;b&gt;rude&lt;/b&gt;" in text
    assert "McNemar" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    assert json.loads((tmp_path / "out/compare.json").read_text())["pairs"][0]["first"] == "a"


def test_runs_of_two_versions_tell_fixed_still_and_newly_failing(tmp_path):
    levels = [10] * 6
    old = write_run(tmp_path / "old", levels=levels, found={0: [200], 1: [200], 2: [200]})
    hashes = {"model": "another", "peers": [], "generator": None, "guides": {}, "data": "d"}
    found = {2: [200], 3: [200]}
    new = write_run(tmp_path / "new", levels=levels, found=found, hashes=hashes)
    (pair,) = compare(old, new).table["pairs"]
    told = {name: pair["changed"][name]["hits"] for name in ("fixed", "still_failing", "newly_failing")}  # fmt: skip
    assert told == {"fixed": 2, "still_failing": 1, "newly_failing": 1}
    (same,) = compare(old, old).table["pairs"]
    assert same["changed"] is None


def test_failure_rates_of_measured_runs_come_first(tmp_path):
    given = {"method": "none", "conditions": {"shift": "±30 %"}, "judge": False}
    runs = [
        hc.run(toy_subject(scale), toy_images(60), out=tmp_path / name, **given)
        for name, scale in (("one", 10.0), ("two", 30.0))
    ]
    table = compare(*runs).table
    (both,) = table["pairs"]
    rates = both["failure_rate"]
    assert (rates["images"], rates["missing"]) == (60, 0)
    assert rates["first"] == pytest.approx(runs[0].record["risk"]["value"])
    gap = rates["difference"]
    assert gap["low"] <= gap["value"] <= gap["high"]
    assert "budget" not in table["sentence"]
    page = compare(*runs).report(tmp_path / "compare.html").read_text()
    assert "60 common images" in page
    other = hc.run(toy_subject(), toy_images(60), out=tmp_path / "seed", seed=1, **given)
    (both,) = compare(runs[0], other).table["pairs"]
    assert "seed of the samples" in both["failure_rate"]["why"]
    searched = pair(tmp_path / "searched")
    assert compare(*searched).table["pairs"][0]["failure_rate"] is None
