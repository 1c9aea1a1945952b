"""A small world on disk: images of which a network names the brightest quarter, and the command line in this process."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tiny import save_toys

MODEL = '''
import os, time
import torch
from torch import nn
from hardcase.testing.toys import Quarters

class Watched(Quarters):
    """Slow if asked to be, so that it can be interrupted."""
    def forward(self, x):
        time.sleep(float(os.environ.get("SLOW", 0)))
        return super().forward(x)

class Through(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.net, self.f = Quarters(), f
    def forward(self, x):
        return self.f(self.net(x))

def make(): return Watched()
def probabilities(): return Through(lambda y: y.softmax(1))
def nan(): return Through(lambda y: y * float("nan"))
def narrow(): return Through(lambda y: y[:, :3])
def wide(): return Through(lambda y: torch.cat([y, y[:, :2] - 9], 1))
def fickle(): return Through(lambda y: y + torch.rand_like(y))
def shuffled(): return Through(lambda y: y.roll(1, 1))
def flat(): return Through(lambda y: y.flatten())
def broken(): raise RuntimeError("no weights here")
def number(): return 3
constant = 3
'''


@dataclass
class Done:
    code: int
    out: str
    err: str


class World:
    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys

    def __call__(self, *words):
        """Run ``hardcase WORDS`` here; several words may stand in one text."""
        from hardcase.cli.main import main

        self.capsys.readouterr()
        code = main(" ".join(map(str, words)).split())
        said = self.capsys.readouterr()
        return Done(code, said.out, said.err)

    def run(self, *words, method="pgd", model="model.py:make", data="npz:toy.npz"):
        given = ("--model", model, "--data", data, "--method", method, "--out", "out")
        return self("run", *given, *words)

    def record(self, folder="out"):
        return json.loads((Path(folder) / "run.json").read_text())

    def save(self, name, **changes):
        """Another data set: the toy's with some arrays exchanged."""
        with np.load("toy.npz") as file:
            np.savez(name, **{**file, **changes})
        return f"npz:{name}"

    def findings(self, folder="out"):
        parts = sorted((Path(folder) / "findings").glob("part-*.parquet"))
        return {path.name: path.read_bytes() for path in parts}


@pytest.fixture
def world(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    Path("model.py").write_text(MODEL)
    save_toys(tmp_path, 200)
    return World(tmp_path, capsys)


def installed_points(monkeypatch, *points):
    """Let these be the entry points of all installed distributions."""
    from hardcase import companions

    def entry_points(group, name=None):
        wanted = (point for point in points if point.group == group)
        return [point for point in wanted if name in (None, point.name)]

    monkeypatch.setattr(companions, "entry_points", entry_points)
