"""Judges of the user's own: functions from findings to verdicts, in Python and by their file."""

import json

import pytest
from judged import test_run

import hardcase as hc
from hardcase.cli.main import main
from hardcase.errors import HardcaseError

OWN = """
import hardcase as hc

def bright(pairs):
    "Kept if something is to be seen."
    seen = (pairs.x.flatten(1).amax(1) > 76).tolist()
    return hc.Verdicts([("unsure", "kept")[one] for one in seen])

def silent(pairs):
    return {"verdict": ["kept"]}

def short(pairs):
    return hc.Verdicts(["kept"])

def odd(pairs):
    return hc.Verdicts(["maybe"] * len(pairs))

def quits(pairs):
    raise SystemExit(0)

class Seeing:
    "Compares images with their originals."
    def check(self, run):
        self.classes = run.classes

    def about(self):
        return {"name": "seeing", "least": len(self.classes)}

    def __call__(self, pairs):
        moved = (pairs.x != pairs.original).flatten(1).any(1).tolist()
        return hc.Verdicts([("lost", "kept")[one] for one in moved])
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def test_a_function_judges_a_run(tmp_path):
    def lenient(pairs):
        dark = (pairs.x.flatten(1).amax(1) < 76).tolist()
        return hc.Verdicts([("kept", "unsure")[one] for one in dark])

    run = hc.judge(test_run(tmp_path / "run"), by=lenient)
    funnel = run.record["search_results"]
    assert (funnel["accepted"], funnel["unsure"], funnel["confirmed"]) == (8, 4, None)
    assert funnel["clusters"] >= 1
    assert "not known" in run.record["judge"]["status"]
    assert run.record["judge"]["name"] == "lenient"
    assert run.record["judge"]["controls"]["planted"] == 36


def test_a_judge_says_what_it_is_as_a_dictionary(tmp_path):
    class Half:
        def __init__(self):
            self.description = {"name": "half"}

        def about(self):
            return self.description

        def __call__(self, pairs):
            return hc.Verdicts(["kept"] * len(pairs))

    run = test_run(tmp_path / "run")
    half = Half()
    assert hc.judge(run, by=half).record["search_results"]["accepted"] == 12
    half.description = "half"
    with pytest.raises(HardcaseError, match="about"):
        hc.judge(run, by=half)


def test_the_command_takes_a_judge_of_a_file(own, tmp_path, capsys):
    folder = test_run(tmp_path / "run").folder
    words = ["judge", str(folder), "--judge", f"{own}:bright", "--progress", "none"]
    assert main([*words, "--format", "json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["search_results"]["failing"] == 12
    assert record["search_results"]["accepted"] == 8
    assert record["judge"]["name"] == "bright"
    assert main(["report", str(folder)]) == 0


def test_a_class_is_made_and_sees_the_run_first(own, tmp_path):
    run = hc.judge(test_run(tmp_path / "run"), by=f"{own}:Seeing")
    assert run.record["search_results"]["accepted"] == 12
    assert run.record["judge"]["name"] == "seeing"
    assert "not known" in run.record["judge"]["status"], "what it does not say of itself"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("silent", "must return hardcase.Verdicts"),
        ("short", "1 answers on 12 images"),
        ("odd", "said 'maybe' of an image"),
        ("quits", r"called sys.exit\(0\)"),
        ("nobody", "no function 'nobody'"),
    ],
)
def test_a_judge_that_is_none_is_told(own, tmp_path, name, message):
    run = test_run(tmp_path / "run")
    with pytest.raises(HardcaseError, match=message):
        hc.judge(run, by=f"{own}:{name}")
    assert run.record["search_results"]["accepted"] is None


def test_a_supplied_judge_cannot_be_calibrated(own, tmp_path):
    with pytest.raises(HardcaseError, match="only a trained judge can be calibrated"):
        hc.judge(test_run(tmp_path / "run"), by=f"{own}:bright", calibrate="people.npz")
