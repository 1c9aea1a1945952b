"""The risk of a stored run: kept with it, told, held against a limit and against a baseline."""

import json

import pytest
import torch

import hardcase as hc
from hardcase.analysis.conditions import against, in_words
from hardcase.cli.main import main
from hardcase.errors import Problem
from hardcase.suite.gate import GateLimits, checks, compare_baseline, gate
from hardcase.testing.toys import toy_images, toy_subject

DECLARED = {"rotation": "±40 deg", "exposure": "±1 stops"}


def run(folder, *, sharpness=20.0, shift=0.0, **settings):
    subject = toy_subject(sharpness)
    if shift:
        subject.net.out.weight.data[:, 0] += shift * torch.tensor([0.0, 1, 1, 1])
    given = {"method": "pgd", "judge": False, "conditions": DECLARED, **settings}
    return hc.run(subject, toy_images(60), out=folder, **given)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs") / "first")


def test_a_run_keeps_the_risk_of_all_its_seeds(stored):
    record = json.loads((stored.folder / "run.json").read_text())
    assert record["conditions"] == {**DECLARED, "name": "declared"}
    assert record["risk"]["seeds"] == 60
    assert 0 < record["risk"]["value"] < 1
    low, high = record["risk"]["images_like_these"]
    assert low < record["risk"]["value"] < high
    assert stored.verification.state == "verified"
    assert "risk: " in in_words(stored.record)[0]


def test_the_gate_holds_the_interval_against_the_limit(stored):
    low, high = stored.record["risk"]["images_like_these"]
    for limit, outcome in (
        (high + 0.01, "pass"),
        (low / 2, "fail"),
        ((low + high) / 2, "cannot tell"),
    ):
        found = {check.name: check.outcome for check in gate(stored, GateLimits(risk=limit))}
        assert found["risk"] == outcome


def test_two_runs_are_compared_seed_by_seed(stored, tmp_path):
    again = run(tmp_path / "again")
    same = against(stored, again, margin=0.1)
    assert same.difference == 0
    assert compare_baseline(stored, again, 0.1).outcome == "pass"
    assert compare_baseline(stored, again, 0.0001).outcome == "cannot tell"
    assert main(f"gate {stored.folder} --baseline {again.folder} -q".split()) in (0, 4)


def test_runs_without_risk_or_under_other_conditions_are_refused(stored, tmp_path):
    none = run(tmp_path / "none", conditions=None)
    assert none.record.get("risk") is None
    with pytest.raises(Problem, match="no risk"):
        against(stored, none, margin=0.01)
    with pytest.raises(Problem, match="no risk"):
        gate(none, GateLimits(risk=0.1))
    shown = {check.name: check.outcome for check in checks(none, GateLimits(risk=0.1))}
    assert shown["risk"] == "cannot tell", "a report is made all the same"
    other = run(tmp_path / "other", conditions={"rotation": "±5 deg"})
    with pytest.raises(Problem, match="other conditions"):
        against(stored, other, margin=0.01)
