"""The failures that a page shows: each counted once, none reserved, the large pairs of other classes."""

from collections import Counter

import pytest
from drawn import drawn_run

import hardcase as hc
from hardcase.report.failures import failing_samples, large_pairs, matrix
from hardcase.report.page import report_content
from hardcase.report.words import Sheet
from hardcase.runs.phases import measured_rows
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
