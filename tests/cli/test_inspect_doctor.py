"""The doctor takes what a model offers, tells guessing from weakness, and trains nothing unasked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hardcase.cli.main import main
from hardcase.errors import HardcaseError
from hardcase.models import health
from hardcase.models.health import check
from hardcase.models.mistakes import diagnose, may_be_guessing, trying
from hardcase.models.subject import Subject
from hardcase.testing.toys import Quarters, toy_images
from tiny import furnish

MODEL = """
import torch
from torch import nn
from hardcase.testing.toys import Quarters

def make(): return Quarters()
def asked():
    net = Quarters()
    return lambda x: torch.from_numpy(net(torch.from_numpy(x)).detach().numpy())
def labels():
    net = Quarters()
    return lambda x: torch.eye(4)[net(torch.as_tensor(x)).argmax(1)].log().detach()
def blind():
    net = Quarters()
    net.mean.weight.data.zero_()
    return net
"""


@pytest.fixture
def world(tmp_path, monkeypatch):
    furnish(tmp_path, monkeypatch, MODEL, 200)


def doctor(capsys, *words):
    code = main(["doctor", *words, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_alone_it_looks_at_the_machine(world, capsys):
    code, lines = doctor(capsys)
    assert code == 0
    assert "smoke run" not in {line["what"] for line in lines}
    assert not list(Path.cwd().glob("**/classifier-*"))


@pytest.mark.parametrize(("factory", "method"), [("make", "pgd"), ("asked", "natural-blackbox")])
def test_the_smoke_run_is_one_that_the_model_can_take(world, capsys, factory, method):
    code, lines = doctor(capsys, "--model", f"model.py:{factory}", "--data", "npz:toy.npz")
    assert code == 0, [line["detail"] for line in lines if line["state"] != "ok"]
    (smoke,) = [line for line in lines if line["what"] == "smoke run"]
    assert smoke["detail"].startswith(f"{method}: ")


def test_labels_that_look_like_scores_are_told_of(world, capsys):
    _, lines = doctor(capsys, "--model", "model.py:labels", "--data", "npz:toy.npz")
    assert "--set model.label_only=true" in [line["remedy"] for line in lines]


def test_weights_are_suggested_only_where_they_fit(world, capsys):
    state = Quarters().state_dict()
    torch.save({name: value[:3] for name, value in state.items()}, "a-narrow.pt")
    asked = ("--model", "model.py:blind", "--data", "npz:toy.npz")
    assert "WEIGHTS@" in " ".join(line["remedy"] for line in doctor(capsys, *asked)[1])
    torch.save(state, "b-right.pt")
    assert "b-right.pt@" in " ".join(line["remedy"] for line in doctor(capsys, *asked)[1])


def test_what_each_way_of_asking_gave_is_shown():
    with trying(5.0, lambda text: None):
        tried = dict(diagnose(Quarters(), toy_images(40)).tried)
    assert tried["rows and columns exchanged"] < 0.6
    assert "light and dark exchanged" in tried


class Weak(nn.Module):
    """Right about a share of the images, wherever it is asked."""

    def __init__(self, share):
        super().__init__()
        self.quarters, self.share = Quarters(), share

    def forward(self, x):
        logits = self.quarters(x)
        luck = ((x[:, 0, 0, 0] - x[:, 0, 7, 7]) * 1e3).frac().abs() < self.share
        return torch.where(luck[:, None], logits, -logits)


def test_a_weak_model_is_noted_and_one_that_guesses_is_refused(monkeypatch):
    monkeypatch.setattr(health, "_cause", lambda *asked: None)  # nothing explains it
    images = toy_images(200)
    weak = check(Subject(Weak(0.45)), images)
    assert 0.3 < weak.accuracy < 0.6
    assert any("accuracy is only" in note for note in weak.notes)
    with pytest.raises(HardcaseError, match="chance is 25 %"):
        check(Subject(Weak(0.2)), images)
    one = replace(images, y=torch.where(images.y == 3, 3, 2))  # two kinds of answer would be right
    constant = Quarters()
    constant.mean.weight.data.zero_()
    with pytest.raises(HardcaseError, match="for 100 %"):
        check(Subject(constant), one)


def test_few_images_cannot_show_that_a_model_guesses():
    assert may_be_guessing(10, 100, 10)
    assert not may_be_guessing(37, 67, 3)
    assert not may_be_guessing(3, 4, 3)
    assert may_be_guessing(50, 100, 2)
