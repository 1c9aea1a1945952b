"""A small world in which the examples of the pages are done: bars in one of three places.

What a page calls its model and its data is exchanged for the world's; runs that a page takes as
given are made when they are first named.
"""

import os
import shutil
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

from PIL import Image

from tiny import bars

NET = """
import torch
from torch import nn

class Columns(nn.Module):
    \"\"\"The brightest third of the columns names the class.\"\"\"
    def __init__(self, sharpness=12.0, bias=0.0):
        super().__init__()
        self.pool, self.flat, self.relu = nn.AvgPool2d(4), nn.Flatten(), nn.ReLU()
        self.hidden = nn.Linear(49, 3, bias=False)
        self.out = nn.Linear(3, 3, bias=False)
        column = torch.zeros(3, 7, 7)
        for i, places in enumerate(([0, 1], [2, 3], [4, 5])):
            column[i, :, places] = 1 / 8
        column[0] *= 3.5  # faded bars elsewhere look like a bar on the left
        self.hidden.weight.data = column.flatten(1) + bias
        self.out.weight.data = sharpness * torch.eye(3)

    def forward(self, x):
        return self.out(self.relu(self.hidden(self.flat(self.pool(x.mean(1, keepdim=True))))))

def make():
    return Columns()

def newer():
    return Columns(9.0)

def other():
    return Columns(bias=1 / 64)
"""
MODEL, NEWER, OTHER, DATA = "net.py:make", "net.py:newer", "net.py:other", "folder:photos"
LONG = os.environ.get("HARDCASE_TORTURE") == "long"
COUNTS = {"train": 60, "test": 72 if LONG else 18}
"""Images of each part: with `make torture` enough that some are left to prove a repair on."""
FINDER = ("--method", "pgd", "--set", "method.epsilon=0.3", "--images", "6")
"""The search of the runs that a page takes as given: a quick one that finds something."""
FURNITURE = ("net.py", "other.py", "next.py", "photos", ".runs", ".cache")


def furnish(home):
    """Write the world's network and its images into a folder."""
    for name in ("net", "other", "next"):
        (home / f"{name}.py").write_text(NET)
    for seed, (part, count) in enumerate(COUNTS.items()):
        images = bars(count, size=28, seed=seed, split=part)
        for number, (x, y) in enumerate(zip(images.x, images.y.tolist())):
            place = home / "photos" / part / ("left", "middle", "right")[y]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[0].numpy()).save(place / f"{number:03d}.png")


def call(*words):
    """The command line in this process: how it ended, and what it printed."""
    from hardcase.cli.main import main

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


def clear(home):
    """Leave nothing of the page before but the furniture."""
    for path in home.iterdir():
        if path.name not in FURNITURE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def give_run(place, home):
    """Put a finished run where a page takes one as given; a newer model's where it is called so."""
    model = NEWER if place.name in ("new", "next", "retrained") else MODEL
    stored = home / ".runs" / model.rpartition(":")[2]
    if not stored.exists():
        make_run(stored, model)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(stored, place)


def make_run(folder, model):
    """Make a run with failures, every one accepted by a judge that trusts everything."""
    import hardcase as hc

    words = ("run", "--model", model, "--data", DATA, *FINDER, "--out", str(folder))
    code, out, err = call(*words, "--witness", "none", "--progress", "none")
    assert code == 0, out + err
    hc.judge(hc.Run(folder), by=lambda pairs: hc.Verdicts(["kept"] * len(pairs)))
