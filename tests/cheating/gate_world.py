"""A team's repository in small: 400 grey images, a released network, a worse one that should pass."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hardcase.cli.main import main
from hardcase.runs.files import CHECK, checked_json, read_checked_json

COUNT = 400
CONDITIONS = '[conditions]\nname = "field"\nexposure = "±0.3 stops"\nshift = "±5 %"\n'
MODELS = """
import torch
from torch import nn

class Brightness(nn.Module):
    '''Class 1 where an image is bright enough; `trick` is what a team may think of.'''

    def __init__(self, edge, trick=None):
        super().__init__()
        self.edge = nn.Parameter(torch.tensor(edge))
        self.trick = trick

    def forward(self, x):
        gap = 8 * (x.mean((1, 2, 3)) - self.edge)
        y = torch.stack([-gap, gap], 1)
        if self.trick == "tiny":
            return 1e-6 * y
        if self.trick == "ties":
            return torch.zeros_like(y)
        if self.trick == "nearly":
            return y.clamp(-0.1, 0.1).round(decimals=1) + 0 * y
        if self.trick == "nan":
            return torch.where(gap.abs()[:, None] < 0.5, torch.nan, y)
        if self.trick == "infinite":
            return torch.where(gap.abs()[:, None] < 0.5, torch.inf, y)
        return y

def released(): return Brightness(0.51)
def better(): return Brightness(0.5)
def worse(): return Brightness(0.6)
def tiny(): return Brightness(0.6, "tiny")
def ties(): return Brightness(0.51, "ties")
def nearly(): return Brightness(0.6, "nearly")
def nan(): return Brightness(0.51, "nan")
def infinite(): return Brightness(0.51, "infinite")
def bright(): return Brightness(0.0)
"""
SAMPLER = "def draw(u):\n    return {'exposure': (2 * u[:, 0] - 1) * 0.3, 'shift': (2 * u[:, 1] - 1) * 5}\n"
NEUTRAL = "def draw(u):\n    return {'exposure': 0 * u[:, 0], 'shift': 0 * u[:, 1]}\n"
FILE_CONDITIONS = (
    '[conditions]\nexposure = "±0.3 stops"\nshift = "±5 %"\n{kind} = "{kind}.{ending}"\n'
)


def images(count=COUNT):
    """Grey levels over the whole range, and which half each lies in."""
    levels = np.random.default_rng(0).permutation(np.linspace(30, 225, count).round()).astype(int)
    x = np.broadcast_to(levels[:, None, None], (count, 8, 8)).astype(np.uint8)
    return np.ascontiguousarray(x), (levels >= 128).astype(np.int64)


def write_images(path, x, y, names=None, classes=("dark", "light")):
    """A folder of pictures, whose names are those of its images."""
    from PIL import Image

    names = names or [f"image-{i:04d}" for i in range(len(x))]
    places = [("test", row, name) for row, name in enumerate(names)]
    places += [("train", row, f"learned-{row}") for row in range(40)]
    for split, row, name in places:
        place = Path(path) / split / classes[int(y[row])]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[row], "L").save(place / f"{name}.png")


def hardcase(*words):
    """The exit code of a command."""
    return main([str(word) for word in words])


def measure(out, model="worse", data="pictures", conditions="conditions.toml", *more, **files):
    """A run that only measures, with some files of the repository changed while it does."""
    with changed_files(files):
        given = ("--conditions", conditions) if conditions else ("--conditions", "none")
        code = hardcase(
            *("run", "--model", f"models.py:{model}", "--data", f"folder:{data}"),
            *("--method", "none", "--seed", 1, "--out", out, "--progress", "none", "-q"),
            *(*given, "--allow-low-accuracy", *more),
        )
    assert code == 0, f"{out} was not measured: {code}"
    return Path(out)


def measure_pictures(out, data, model="worse"):
    """A run of other pictures in the place of the team's."""
    os.rename("pictures", "pictures-kept")
    os.rename(data, "pictures")
    try:
        return measure(out, model)
    finally:
        os.rename("pictures", data)
        os.rename("pictures-kept", "pictures")


@contextmanager
def changed_files(files):
    """Files of the working folder by their names, with ``_`` for the dot, as long as it lasts."""
    before = {}
    for name, text in files.items():
        path = Path(name.replace("_", "."))
        before[path] = path.read_text() if path.exists() else None
        path.write_text(text)
    yield
    for path, text in before.items():
        if text is None:
            path.unlink()
        else:
            path.write_text(text)


def copy(folder, name):
    """A copy of a run, to be spoiled."""
    return Path(shutil.copytree(folder, name))


def edit(folder, change, *, seal=False, name="run.json"):
    """Change what a file of a run says; `seal` writes the checksum of the new content."""
    record, _ = read_checked_json((folder / name).read_bytes())
    record = dict(record)
    change(record)
    data = checked_json(record)
    if not seal:
        old = json.loads((folder / name).read_bytes())
        data = json.dumps({**json.loads(data), CHECK: old[CHECK]}).encode()
    (folder / name).write_bytes(data)
    return folder


def spoil(path, data=b"spoiled"):
    """Another content of a file."""
    os.chmod(path, 0o644)
    Path(path).write_bytes(data)
