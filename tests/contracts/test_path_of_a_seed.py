"""How far a reader has to walk: the files and the depth of calls that one seed of a run passes.

The world is tiny, its networks are trained in seconds, and the run that is traced finds all of them
in the cache, the judge's among them.
"""

import inspect
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import hardcase

ROOT = str(Path(hardcase.__file__).parent)
FILES = 50
"""Files of ours in which one seed may execute functions."""
DEPTH = 14
"""Frames of ours that may be open at once."""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
MODEL = """
import torch
from torch import nn

class Columns(nn.Module):
    '''Names the third of the image that is brightest.'''
    def forward(self, x):
        return 8 * torch.stack([part.mean((1, 2, 3)) for part in x.split(4, 3)], 1)

def make(): return Columns()
"""


class Trace:
    """The functions of ours that are executed while this context is open, and how deep they lie."""

    def __init__(self):
        self.open = []
        self.deepest = []
        self.all = set()
        self.files = {}

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def __call__(self, frame, event, argument):
        if event not in ("call", "return") or not ours(frame.f_code):
            return
        if event == "call":
            self.open.append(frame.f_code)
            self.files.setdefault(frame.f_code.co_filename, set()).add(frame.f_code.co_qualname)
            if len(self.open) > len(self.deepest):
                self.deepest = list(self.open)
            if len(self.open) > DEPTH:
                self.all.add(tuple(self.open))
        elif self.open:
            self.open.pop()

    def way(self):
        """The deepest stack of calls, outermost first."""
        return [f"{Path(code.co_filename).name}:{code.co_qualname}" for code in self.deepest]


def ours(code):
    """Whether this is a function of hardcase: no module, no class body, no comprehension."""
    function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in COMPREHENSIONS
    return bool(function) and code.co_filename.startswith(ROOT)


@pytest.fixture
def hardcase_run(tmp_path, monkeypatch, capsys):
    """``hardcase run`` of one seed in a world where every network, the judge too, is in the cache."""
    from hardcase import registry
    from hardcase.cli.main import main
    from hardcase.data.sources import load
    from hardcase.judges import teach
    from tiny import bars

    quick = replace(
        teach.USUAL,
        places=teach.USUAL.places[:1],
        members=replace(teach.USUAL.members, epochs=1, steps=40, batch=32),
        density=replace(teach.USUAL.density, epochs=1, steps=20, batch=32),
    )
    recipe = registry.parts("generator")["vae-linear"].facts
    monkeypatch.setitem(recipe, "recipe", replace(recipe["recipe"], epochs=40, steps=0))
    for name in ("trained", "folder"):
        monkeypatch.setattr(teach, name, partial(getattr(teach, name), schooling=quick))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "cache"))
    images = bars(150)
    np.savez("bars.npz", images=images.x.numpy(), labels=images.y.numpy())
    Path("model.py").write_text(MODEL)
    teach.trained(*(load("npz:bars.npz", split=split) for split in ("train", "test")))

    def run(out, *more):
        words = "run --model model.py:make --data npz:bars.npz --method sinvad --seeds 1 -q --out"
        assert main([*words.split(), out, *more]) == 0, capsys.readouterr().err
        return hardcase.Run(out)

    run("first")
    return run


def test_one_seed_passes_few_files(hardcase_run):
    with Trace() as trace:
        run = hardcase_run("second")
    print(len(trace.files), "files, depth", len(trace.deepest))
    for f, names in sorted(trace.files.items()):
        print(f.removeprefix(ROOT), len(names), sorted(names)[:8])
    for st in sorted(trace.all, key=len):
        if len(st) == len(trace.deepest) or not any(
            o[: len(st)] == st for o in trace.all if len(o) > len(st)
        ):
            print(len(st), " > ".join(f"{Path(c.co_filename).stem}:{c.co_qualname}" for c in st))
    assert len(run), "nothing was found, so nothing was judged"
    assert run.verdicts is not None
    assert len(trace.files) <= FILES, sorted(trace.files)
    assert len(trace.deepest) <= DEPTH, trace.way()
