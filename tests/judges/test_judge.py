"""Judges of the user's own: functions from findings to verdicts, in Python and by their file."""

import json

import pytest
import torch
from judged import test_run

import hardcase as hc
from hardcase.cli.main import main
from hardcase.errors import Problem

OWN = """
import hardcase as hc

def bright(findings):
    "Valid if something is to be seen."
    seen = (findings.x.flatten(1).amax(1) > 76).tolist()
    return hc.Verdicts(valid=seen, label_kept=[one or None for one in seen])

def silent(findings):
    return {"valid": [True]}

def short(findings):
    return hc.Verdicts(valid=[True], label_kept=[True])

def quits(findings):
    raise SystemExit(0)

class Seeing:
    "Compares findings with their seeds."
    def check(self, run):
        self.seeds = run.seed_images()

    def about(self):
        return {"name": "seeing", "least": 1}

    def __call__(self, findings):
        moved = (findings.x != self.seeds[findings.seed]).flatten(1).any(1).tolist()
        return hc.Verdicts(valid=moved, label_kept=moved)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_a_function_judges_a_run(tmp_path):
    def lenient(findings):
        kept = [None] * 4 + [True] * 8
        return hc.Verdicts(valid=[True] * len(findings), label_kept=kept)

    run = hc.judge(test_run(tmp_path / "run"), by=lenient)
    assert run.record["funnel"]["valid"] == 12
    assert run.record["funnel"]["label_kept"] == run.record["funnel"]["confirmed"] == 8
    assert run.record["funnel"]["distinct"] >= 1
    assert "not known" in run.record["judge"]["standing"]
    assert run.record["judge"]["name"] == "lenient"


def test_a_judge_may_answer_in_tensors_and_says_what_it_is_as_a_dictionary(tmp_path):
    class Half:
        def __init__(self):
            self.said = {"name": "half"}

        def about(self):
            return self.said

        def __call__(self, findings):
            kept = torch.arange(len(findings)) % 2 == 0
            return hc.Verdicts(valid=torch.ones(len(findings), dtype=torch.bool), label_kept=kept)

    run = test_run(tmp_path / "run")
    half = Half()
    assert hc.judge(run, by=half).record["funnel"]["label_kept"] == 6
    half.said = "half"
    with pytest.raises(Problem, match="about"):
        hc.judge(run, by=half)


def test_the_command_takes_a_judge_of_a_file(own, tmp_path, capsys):
    folder = test_run(tmp_path / "run").folder
    words = ["judge", str(folder), "--judge", f"{own}:bright", "--progress", "none"]
    assert main([*words, "--format", "json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["funnel"]["failing"] == 12
    assert record["funnel"]["confirmed"] == 8
    assert record["judge"]["name"] == "bright"
    assert main(["report", str(folder)]) == 0


def test_a_class_is_made_and_sees_the_run_first(own, tmp_path):
    run = hc.judge(test_run(tmp_path / "run"), by=f"{own}:Seeing")
    assert run.record["funnel"]["confirmed"] == 12
    assert run.record["judge"]["name"] == "seeing"
    assert "not known" in run.record["judge"]["standing"], "what it does not say of itself"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("silent", "must return hardcase.Verdicts"),
        ("short", "1 answers on 12 findings"),
        ("quits", r"called sys.exit\(0\)"),
        ("nobody", "no function 'nobody'"),
    ],
)
def test_a_judge_that_is_none_is_told(own, tmp_path, name, message):
    run = test_run(tmp_path / "run")
    with pytest.raises(Problem, match=message):
        hc.judge(run, by=f"{own}:{name}")
    assert run.record["funnel"]["valid"] is None


def test_a_supplied_judge_cannot_be_calibrated(own, tmp_path):
    with pytest.raises(Problem, match="only a trained panel can be calibrated"):
        hc.judge(test_run(tmp_path / "run"), by=f"{own}:bright", calibrate="people.npz")
