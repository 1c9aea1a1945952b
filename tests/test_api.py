"""`hc.run` takes whatever users have: networks of any kind, data in any form, and nothing else; it makes images and resumes, too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hardcase as hc
from hardcase.runs.start import Watcher
from hardcase.testing.toys import toy_images, toy_peer, toy_subject

IMAGES = toy_images(24)
NET = toy_subject().net


class Said(nn.Module):
    """Answers in a dictionary, a tuple, or an object, as libraries do."""

    def __init__(self, form):
        super().__init__()
        self.net = toy_subject().net
        self.form = form

    def forward(self, x):
        return self.form(self.net(x))


def arrays(x):
    assert isinstance(x, np.ndarray)
    with torch.no_grad():
        return NET(torch.from_numpy(x)).numpy()


MODELS = {
    "module": NET,
    "tuple": Said(lambda y: (y, None)),
    "dict": Said(lambda y: {"loss": None, "logits": y}),
    "logits": Said(lambda y: SimpleNamespace(logits=y)),
    "traced": torch.jit.trace(NET, torch.rand(1, *IMAGES.x.shape[1:])),
    "exported": torch.export.export(NET, (torch.rand(4, *IMAGES.x.shape[1:]),)),
    "bfloat16": toy_subject().net.bfloat16(),
    "function": lambda x: NET(x),
    "subject": toy_subject(),
}


@pytest.mark.parametrize("name", MODELS)
def test_any_model(name):
    found = hc.search(MODELS[name], IMAGES, method="pgd", images=6)
    assert len(found)
    assert bool((found.predicted != found.expected).all())


def test_a_function_of_arrays_is_searched_without_gradients(tmp_path):
    run = hc.run(arrays, IMAGES, images=4, out=tmp_path / "run", judge=False)
    assert run.record["method"] == "natural-blackbox"


FLOATS = IMAGES.x.float() / 255
DATA = {
    "dataset": TensorDataset(FLOATS, IMAGES.y),
    "loader": DataLoader(TensorDataset(FLOATS, IMAGES.y), batch_size=5),
    "arrays": (IMAGES.x.numpy(), IMAGES.y.numpy()),
    "pairs": list(zip(IMAGES.x.numpy(), IMAGES.y.tolist())),
}


@pytest.mark.parametrize("name", DATA)
def test_any_data(name):
    found = hc.search(NET, DATA[name], method="pgd", images=8)
    assert len(found)
    assert bool((found.seed < 8).all())


def test_nothing_else_is_needed(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    run = hc.run(NET, (IMAGES.x.numpy()[:4], IMAGES.y.numpy()[:4]), judge=False)
    assert run.folder.as_posix() == "runs/natural-images-0"
    assert "method natural" in caplog.text
    assert "runs/natural-images-0" in caplog.text
    assert run.record["method"] == "natural"


def test_names_are_the_command_line_in_python(tmp_path, monkeypatch):
    net = "from hardcase.testing.toys import toy_subject\ndef make(): return toy_subject().net\n"
    (tmp_path / "net.py").write_text(net)
    np.savez(tmp_path / "data.npz", images=IMAGES.x.numpy(), labels=IMAGES.y.numpy())
    monkeypatch.chdir(tmp_path)
    run = hc.run("net.py:make", "npz:data.npz?split=all", method="pgd", images=4, judge=False)
    assert "net.py:make" in (run.folder / "config.toml").read_text()
    again = hc.search("net.py:make", DATA["arrays"], method="pgd", images=4)
    assert len(again) == len(run)


def test_a_network_that_states_its_normalisation_is_believed():
    net = toy_subject().net
    net.pretrained_cfg = {"mean": (0.25,), "std": (0.5,)}
    model = hc.models.model_of(net, IMAGES)
    assert model.mean.flatten().tolist() == [0.25]
    assert model.std.flatten().tolist() == [0.5]


PAINTER = """
import torch
from torch import nn

class Painter(nn.Module):
    latent = 16
    layers = ("spread",)

    def __init__(self):
        super().__init__()
        self.spread = nn.Identity()

    def forward(self, z, y):
        h = self.spread(z).reshape(-1, 1, 4, 4).repeat_interleave(2, 2).repeat_interleave(2, 3)
        half = torch.arange(8) // 4
        quarter = half[:, None] * 2 + half[None]
        bright = quarter[None, None] == y[:, None, None, None]
        return (h * 0.03 + 0.4 + 0.15 * bright).clamp(0, 1)
