"""A second judge where the usual one was taught what was searched."""

import pytest
from judged import QUICK, made_run, splits

from hardcase.judges import teach
from hardcase.judges.held_out import beside_in_words, families_of, untaught_judge
from hardcase.judges.verdicts import judge_run
from hardcase.runs.results import Run
from hardcase.tensors import from_bytes


@pytest.fixture
def taught(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(teach, "schooling_for", lambda *_, **__: QUICK)
    train, test = splits()
    x = test.x[:12]
    record = {"space": {"text": "warp(points=5)*light"}}
    run = made_run(tmp_path / "run", x, test.y[:12], from_bytes(x), record=record)
    return Run(run.folder), train, test


def test_the_families_are_those_of_the_space(taught):
    run, _, _ = taught
    assert families_of(run) == ("bending", "retouching")


def test_it_is_asked_beside_the_usual_judge_and_said(taught):
    run, train, test = taught
    usual = teach.trained(train, test)
    assert untaught_judge(run, usual, train, test) is None
    other = untaught_judge(run, usual, train, test, make=True)
    assert other is not None
    assert other.card["configuration"]["schooling"]["untaught"] == ["bending", "retouching"]
    assert other.card["weights"] != usual.card["weights"]
    beside = judge_run(run, usual, untaught=other).record["judge"]["beside"]
    assert beside["confirmed"]["total"] == run.counts()["funnel"]["attempted"]
    line = beside_in_words(beside)
    assert line.startswith("beside: a judge that was never taught about bending and retouching")
