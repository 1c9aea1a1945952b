"""Judge, gate, replay, compare, shrink and a search for regressions from the command line: what is said, which code is returned."""

import json
import re
import tomllib

import pytest
from aftermath import verdict, write_run, write_world

from hardcase.cli.main import main
from hardcase.report.page import report_content
from hardcase.runs.results import Run
from hardcase.runs.verify import Verification
from hardcase.statistics import Rate

GIVEN = {"levels": [10, 60, 100, *[5] * 20], "found": {0: [140], 1: [150], 2: [220]}}
GIVEN["judge"] = {"status": "calibrated: x", "calibrated": True}
WORDS = "run --data npz:greys.npz?split=all --method pgd --images 40 --allow-low-accuracy"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Runs written by hand: that readers verify them is tested elsewhere, so here they are believed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Run, "verification", property(lambda run: Verification("verified")))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    said = [verdict(), verdict("lost"), verdict(silent=True)]
    write_run(tmp_path / "a", verdicts=said, **GIVEN)
    write_run(tmp_path / "b", levels=GIVEN["levels"], found={0: [130]})
    write_world(tmp_path)
    for name in "ab":
        text = f'model = "{tmp_path}/models.py:old"\ndata = "npz:{tmp_path}/greys.npz"\n[method]\nname = "pgd"\n'
        (tmp_path / name / "config.toml").write_text(text)
    return tmp_path


def test_the_gate_passes_and_fails_with_its_own_code(home, capsys):
    assert main(["gate", "a", "--max-accepted-rate", "0.5"]) == 0
    assert capsys.readouterr().out.startswith("PASS  ")
    words = ["gate", "a", "--max-accepted-rate", "0.005", "--junit", "out.xml", "--github"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out.startswith("FAIL  ")
    assert "2 of 23" in said.out
    assert "::error title=hardcase gate::" in said.out
    assert "<failure" in (home / "out.xml").read_text()
    assert main(["gate", "a", "--max-high-confidence-rate", "0.001", "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["passed"], told["outcome"]) == (False, "fail")


def test_the_gate_says_when_it_cannot_tell(home, capsys):
    said = [verdict(), verdict("unsure"), verdict("lost")]
    write_run(home / "c", verdicts=said, **GIVEN)
    words = ["gate", "c", "--max-accepted-rate", "0.05", "--junit", "out.xml"]
    assert main(words) == 4
    out = capsys.readouterr().out
    assert out.startswith("INCONCLUSIVE  ")
    assert "1 of 23" in out
    assert "to decide" in out
    assert "<skipped" in (home / "out.xml").read_text()
    (home / "known.txt").write_text("s1  # ticket 3\nelsewhere\n")
    assert main([*words, "--known", "known.txt"]) == 4, "23 images are too few to show 5 %"
    told = capsys.readouterr()
    assert "s1" not in told.err
    assert "elsewhere" in told.err


def test_limits_come_from_the_project_and_never_from_the_run(home, capsys):
    (home / "a/config.toml").write_text("[limits]\naccepted_rate = 1.0\n")
    assert main(["gate", "a"]) == 2
    assert "no limit" in capsys.readouterr().err
    assert main(["gate", "a", "--config", "a/config.toml"]) == 2
    assert "belongs to the run" in capsys.readouterr().err
    (home / "hardcase.toml").write_text("[limits]\naccepted_rate = 0.005\n")
    assert main(["gate", "a"]) == 1
    assert "limits come from hardcase.toml" in capsys.readouterr().err
    assert main(["gate", "a", "--max-accepted-rate", "0.5"]) == 0
    (home / "other.toml").write_text("[limits]\nhigh_confidence_rate = 0.001\n")
    assert main(["gate", "a", "--config", "other.toml"]) == 1
    assert "high confidence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gate", "b", "--max-accepted-rate", "0.1"], "not been checked for their labels"),
        (["gate", "a"], "no limit"),
        (["gate", "nowhere", "--max-accepted-rate", "0.1"], "not a run folder"),
        (["gate", "a", "--max-accepted-rate", "7"], "limits.accepted_rate"),
        (["compare", "a"], "at least two runs"),
        (["judge"], "no run to judge"),
        (["judge", "nowhere"], "not a run folder"),
        (["replay", "a", "--model", "models.py:gone"], "no function"),
        (["judge", "a", "--judge", "nowhere"], "there is no judge"),
    ],
)
def test_what_cannot_be_done_is_said_with_code_2(home, capsys, words, told):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert told in said


def test_replay_tells_fixed_from_still_failing(home, capsys):
    assert main(["replay", "a", "--model", "models.py:new", "--out", "rows.json"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"fixed +" + re.escape(str(Rate(2, 3))), said)
    rows = json.loads((home / "rows.json").read_text())["rows"]
    assert [row["failing"] for row in rows] == [False, False, True]
    assert main(["replay", "a", "--model", "models.py:old", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["still_failing"]["hits"] == 3


def test_compare_writes_a_page_beside_the_runs(home, capsys):
    assert main(["compare", "a", "b"]) == 0
    said = capsys.readouterr().out
    assert "McNemar" in said
    assert (home / "compare.html").is_file()
    assert (home / "compare.json").is_file()


def test_shrink_makes_a_run_of_its_own(home, capsys):
    words = ["shrink", "a", "--allow-changes", "--trust", "--format", "json", "--out", "small"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["l2_after"] < said["l2_before"]
    assert main(["status", "small", "--format", "json"]) == 0


@pytest.fixture
def greys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_world(tmp_path)
    return tmp_path


def test_findings_are_right_before_and_wrong_now(greys, capsys):
    words = f"{WORDS} --model models.py:new --baseline models.py:old --oracle regression --out new"
    assert main(words.split()) == 0, capsys.readouterr().err
    run = Run("new")
    light = run.images().float().mean((1, 2, 3)) / 255
    assert len(run) > 0
    assert bool(((light > 0.5) & (light < 0.65)).all())
    assert set(run.findings["expected"].to_pylist()) == {1}
    assert run.record["baseline"] == "models.py:old"
    stored = tomllib.loads((greys / "new/config.toml").read_text())
    assert stored["baseline"] == ["models.py:old"]
    assert json.loads((greys / "new/run.json").read_text())["search_results"]["failing"] > 0
    assert json.loads((greys / "new/regression.json").read_text())["retraining"] is None
    assert set(Run("new-swapped").findings["expected"].to_pylist()) == {0}
    assert "with the roles swapped" in capsys.readouterr().out
    (section,) = report_content([run])["runs"]
    assert "Here: " in section["notes"][-1]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--oracle", "regression"], "--baseline MODEL"),
        (["--baseline", "models.py:old", "--oracle", "label"], "leave out --oracle"),
        (["--retrained", "models.py:old"], "--baseline MODEL"),
    ],
)
def test_what_does_not_go_together_is_told(greys, capsys, more, told):
    assert main([*WORDS.split(), "--model", "models.py:new", "--out", "x", *more]) == 2
    assert told in capsys.readouterr().err