"""


def test_a_method_whose_generator_makes_the_seeds_works_from_python(tmp_path):
    (tmp_path / "painter.py").write_text(PAINTER)
    generator = f"{tmp_path / 'painter.py'}:Painter"
    given = {"method": "feature-perturbation", "generator": generator, "budget": hc.Budget(time=30)}
    given["images"] = 6
    given["witnesses"] = ()  # nobody is trained to check the painter
    run = hc.run(toy_subject(), toy_images(6), out=tmp_path / "run", judge=False, **given)
    assert run.record["complete"]
    assert len(run.seeds) == 6
    assert len(run)
    found = hc.search(toy_subject(), toy_images(6), **given)
    assert len(found) == len(run)


def test_a_run_started_from_python_is_resumed_from_python(tmp_path):
    class Impatient(Watcher):
        """Asks to stop as soon as something is stored."""

        def stopped(self):
            return (tmp_path / "run" / "state" / "ledger.jsonl").is_file()

    given = {"method": "pgd", "judge": False}
    how = hc.Execution(shard=2, rounds=1)
    whole = hc.run(toy_subject(), toy_images(8), out=tmp_path / "whole", execution=how, **given)
    watched = hc.Execution(shard=2, rounds=1, watcher=Impatient())
    part = hc.run(toy_subject(), toy_images(8), out=tmp_path / "run", execution=watched, **given)
    assert not part.record["complete"]
    with pytest.raises(hc.HardcaseError, match="started from Python"):
        hc.resume(tmp_path / "run")
    done = hc.resume(tmp_path / "run", toy_subject(), toy_images(8), execution=how, **given)
    assert done.record["complete"]
    assert done.stored_images() == whole.stored_images()


MADE = """
from hardcase.testing.toys import toy_peer, toy_subject

def make():
    return toy_subject().net

def other():
    return toy_peer().net
"""
MIXTURES = {
    "images of a named model": (("net.py:make", toy_images(8)), {}),
    "a name of data and an object": ((toy_subject(), "npz:toy.npz"), {}),
    "a peer that is an object": (("net.py:make", "npz:toy.npz"), {"peers": [toy_peer().net]}),
    "peers of both kinds": ((toy_subject(), toy_images(8)), {"peers": ["net.py:make", toy_peer()]}),
    "a baseline by name": ((toy_subject(), toy_images(8)), {"baseline": "net.py:other"}),
    "baselines of both kinds": (
        ("net.py:make", "npz:toy.npz"),
        {"baseline": ["net.py:other", toy_peer().net]},
    ),
    "witnesses of both kinds": (
        ("net.py:make", "npz:toy.npz"),
        {"witnesses": ["net.py:other", toy_peer().net]},
    ),
    "training images by name": (("net.py:make", "npz:toy.npz"), {"train": "npz:toy.npz"}),
    "a built method": (("net.py:make", "npz:toy.npz"), {"method": hc.methods.pgd()}),
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_names_and_objects_mix_everywhere(mixture, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MADE)
    images = toy_images(24)
    arrays = {f"x_{split}": images.x.numpy() for split in ("train", "test")}
    np.savez("toy.npz", **arrays, y_train=images.y.numpy(), y_test=images.y.numpy())
    (model, data), more = MIXTURES[mixture]
    how = {"method": "pgd", "conditions": "none", "judge": False, "images": 4, **more}
    how |= {"split": "train"} if isinstance(data, str) else {}
    run = hc.run(model, data, out="run", **how)
    assert run.record["complete"]
    assert run.record["split"] == (how.get("split") or data.split)
    several = {name: one for name, one in more.items() if name != "method"}
    stored = {
        "peers": run.record["hashes"]["peers"],
        "witnesses": run.record["hashes"]["witnesses"],
        "baseline": run.record["risk"]["baselines"],
    }
    for name in stored.keys() & several.keys():
        given = several[name] if isinstance(several[name], list) else [several[name]]
        assert len(stored[name]) == len(given)
