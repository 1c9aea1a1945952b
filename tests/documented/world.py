"""A small world in which the examples of the pages are done: bars in one of three places.

What a page calls its model and its data is exchanged for the world's; runs that a page takes as
given are made when they are first named.
"""

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
        self.flat, self.relu = nn.Flatten(), nn.ReLU()
        self.hidden = nn.Linear(784, 3, bias=False)
        self.out = nn.Linear(3, 3, bias=False)
        column = torch.zeros(3, 28, 28)
        for i in range(3):
            column[i, :, i * 28 // 3 : (i + 1) * 28 // 3] = 1 / 252
        self.hidden.weight.data = column.flatten(1) + bias
        self.out.weight.data = sharpness * torch.eye(3)

    def forward(self, x):
        return self.out(self.relu(self.hidden(self.flat(x.mean(1, keepdim=True)))))

def make():
    return Columns()

def newer():
    return Columns(9.0)

def other():
    return Columns(bias=1e-4)
"""
MODEL, NEWER, OTHER, DATA = "net.py:make", "net.py:newer", "net.py:other", "folder:photos"
COUNTS = {"train": 60, "test": 72}
"""Images of each part: enough that some are left to prove a repair on."""
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
