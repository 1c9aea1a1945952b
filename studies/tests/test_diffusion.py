"""The diffusion model: its path up and down, its samples, and its training."""

from dataclasses import replace

import pytest
import torch

from hardcase import generators
from hardcase.randomness import named_randomness
from hardcase.spaces.latent import Labelled, latent
from hardcase.testing import check_space
from hardcase.training.cards import TrainingRecipe
from hardcase.training.monitor import STATE
from hardcase_studies import diffusion
from tiny import bars, global_state, weights

TRAIN, TEST = bars(96), bars(30, seed=1, split="test")
SHORT = TrainingRecipe(epochs=4, batch=32, lr=3e-3, schedule="warm")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))


def fresh(widths=(8, 8)):
    with named_randomness(0, "tiny"):
        denoiser = diffusion.Denoiser(1, 3, widths=widths, depth=1)
    return diffusion.Diffusion(denoiser, shape=(1, 12, 12), classes=3, rounds=4)


def moved(seed=0):
    """A network whose weights are not those of the beginning, where half of them are 0."""
    net = fresh()
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=rng)
    return net.eval()


def brightest(x):
    return x.mean((1, 2)).unflatten(1, (3, 4)).mean(2)


@pytest.fixture(scope="module")
def trained():
    net = fresh((16, 16))
    recipe = replace(SHORT, epochs=60, batch=48, lr=6e-3)
    history = diffusion.train_diffusion(net, TRAIN, recipe, seed=0)
    return net, history


def test_samples_show_the_class_that_was_asked_for(trained):
    net, history = trained
    assert history.loss[-1] < 0.5 < history.loss[0]
    y = torch.arange(30) % 3
    drawn = net.draw(y, torch.Generator().manual_seed(0))
    z, sampled = net.sample(y, torch.Generator().manual_seed(0))
    for x in (drawn, sampled):
        assert float((brightest(x).argmax(1) == y).float().mean()) > 0.75
        assert float(x.min()) >= 0
        assert float(x.max()) <= 1
        assert float(x.std(0).mean()) > 0.05
    assert torch.equal(net.decode(z, y), sampled)


def test_an_image_comes_back_from_its_code(trained):
    net, _ = trained
    x = TEST.x.float() / 255
    with torch.no_grad():
        code, spread = net.encode(x, TEST.y)
        back = net.decode(code, TEST.y)
        other = net.decode(code, (TEST.y + 1) % 3)
    assert code.shape == (30, 144)
    assert not spread.any()
    assert float((back - x).abs().max()) < 0.1
    assert float((other - x).abs().mean()) > float((back - x).abs().mean())


def test_the_space_of_codes_obeys_the_laws():
    space = latent(moved())
    assert isinstance(space, Labelled)
    check_space(space, images=TEST.first(4), tolerance=0.03)


def test_nothing_global_moves_and_the_same_seed_gives_the_same_image():
    net = moved()
    before = global_state()
    y = torch.tensor([0, 2])
    first, second = (net.sample(y, torch.Generator().manual_seed(3))[1] for _ in range(2))
    assert torch.equal(first, second)
    assert global_state() == before


def test_the_middle_of_the_denoiser_is_a_place():
    net = moved()
    y = torch.tensor([0, 1])
    z = torch.randn(2, net.latent, generator=torch.Generator().manual_seed(0))
    seen = []

    def meet(place, features):
        seen.append((place, tuple(features.shape)))
        return features + 0.5 if place == 1 else features

    with torch.no_grad():
        changed = net.walk(z, y, meet)
        plain = net.walk(z, y, lambda place, features: features)
    assert seen[0] == (0, (2, 144))
    assert {place for place, _ in seen} == {0, 1}
    assert not torch.equal(changed, plain)
    assert torch.equal(plain, net.decode(z, y))


class StopError(Exception):
    pass


def test_a_stopped_training_ends_with_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("hardcase.training.monitor.SECONDS", 0.0)
    short = replace(SHORT, epochs=1)
    whole = fresh()
    diffusion.train_diffusion(whole, TRAIN, short, seed=5)

    def stop(told):
        if told.step == 3:
            raise StopError

    with pytest.raises(StopError):
        diffusion.train_diffusion(fresh(), TRAIN, short, seed=5, kept=tmp_path, progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {STATE, "samples.png"}
    net = fresh()
    assert diffusion.train_diffusion(net, TRAIN, short, seed=5, kept=tmp_path).steps == 3
    assert weights(net) == weights(whole)


def test_a_trained_one_is_kept_with_what_was_measured():
    options = {"latent": 4, "epochs": 1, "judge": brightest}
    net, card = generators.trained_generator("diffusion", TRAIN, TEST, minutes=1.0, **options)
    assert card["configuration"]["minutes"] == 1.0
    assert 0 <= card["sample_accuracy"] <= 1
    assert card["reconstruction_accuracy"] > 0.9
    again, same = generators.trained_generator("diffusion", TRAIN, TEST, minutes=1.0, **options)
    assert same == card
    assert weights(again) == weights(net)
