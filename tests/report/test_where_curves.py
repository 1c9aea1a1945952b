"""The curves of a run in its report: drawn if they can be read, left out otherwise."""

import json

import pytest
from aftermath import write_run
from drawn import drawn_curves

from hardcase.report.page import write
from hardcase.report.pictures import severity
from hardcase.report.where import severities
from hardcase.runs.results import Run
from hardcase.runs.verify import CURVES, keep_beside


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run", levels=[10, 60, *[5] * 30], found={0: [140], 1: [150]})
    return Run(tmp_path / "run")


def test_the_most_fragile_change_comes_first_and_is_named(run):
    assert severities(run) is None
    keep_beside(run.store, CURVES, drawn_curves())
    found = severities(run)
    assert [row["name"] for row in found["rows"]] == ["zoom blur", "tilted <11° clockwise"]
    assert "Most fragile: zoom blur (half of the seeds fail by severity 2.50)." in found["sentence"]
    page = write([run], run.folder / "report").read_text(encoding="utf-8")
    assert "How failing grows with severity" in page
    assert "The same as a table" in page
    assert "tilted <11°" not in page, "text of a file is escaped"
    assert json.loads((run.folder / "report/report.json").read_text())["runs"][0]["curves"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"corruptions": 3}', json.dumps(drawn_curves(usable="x"))]
)
def test_curves_that_say_nothing_are_left_out(run, text):
    (run.folder / CURVES).write_text(text)
    assert severities(run) is None


def test_a_model_that_never_fails_is_told():
    rows = drawn_curves()["conditions"][0]["curve"]
    assert "<svg" in severity(rows, 5, label="a <b>")
    assert "a &lt;b&gt;" in severity(rows, 5, label="a <b>")
