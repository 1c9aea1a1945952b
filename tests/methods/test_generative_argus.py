"""ARGUS's presets: which generator each asks for, and how it is to be trained."""

import numpy as np
import pytest
import torch

from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.generators import build
from hardcase.methods.generative import argus, argus_adaptive
from hardcase.spaces.latent import Grid, collect
from hardcase.testing.toys import ToyQuantiser, toy_images, toy_subject


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What is asked of the trainer of generators when a recipe is built."""
    monkeypatch.chdir(tmp_path)
    train, test = toy_images(40, seed=5), toy_images(8, seed=6)
    np.savez("toy.npz", x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    calls = []

    def trained(family, first, second, **options):
        calls.append((family, options["kind"], options.get("mix")))
        return ToyQuantiser(), {"weights": "toy"}

    monkeypatch.setattr(build, "trained_generator", trained)

    def ask(name, **options):
        how = {"options": options, "data": "npz:toy.npz"}
        return Context.of(toy_subject(), test, name, **how).method

    ask.calls = calls
    return ask


def test_the_published_preset_trains_jointly_at_its_own_mix(asked):
    method = asked("argus@paper", mix=0.3)
    assert (method.name, method.search.mix) == ("argus@paper", 0.3)
    asked("argus@paper")
    asked("argus", mix=0.3)
    asked("argus-adaptive")
    expected = [("gradient", 0.3), ("gradient", 0.2), (None, None), (None, None)]
    assert asked.calls == [("vqvae", kind, mix) for kind, mix in expected]


def test_options_that_mean_nothing_are_refused():
    net = ToyQuantiser()
    codes = collect(toy_images(20, seed=2), net.encode, device=torch.device("cpu"))
    for mix in (0.0, 1.5):
        with pytest.raises(HardcaseError, match="mix is"):
            argus(space=Grid(net), partners=codes, mix=mix)
    for options in ({"rounds": 0}, {"halvings": -1}, {"blocks": (0,)}):
        with pytest.raises(HardcaseError):
            argus_adaptive(space=Grid(net), partners=codes, **options)
