"""Judges of the user's own: functions and classes, from Python and by the name of their file."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "judging"))

from judged import splits, test_run

import hardcase as hc
from hardcase.cli.main import main
from hardcase.errors import Problem
from hardcase.judges.judge import SuppliedJudge

OWN = """
import torch

def bright(x, expected):
    "Valid if something is to be seen."
    seen = x.flatten(1).amax(1) > 0.3
    return {"valid": seen, "label_kept": [bool(one) or None for one in seen]}

class Learned:
    def __init__(self, train, test):
        self.images = len(train)
        self.mean = train.x.float().mean() / 255

    def __call__(self, x, expected):
        return {"valid": [True] * len(x), "label_kept": x.flatten(1).mean(1) > self.mean / 2}

    def features(self, x):
        return torch.ones(len(x), 2)

def silent(x, expected):
    return {"valid": [True]}

def short(x, expected):
    return {"valid": [True], "label_kept": [True]}

def unsure(x, expected):
    return {"valid": [0.3] * len(x), "label_kept": [True] * len(x)}

def quits(x, expected):
    raise SystemExit(0)
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_a_function_judges_a_run(tmp_path):
    def lenient(x, expected):
        return {
            "valid": torch.ones(len(x), dtype=torch.bool),
            "label_kept": [None] * 4 + [True] * 8,
        }

    run = hc.judge(test_run(tmp_path / "run"), by=lenient)
    assert run.record["funnel"]["valid"] == 12
    assert run.record["funnel"]["label_kept"] == run.record["funnel"]["confirmed"] == 8
    assert run.record["funnel"]["distinct"] >= 1
    assert "not known" in run.record["judge"]["standing"]
    assert "lenient" in run.record["judge"]["name"]


def test_the_command_takes_a_judge_of_a_file(own, tmp_path, capsys):
    folder = test_run(tmp_path / "run").folder
    words = ["judge", str(folder), "--judge", f"{own}:bright", "--progress", "none"]
    assert main([*words, "--format", "json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["funnel"]["failing"] == 12
    assert record["funnel"]["confirmed"] == 8
    assert main(words) == 0
    assert f"supplied judge {own}:bright" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 0


def test_a_class_is_made_with_the_data_it_asks_for(own, tmp_path, monkeypatch):
    train, test = splits()
    monkeypatch.setattr(
        "hardcase.judges.verdicts.load",
        lambda name, split, offline: {"train": train, "test": test}[split],
    )
    run = hc.judge(test_run(tmp_path / "run"), by=f"{own}:Learned")
    assert run.record["funnel"]["valid"] == 12
    assert 4 <= run.record["funnel"]["confirmed"] <= 8


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("silent", "must return a mapping with 'valid' and 'label_kept'"),
        ("short", "of each of 12 images"),
        ("unsure", "something else than True, False or None"),
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
    with pytest.raises(Problem, match="only trained judges can be calibrated"):
        hc.judge(test_run(tmp_path / "run"), by=f"{own}:bright", calibrate="people.npz")


def test_groups_follow_the_judges_features_or_pixels():
    x = torch.rand(3, 1, 4, 4)
    plain = SuppliedJudge("plain", lambda x, expected: {})
    assert torch.equal(plain.features(x), x.flatten(1))
