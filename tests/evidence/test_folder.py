"""Evidence: each row shown, not shown or not applicable with a file and its hash, and never a
verdict on a standard."""

import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hardcase.errors import Problem
from hardcase.evidence import PROFILES, Requirement, read_requirements, write_evidence
from hardcase.runs.results import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "suite"))
from aftermath import verdict, write_run

LEVELS = [10, 60, 100, 120, 200] + [30] * 40
FOUND = {0: [140, 180], 1: [150], 2: [220]}
RATE = {"hits": 19, "total": 20, "share": 0.95, "low": 0.76, "high": 0.99}
QUESTION = {"auroc": {"value": 0.95}, "tpr": RATE, "tnr": RATE, "undecided": RATE}
JUDGE = {
    "weights": "w1",
    "members": {"member 1": "m1"},
    "calibration": {
        "images": 20,
        "valid": QUESTION,
        "label_kept": QUESTION,
        "confirmed": {"precision": RATE, "recall": RATE},
    },
    "standing": "calibrated",
}
VERDICTS = [
    verdict(group="dark-light-1"),
    verdict(kept=False),
    verdict(group="dark-light-1"),
    verdict(group="dark-light-2"),
]
TOOL = {"planted_defects": {"caught": 40, "planted": 40}, "faults": {"detected": 7, "total": 8}}
LIMIT = Requirement(id="R1", text="few confirmed failures", metric="confirmed_rate", most=0.25)


def judged(folder, **record):
    about = {"judge": JUDGE, "accuracy": {"value": 0.9, "images": 500}, **record}
    return write_run(folder, levels=LEVELS, found=FOUND, verdicts=VERDICTS, **about)


def status(rows):
    return {row.id: row.status for row in rows}


