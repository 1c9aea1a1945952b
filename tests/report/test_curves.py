"""The curves of a run in its report: drawn if they can be read, left out otherwise."""

import json
import sys
from pathlib import Path

import pytest

from hardcase.insight import CURVES
from hardcase.report.charts import severity
from hardcase.report.curves import severities
from hardcase.report.page import write
from hardcase.runs.results import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "suite"))
from aftermath import write_run


def said(**changes):
    points = [
        {"severity": i, "failing": i, "total": 10, "share": i / 10, "low": 0.0, "high": 1.0}
        for i in range(1, 6)
    ]
    row = {
        "most": 5,
        "curve": points,
        "crossing": {"quartiles": [1.0, 2.5, None], "crossed": 7, "queries": 8},
        "non_monotone": {"share": 0.1},
    }
    calm = {**row, "curve": [{**p, "failing": 0, "share": 0.0} for p in points], "most": 1}
    return {
        "model": "m",
        "usable": 10,
        "corruptions": [{**row, "corruption": "zoom_blur"}],
        "coordinates": [{**calm, "coordinate": "tilted <11° clockwise"}],
        "corruption_error": {"plain": 0.25, "relative_to": None},
        **changes,
    }


@pytest.fixture
def run(tmp_path):
    write_run(tmp_path / "run", levels=[10, 60, *[5] * 30], found={0: [140], 1: [150]})
    return Run(tmp_path / "run")


def test_the_most_fragile_change_comes_first_and_is_named(run):
    assert severities(run) is None
    (run.folder / CURVES).write_text(json.dumps(said()))
    found = severities(run)
    assert [row["name"] for row in found["rows"]] == ["zoom blur", "tilted <11° clockwise"]
    assert "Most fragile: zoom blur (half of the seeds fail by severity 2.50)." in found["sentence"]
    page = write([run], run.folder / "report").read_text(encoding="utf-8")
    assert "How failing grows with severity" in page
    assert "The same as a table" in page
    assert "tilted <11°" not in page, "text of a file is escaped"
    assert json.loads((run.folder / "report/report.json").read_text())["runs"][0]["curves"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"corruptions": 3}', json.dumps(said(usable="x"))]
)
def test_curves_that_say_nothing_are_left_out(run, text):
    (run.folder / CURVES).write_text(text)
    assert severities(run) is None


def test_a_model_that_never_fails_is_told():
    rows = said()["coordinates"][0]["curve"]
    assert "<svg" in severity(rows, 5, label="a <b>")
    assert "a &lt;b&gt;" in severity(rows, 5, label="a <b>")
