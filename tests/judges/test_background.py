"""The judge of photographs is made while the search runs: the same judge, and no trace in the run."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hardcase.cli.main import main
from hardcase.judges import background
from hardcase.runs.results import Run
from hardcase.training.cards import read_card

SIDE = 64
NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, channels):
        super().__init__()
        torch.manual_seed(channels)
        self.body = nn.Sequential(nn.Conv2d(3, channels, 5, 4), nn.ReLU(), nn.Conv2d(channels, 8, 3))
    def forward(self, x):
        return 20 * x.mean((2, 3))[:, :2] + 0 * self.body(x).mean((2, 3))[:, :2]

def subject():
    return Net(4)

def reader():
    return Net(6)
"""
RUN = ("run", "--model", "net.py:subject", "--data", "folder:photos", "--method", "pgd", "--seeds", "4",
       "--gradients", "20", "--conditions", "none", "--judge-features", "net.py:reader")  # fmt: skip


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Photographs of two colours, a model and another network that can judge it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for label, kind in enumerate(("blue", "green")):
            place = Path("photos") / split / kind
            place.mkdir(parents=True)
            for i in range(count):
                x = rng.integers(40, 80, (SIDE, SIDE, 3))
                x[..., label] += 8
                Image.fromarray(x.astype(np.uint8)).save(place / f"{i}.png")
    Path("net.py").write_text(NET)
    return tmp_path


def judges(folder):
    return sorted(folder.glob("networks/judge-*/card.json"))


def test_it_is_the_judge_that_would_be_made_afterwards(project, monkeypatch):
    assert main([*RUN, "--out", "after", "-q"]) == 0
    [card] = judges(project / "cache")
    monkeypatch.setenv("HARDCASE_CACHE", str(project / "other"))
    monkeypatch.setattr(background, "LATER", 0.01)
    monkeypatch.setattr(background, "NICENESS", 0)  # a busy machine would starve it
    assert main([*RUN, "--set", "judge=false", "--out", "out", "-q"]) == 0
    assert judges(project / "other") == []
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    messages = []
    with background.judge_in_background(Path("out"), messages.append):
        ends = time.monotonic() + 120
        while not judges(project / "other") and time.monotonic() < ends:
            time.sleep(0.1)
    [again] = judges(project / "other")
    assert read_card(again.parent)["weights"] == read_card(card.parent)["weights"]
    assert messages == []
    command = [sys.executable, "-m", "hardcase.judges.background", "out", "0"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert child.wait(120) == 0, "it is made already"
    assert before == {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    for part in sorted(Path("after/findings").iterdir()):
        assert part.read_bytes() == (Path("out/findings") / part.name).read_bytes()


def test_what_goes_wrong_is_told_and_nothing_outlives_the_search(project, monkeypatch):
    assert main([*RUN, "--set", "judge=false", "--out", "out", "-q"]) == 0
    started = []
    popen = subprocess.Popen

    def starting(*words, **options):
        started.append(popen(*words, **options))
        return started[-1]

    monkeypatch.setattr(background.subprocess, "Popen", starting)
    messages = []
    with background.judge_in_background(Path("out"), messages.append):
        pass
    assert started == [], "a search that was over at once"
    monkeypatch.setattr(background, "LATER", 0.01)
    with background.judge_in_background(Path("out"), messages.append):
        while not started:
            time.sleep(0.01)
    assert started[0].returncode == -9
    assert messages == []
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with background.judge_in_background(Path("out"), messages.append):
        time.sleep(1)
    assert messages == ["the judge was not made in the background: no message"]
    monkeypatch.undo()
    command = [sys.executable, "-m", "hardcase.judges.background", str(project / "out"), "0"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=project)
    child.stdin.close()  # as when the process that searches is killed
    assert child.wait(60) == 1
    assert Run("out" if Path("out").exists() else project / "out").record["complete"]
