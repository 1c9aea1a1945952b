"""How far a reader has to walk: the files, the functions and the depth of calls that one seed of a
run passes.

The world is tiny, its networks are trained in seconds, and the runs that are watched find all of
them in the cache, the judge's among them.
"""

import inspect
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import hardcase

ROOT = str(Path(hardcase.__file__).parent)
LIMITS = {
    "natural": (44, 14, 424),
    "sinvad": (48, 14, 515),
    "pgd": (46, 14, 469),
    "photograph": (53, 14, 463),
}
"""Files of ours in which one seed may execute functions (the entry point among them), frames of ours
that may be open at once below it, and functions in all: what is reached; the aim is 48, 14 and 450.
"""
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
DATA = "npz:bars.npz"
WORDS = {
    "natural": f"--model zoo:lenet1 --data {DATA} --method natural",
    "sinvad": f"--model zoo:lenet1 --data {DATA} --method sinvad",
    "pgd": f"--model zoo:lenet1 --data {DATA} --method pgd",
    "photograph": "--model photo.py:make --data npz:photos.npz --method natural --witness none",
}
PHOTO = """
import torch
def make():
    net = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return net
"""


class Trace:
    """The functions of ours that are executed while this context is open, and how deep they lie."""

    def __init__(self):
        self.open = []
        self.functions = set()
        self.deepest = ()

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
        self.functions.add(frame.f_code)
        if len(self.open) > len(self.deepest):
            self.deepest = tuple(self.open)

    @property
    def files(self):
        return {code.co_filename.removeprefix(ROOT) for code in self.functions} | {"/__main__.py"}


def ours(code):
    """Whether this is a function of hardcase: no module, no class body, no comprehension."""
    function = code.co_flags & inspect.CO_OPTIMIZED and code.co_name not in COMPREHENSIONS
    return bool(function) and code.co_filename.startswith(ROOT)


@pytest.fixture(scope="module")
def one_seed(tmp_path_factory):
    """``hardcase run`` of one seed in a world where every network, the judge too, is in the cache."""
    from judged import QUICK

    from hardcase.cli.main import main
    from hardcase.data.sources import load
    from hardcase.judges import panel
    from tiny import save_bars

    folder = tmp_path_factory.mktemp("world")

    def run(out, name="sinvad"):
        # the path of the search: the risk is measured apart from it
        words = f"run {WORDS[name]} --conditions none --images 1 -q --out {out}"
        assert main(words.split()) == 0
        return hardcase.Run(out)

    with pytest.MonkeyPatch.context() as patch:
        recipes = {"generator": ["vae-linear"], "model": ["lenet1", "lenet5"]}
        save_bars(folder, patch, recipes, epochs=20)
        for name in ("trained", "folder"):
            patch.setattr(panel, name, partial(getattr(panel, name), config=QUICK))
        Path("photo.py").write_text(PHOTO)
        colours = np.random.default_rng(0).integers(0, 256, (8, 3, 1, 1), dtype=np.uint8)
        photos = np.broadcast_to(colours, (8, 3, 72, 72)).copy()
        np.savez("photos.npz", images=photos, labels=photos.mean((2, 3)).argmax(1))
        panel.trained(load(DATA, split="train"), load(DATA, split="test"))
        for name in WORDS:
            run(f"first {name}".replace(" ", "-"), name)
        yield run


@pytest.mark.parametrize("name", LIMITS)
def test_one_seed_passes_few_files_and_functions_at_little_depth(one_seed, name):
    with Trace() as trace:
        run = one_seed(f"traced-{name}", name)
    if name in ("sinvad", "pgd"):  # bars are read whatever their appearance
        assert run.verdicts is not None, "nothing was found, so nothing was judged"
    files, depth, functions = LIMITS[name]
    assert len(trace.files) <= files, " ".join(sorted(trace.files))
    names = [f"{Path(code.co_filename).name}:{code.co_qualname}" for code in trace.deepest]
    assert len(names) <= depth, " > ".join(names)
    assert len(trace.functions) <= functions


def test_data_are_loaded_and_hashed_once(one_seed, monkeypatch):
    from hardcase import splits, tensors
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
    assert splits.load is load
    assert run.verdicts is not None
    assert loaded == {"train": 1, "test": 1}
    assert set(hashed.values()) == {1}, hashed
    assert len(hashed) == 3, "the two splits and the seed"