def words(folder):
    return "\n".join(
        path.read_text() for path in sorted(folder.rglob("*")) if path.suffix in (".md", ".json")
    ).lower()


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_fills_a_folder_whose_hashes_are_true(tmp_path, profile):
    out = tmp_path / "evidence"
    rows = write_evidence(
        [judged(tmp_path / "run")], out, profile=profile, requirements=[LIMIT], tool=TOOL
    )
    index = json.loads((out / "index.json").read_text())
    assert [row["id"] for row in index["rows"]] == [row.id for row in rows]
    for row in index["rows"]:
        assert row["status"] in ("shown", "not shown", "not applicable")
        assert row["why"]
        assert hashlib.sha256((out / row["file"]).read_bytes()).hexdigest() == row["sha256"]
    for name, digest in index["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    text = words(out)
    assert "complian" not in text
    assert "certif" not in text
    assert "conform" not in text


def test_what_complete_and_judged_runs_show(tmp_path):
    out = tmp_path / "evidence"
    rows = write_evidence(
        [judged(tmp_path / "run")], out, profile="42119", requirements=[LIMIT], tool=TOOL
    )
    assert set(status(rows).values()) == {"shown"}
    incidents = json.loads((out / "incidents.json").read_text())
    assert [row["run"] for row in incidents] == [
        "run, group dark-light-1",
        "run, group dark-light-2",
    ]
    assert incidents[0]["tests"] == 2
    assert (incidents[0]["expected"], incidents[0]["predicted"]) == ("dark", "light")
    for row in incidents:
        for file, digest in row["pictures"].items():
            assert (out / file).read_bytes().startswith(b"\x89PNG")
            assert hashlib.sha256((out / file).read_bytes()).hexdigest() == digest
    assert "| confirmed | 3 | 6.8% |" in (out / "completion.md").read_text()


def test_what_is_missing_is_not_shown(tmp_path):
    bare = write_run(tmp_path / "bare", levels=LEVELS, found=FOUND, complete=False)
    rows = status(write_evidence([bare], tmp_path / "evidence", profile="42119"))
    assert rows == {
        "test plan": "shown",
        "test data": "not shown",
        "test environment": "not shown",
        "test execution log": "not shown",
        "test incident reports": "not shown",
        "test completion report": "not shown",
        "oracle": "not shown",
        "independence": "not shown",
        "requirements": "not shown",
    }
    half = status(
        write_evidence(
            [judged(tmp_path / "run"), bare], tmp_path / "both", profile="8800", tool=TOOL
        )
    )
    assert half["output insufficiencies"] == "not shown", "one run without a judge is enough"
    assert half["after deployment"] == "not shown"


def test_a_judge_that_took_part_is_not_independent(tmp_path):
    run = judged(
        tmp_path / "run",
        hashes={"subject": "s", "peers": ["m1"], "generator": None, "guides": {}, "data": "d"},
    )
    rows = write_evidence([run], tmp_path / "evidence", profile="42119", tool=TOOL)
    assert status(rows)["independence"] == "not shown"
    assert "in both" in next(row.why for row in rows if row.id == "independence")


def test_limits_are_held_against_the_far_end_of_the_interval(tmp_path):
    run = judged(tmp_path / "run")
    asked = [
        LIMIT,
        Requirement(id="R2", text="tight", metric="confirmed_rate", most=0.07),
        Requirement(id="R3", text="accurate", metric="accuracy", least=0.85),
        Requirement(id="R4", text="very accurate", metric="accuracy", least=0.89),
        Requirement(id="R5", text="groups", metric="distinct", most=2),
        Requirement(id="R6", text="witnessed", metric="witnessed_rate", most=0.5),
        Requirement(id="R7", text="radar", not_applicable="there is no radar"),
        Requirement(id="R8", text="be kind"),
    ]
    rows = status(write_evidence([run], tmp_path / "evidence", profile="amlas", requirements=asked))
    said = [rows[f"requirement R{i}"] for i in range(1, 9)]
    assert said == [
        "shown",
        "not shown",
        "shown",
        "not shown",
        "shown",
        "not shown",
        "not applicable",
        "not shown",
    ]
    assert rows["stage 2, requirements"] == "not shown"


def test_requirements_are_read_and_wrong_ones_are_told(tmp_path):
    file = tmp_path / "req.toml"
    file.write_text(
        '[[requirement]]\nid = "R1"\ntext = "few"\nmetric = "confirmed_rate"\nmost = 0.05\n'
    )
    assert read_requirements(file) == [
        Requirement(id="R1", text="few", metric="confirmed_rate", most=0.05)
    ]
    for text, message in (
        ("[[requirement]]\nid = 1", "no id or no text"),
        ("x = 1", "states no requirement"),
        ("x = ", "cannot be read"),
        ('[[requirement]]\nid = "a"\ntext = "b"\nmax = 1', "most"),
        ('[[requirement]]\nid = "a"\ntext = "b"\nmetric = "confirmed"', "confirmed_rate"),
        ('[[requirement]]\nid = "a"\ntext = "b"\nmetric = "accuracy"', "no limit"),
    ):
        file.write_text(text)
        with pytest.raises(Problem, match=message):
            read_requirements(file)


def test_the_folder_is_new_and_follows_from_runs_and_time(tmp_path):
    run, when = judged(tmp_path / "run"), datetime(2026, 1, 2, tzinfo=UTC)
    for name in ("one", "two"):
        write_evidence([run], tmp_path / name, profile="ai-act", when=when)
    assert words(tmp_path / "one") == words(tmp_path / "two")
    with pytest.raises(Problem, match="empty folder"):
        write_evidence([run], tmp_path / "one", profile="ai-act")
    with pytest.raises(Problem, match="ai-act"):
        write_evidence([run], tmp_path / "three", profile="ai-akt")
    with pytest.raises(Problem, match="at least one"):
        write_evidence([], tmp_path / "three", profile="ai-act")
    assert isinstance(Run(tmp_path / "run"), Run)


def test_names_of_the_user_do_not_break_the_table(tmp_path):
    odd = judged(tmp_path / "a|b", model="x | y\nz")
    write_evidence([odd], tmp_path / "evidence", profile="42119", requirements=[LIMIT], tool=TOOL)
    table = [
        line
        for line in (tmp_path / "evidence" / "index.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert {line.replace("\\|", "").count("|") for line in table} == {7}
