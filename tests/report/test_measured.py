"""The failure rate of each class and the effects of conditions, as the measurement has them."""

import pytest
from drawn import drawn_run

import hardcase as hc
from hardcase.report.measured import class_rates
from hardcase.report.page import report_content
from hardcase.runs.phases import measured_rows
from hardcase.testing.toys import toy_images, toy_subject


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A measured run without a search, half of its images reserved."""
    given = {"method": "none", "conditions": {"shift": "±50 %"}, "judge": False}
    folder = tmp_path_factory.mktemp("content") / "measured"
    return hc.run(toy_subject(), toy_images(240), out=folder, **given)


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


def test_without_a_measurement_there_are_no_rates_of_classes(tmp_path):
    section = report_content([drawn_run(tmp_path / "run", seeds=20)])["runs"][0]
    assert section["weak"]["classes"] == section["weak"]["effects"] == []


def test_only_effects_beyond_doubt_are_shown(measured):
    effects = measured.record["risk"]["effects"] or []
    shown = report_content([measured])["runs"][0]["weak"]["effects"]
    certain = [one["condition"] for one in effects if one["shown"]]
    assert [one["condition"] for one in shown] == certain
