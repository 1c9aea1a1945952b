"""Findings as text for spreadsheets, code scanning and CI: read back by what reads such files."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from test_export import ANIMALS, made

from hardcase.cli.main import main
from hardcase.runs.results import Run
from hardcase.suite.annotations import table_text
from hardcase.suite.export import export
from hardcase.types import ClassNames
from tiny import put_verdicts


def judged(folder):
    """Seven findings of seven seeds: two refused, one undecided, four confirmed."""
    run = made(folder)
    names = run.findings.column("id").to_pylist()
    said = [
        {"id": name, "valid": i > 1, "label_kept": None if i == 3 else True, "group": 0}
        for i, name in enumerate(names)
    ]
    return put_verdicts(run, said)


def test_csv_has_a_row_per_finding_with_class_names(tmp_path):
    run = judged(tmp_path / "run")
    out = export(run, "csv", tmp_path / "found.csv")
    rows = list(csv.DictReader(out.open()))
    assert [row["id"] for row in rows] == run.findings.column("id").to_pylist()
    assert (rows[0]["label"], rows[0]["predicted"]) == ANIMALS[:2]
    assert rows[3]["label_kept"] == ""


@pytest.mark.parametrize("evil", ["=cmd()", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(evil):
    row = {"id": evil, "expected": 0, "predicted": 1, "l2": -0.25}
    (read,) = csv.DictReader(io.StringIO(table_text([row], ClassNames([evil, "b"])), newline=""))
    assert read["id"] == read["label"] == f"'{evil.strip()}"
    assert float(read["l2"]) == -0.25, "numbers stay numbers"


def test_sarif_levels_follow_the_judge(tmp_path):
    run = judged(tmp_path / "run")
    log = json.loads(export(run, "sarif", tmp_path / "out").read_text())
    assert log["version"] == "2.1.0"
    (only,) = log["runs"]
    levels = [result["level"] for result in only["results"]]
    assert levels == ["note", "note", "error", "warning", "error", "error", "error"]
    rules = [rule["id"] for rule in only["tool"]["driver"]["rules"]]
    for result in only["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    marks = {result["partialFingerprints"]["hardcase/finding"] for result in only["results"]}
    assert marks == set(run.findings.column("id").to_pylist())


@pytest.mark.parametrize(
    ("model", "place"),
    [
        ("net.py:make", "net.py"),
        ("w.safetensors@./nets/my net.py:make", "nets/my%20net.py"),
        ("zoo:lenet5", "run.json"),
    ],
)
def test_sarif_points_at_the_file_that_makes_the_model(tmp_path, model, place):
    run = made(tmp_path / "run")
    run.record["model"] = model
    log = json.loads(export(run, "sarif", tmp_path / "out").read_text())
    uri = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert uri["uri"].endswith(place)
    assert not uri["uri"].startswith("/")


def test_junit_has_a_case_per_attempted_seed(tmp_path):
    run = judged(tmp_path / "run")
    suite = ElementTree.parse(export(run, "junit", tmp_path / "found.xml")).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "4", "1")
    told = [case[0].tag if len(case) else "passed" for case in suite]
    assert told == ["passed", "passed", "failure", "skipped", "failure", "failure", "failure"]


def test_unjudged_findings_fail_nobody(tmp_path):
    run = made(tmp_path / "run")
    suite = ElementTree.parse(export(run, "junit", tmp_path / "out")).getroot()[0]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "7")


def test_the_command_writes_each(tmp_path, capsys):
    run = made(tmp_path / "run")
    for form in ("csv", "sarif", "junit", "fiftyone"):
        words = ["export", str(run.folder), "--to", form, "--out", str(tmp_path / form)]
        assert main(words) == 0
        assert str(tmp_path / form) in capsys.readouterr().out


def test_a_run_without_findings_is_all_well(tmp_path):
    run = made(tmp_path / "run")
    (run.folder / "findings/part-00000.parquet").unlink()
    empty = Run(run.folder)
    suite = ElementTree.parse(export(empty, "junit", tmp_path / "a.xml")).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("7", "0", "0")
    log = json.loads(export(empty, "sarif", tmp_path / "b.sarif").read_text())
    assert log["runs"][0]["results"] == []
