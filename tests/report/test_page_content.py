"""The numbers of the report, counted again the slow way."""

import math
from collections import Counter

import pytest
from drawn import drawn_run, judge

import hardcase as hc
from hardcase.report.failures import failing_samples, large_pairs, matrix
from hardcase.report.measured import class_rates
from hardcase.report.page import plain, report_content
from hardcase.report.words import Sheet, spread
from hardcase.runs.phases import measured_rows
from hardcase.runs.results import Run
from hardcase.testing.toys import toy_images, toy_subject


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return drawn_run(tmp_path_factory.mktemp("content") / "run", per_seed=2)


@pytest.fixture(scope="module")
def section(run):
    return report_content([run])["runs"][0]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A measured run without a search, half of its images reserved."""
    given = {"method": "none", "conditions": {"shift": "±50 %"}, "judge": False}
    folder = tmp_path_factory.mktemp("content") / "measured"
    return hc.run(toy_subject(), toy_images(240), out=folder, **given)


def test_the_matrix_counts_every_failure_once(run, section):
    rows = run.findings.select(["expected", "predicted"]).to_pylist()
    truth = Counter((row["expected"], row["predicted"]) for row in rows)
    weak = section["weak"]
    assert {(p["expected"], p["predicted"]): p["failures"] for p in weak["pairs"]} == truth
    cells = {(i, j): count for i, row in enumerate(weak["rows"]) for j, count in enumerate(row)}
    assert {place: count for place, count in cells.items() if count} == truth
    assert weak["pairs"][0]["failures"] == weak["largest"] == max(truth.values())
    assert weak["total"] == len(run)


def test_samples_of_the_conditions_are_failures_too_and_none_is_reserved(measured):
    samples = failing_samples(measured)
    assert len(samples) > 10
    rows = measured_rows(measured.store)
    reserved = {name for name, held in zip(rows.id, rows.reserved) if held}
    assert not reserved & {sample["id"] for sample in samples}
    content = report_content([measured])["runs"][0]
    assert content["weak"]["total"] == content["gallery"]["total"] == len(samples)
    assert content["search"] is content["check"] is None


def test_six_pairs_of_other_classes_and_conditions_before_search(measured, run):
    sheet = Sheet(run)
    samples = failing_samples(measured)
    misread = {**samples[0], "misread_unmodified": True, "expected": 98, "predicted": 99}
    shown = large_pairs(sheet, [misread, *samples])
    assert len(shown) == 6
    pairs = [(one["expected"], one["predicted"]) for one in shown]
    assert len({*pairs}) == 6
    sources = [one["source"] for one in shown]
    assert sources == sorted(sources), "conditions, then search"
    assert (98, 99) not in pairs, "the conditions did not make that failure"


def test_the_rates_of_classes_are_those_of_their_images_and_hold_together(measured):
    rows = measured_rows(measured.store)
    found = class_rates(measured)
    assert [row["value"] for row in found] == sorted((r["value"] for r in found), reverse=True)
    for row in found:
        own = rows.take(rows.label == row["label"])
        assert row["images"] == len(own)
        assert row["value"] == pytest.approx(own.failed.mean())
        alone = own.figures()
        assert row["low"] <= alone["low"]
        assert row["high"] > alone["high"], "wider, for all classes hold together"


def test_without_a_measurement_there_are_no_rates_of_classes(run, section):
    assert section["weak"]["classes"] == section["weak"]["effects"] == []


def test_only_effects_beyond_doubt_are_shown(measured):
    effects = measured.record["risk"]["effects"] or []
    shown = report_content([measured])["runs"][0]["weak"]["effects"]
    certain = [one["condition"] for one in effects if one["shown"]]
    assert [one["condition"] for one in shown] == certain


def test_the_search_counts_its_images(run, section):
    found = section["search"]
    assert found["searched"] == 91
    assert found["broken"] == len(set(run.findings.column("seed").to_pylist()))
    assert (found["accepted"], found["clusters"]) == (None, None)
    assert found["generator"]["reconstruction"]["hits"] == 482
    assert (found["reconstruction"]["hits"], found["reconstruction"]["total"]) == (4, 95)


def test_the_curve_over_queries_ends_at_the_broken_images(run, section):
    first = {}
    for row in run.findings.select(["seed", "queries"]).to_pylist():
        first[row["seed"]] = min(row["queries"], first.get(row["seed"], math.inf))
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
    names = dict(zip(run.findings["id"].to_pylist(), run.findings["seed"].to_pylist()))
    assert content["search"]["accepted"] == len({names[one] for one in accepted})
    assert all(fact["accepted"] for fact in content["pairs"])
    words = {fact["verdict"] for fact in content["gallery"]["failures"]}
    assert words == {"accepted", "label lost", "unsure"}


def test_the_gallery_holds_200_of_every_pair_and_counts_the_rest(tmp_path):
    run = drawn_run(tmp_path / "run", per_seed=4)
    gallery = report_content([run])["runs"][0]["gallery"]
    assert (len(gallery["failures"]), gallery["left_out"]) == (200, len(run) - 200)
    shown = {(fact["expected"], fact["predicted"]) for fact in gallery["failures"]}
    rows = run.findings.select(["expected", "predicted"]).to_pylist()
    assert shown == {(row["expected"], row["predicted"]) for row in rows}


def test_many_classes_are_cut_to_the_busiest_and_all_pairs_stay_in_the_json(tmp_path):
    run = drawn_run(tmp_path / "run", classes=tuple(f"class {i}" for i in range(300)))
    weak = matrix(Sheet(run), [], run.classes)
    assert weak["shown"] == list(range(10))
    assert weak["left_out"] == 290
    assert sum(pair["failures"] for pair in weak["pairs"]) == len(run)


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
