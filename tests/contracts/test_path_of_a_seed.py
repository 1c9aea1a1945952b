"""How far a reader has to walk: the files and the depth of calls that one seed of a run passes.

The world is tiny, its networks are trained in seconds, and the runs that are watched find all of
them in the cache, the judge's among them.
"""

import inspect
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import hardcase

ROOT = str(Path(hardcase.__file__).parent)
FILES = 50
"""Files of ours in which one seed may execute functions, the entry point among them."""
DEPTH = 14
"""Frames of ours that may be open at once below the entry point."""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
DATA = "npz:bars.npz"


class Trace:
    """The functions of ours that are executed while this context is open, and how deep they lie."""

    def __init__(self):
        self.open = []
        self.files = set()
        self.deep = set()

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def __call__(self, frame, event, argument):
        if event not in ("call", "return") or not ours(frame.f_code):
            return
        if event == "return":
            self.open.pop()
            return
        self.open.append(frame.f_code)
        self.files.add(frame.f_code.co_filename.removeprefix(ROOT))
        if len(self.open) > DEPTH:
            names = [f"{Path(code.co_filename).name}:{code.co_qualname}" for code in self.open]
            self.deep.add(" > ".join(names))


def ours(code):
    """Whether this is a function of hardcase: no module, no class body, no comprehension."""
    function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in COMPREHENSIONS
    return bool(function) and code.co_filename.startswith(ROOT)


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory):
    """``hardcase run`` of one seed in a world where every network, the judge too, is in the cache."""
    from hardcase import registry
    from hardcase.cli.main import main
    from hardcase.data.sources import load
    from hardcase.judges import teach
    from tiny import bars

    folder = tmp_path_factory.mktemp("world")
    schooling = replace(
        teach.USUAL,
        places=teach.USUAL.places[:1],
        members=replace(teach.USUAL.members, epochs=1, steps=40, batch=32),
        density=replace(teach.USUAL.density, epochs=1, steps=20, batch=32),
    )

    def run(out):
        words = f"run --model zoo:lenet1 --data {DATA} --method sinvad --seeds 1 -q --out {out}"
        assert main(words.split()) == 0
        return hardcase.Run(out)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HARDCASE_CACHE", str(folder / "cache"))
        for kind, name in (("generator", "vae-linear"), ("model", "lenet1")):
            facts = registry.parts(kind)[name].facts
            brief = replace(facts["recipe"], epochs=20, steps=0, batch=16)
            patch.setitem(facts, "recipe", brief)
        for name in ("trained", "folder"):
            patch.setattr(teach, name, partial(getattr(teach, name), schooling=schooling))
        splits = {"train": bars(120), "test": bars(30, seed=1)}
        arrays = {f"x_{split}": images.x.numpy() for split, images in splits.items()}
        arrays |= {f"y_{split}": images.y.numpy() for split, images in splits.items()}
        np.savez("bars.npz", **arrays)
        teach.trained(load(DATA, split="train"), load(DATA, split="test"))
        run("first")
        yield run


def test_one_seed_passes_few_files_at_little_depth(one_seed):
    with Trace() as trace:
        run = one_seed("traced")
    assert run.verdicts is not None, "nothing was found, so nothing was judged"
    files = sorted({*trace.files, "/__main__.py"})
    assert len(files) <= FILES, " ".join(files)
    assert not trace.deep, "\n".join(sorted(trace.deep, key=len))


def test_data_are_loaded_and_hashed_once(one_seed, monkeypatch):
    from hardcase import context, tensors
    from hardcase.data import sources

    loaded = Counter()
    hashed = Counter()

    before = sources.load

    def load(spec, *, split="test", offline=False):
        loaded[split] += 1
        return before(spec, split=split, offline=offline)

    def digest(named, _digest=tensors.digest_tensors):
        if set(named) == {"x", "y"}:
            hashed[tuple(named["x"].shape)] += 1
        return _digest(named)

    for name, module in list(sys.modules.items()):
        if name.startswith("hardcase") and getattr(module, "load", None) is before:
            monkeypatch.setattr(module, "load", load)
    monkeypatch.setattr(tensors, "digest_tensors", digest)
    run = one_seed("counted")
    assert context.load is load
    assert run.verdicts is not None
    assert loaded == {"train": 1, "test": 1}
    assert set(hashed.values()) == {1}, hashed
    assert len(hashed) == 3, "the two splits and the seed"
