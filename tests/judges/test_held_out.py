"""A second judge where the usual one was trained on what was searched; who shares what."""

import pytest
from judged import QUICK, made_run, splits

from hardcase.judges import held_out, panel
from hardcase.judges.judge import JudgeRequest, NormJudge, Provenance
from hardcase.judges.training_data import FAMILIES
from hardcase.judges.verdicts import judge_run
from hardcase.models.subject import Subject
from hardcase.models.witnesses import witness_record
from hardcase.runs.results import Run
from hardcase.tensors import fingerprints, from_bytes
from hardcase.testing.toys import toy_subject, toy_world
from tiny import bars


@pytest.fixture
def searched(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(panel, "config_for", lambda *_, **__: QUICK)
    train, test = splits()
    x = test.x[:12]
    record = {"space": {"text": "warp(points=5)*light"}}
    run = made_run(tmp_path / "run", x, test.y[:12], from_bytes(x), record=record)
    return Run(run.folder), train, test


def test_it_is_asked_beside_the_usual_judge_and_said(searched):
    run, train, test = searched
    usual = panel.trained(train, test)
    images = {"train": train, "test": test}.__getitem__
    request = JudgeRequest(images=images, train=False)
    assert held_out.held_out_judge(run, usual, request) is None
    assert held_out.held_out_judge(run, NormJudge(), JudgeRequest(images=images)) is None
    other = held_out.held_out_judge(run, usual, JudgeRequest(images=images))
    assert other is not None
    assert other.provenance.families == ()
    assert other.card["configuration"]["training"]["held_out_families"] == ["bending", "retouching"]
    assert other.card["weights"] != usual.card["weights"]
    second = judge_run(run, usual, held_out=other).record["judge"]["held_out_check"]
    assert second["accepted"]["total"] == run.counts()["search_results"]["searched"]
    assert "bending and retouching" in held_out.held_out_in_words(second)


def test_independence_says_what_judge_and_witnesses_share():
    train = bars(200)
    witness = Subject(toy_world().peer.net, name="witness:1")
    record = witness_record(toy_subject(), [witness], 2.0, train)
    known = record["independence"]["training_images"]
    learned = fingerprints(train.x)

    def told(learned, data=train.hash, space="", lineages=(), witnesses=record):
        run = object.__new__(Run)
        vars(run)["record"] = {"witnesses": witnesses, "space": {"text": space}}
        known = Provenance(
            networks={"a": "member 1"},
            lineages=tuple(lineages),
            learned=learned,
            data=data,
            families=tuple(FAMILIES),
        )
        return held_out.independence(run, known)

    judged = told(learned, space="warp(points=5)*light")
    assert judged["training_images"]["shared"] == known["images"]
    assert judged["trained_on"]["searched"] == ["warp", "light"]
    assert "bent" in judged["trained_on"]["judge"]
    lines = held_out.independence_in_words(judged)
    assert f"{known['images']:,}" in lines[2]
    assert "warp and light" in lines[3]
    other = told(learned, lineages=["keras-resnet50"])
    lines = held_out.independence_in_words(other)
    assert "judge keras-resnet50" in lines[1]
    assert "by construction" not in lines[3]
    odd = learned[learned % 2 != 0]
    assert told(odd)["training_images"]["shared"] == 0
    assert told(odd, "other data")["training_images"] == "not known"
    assert told(odd, witnesses=None) is None
