"""Trained generators: kept, found again, and honest about how much of an image comes back."""

from functools import partial

import pytest
import torch

from hardcase import generators
from hardcase.errors import HardcaseError
from hardcase.generators.quality import measure, reconstructions
from hardcase.training import monitor
from tiny import StopError, bars, stop_at, weights

TRAIN, TEST = bars(96), bars(30, seed=1, split="test")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path))
    return tmp_path


def brightest(x):
    """Which third of the picture is brightest: knows the bars' classes without training."""
    return x.mean((1, 2)).unflatten(1, (3, 4)).mean(2)


def trained(**options):
    options = {"latent": 4, "epochs": 20, **options}
    return generators.trained_generator("vae", TRAIN, TEST, **options)


def test_a_generator_is_kept_and_found_again(cache):
    told = []
    net, card = trained(judge=brightest, progress=told.append)
    assert card["configuration"]["latent"] == net.latent == 4
    assert card["judge_accuracy"] == 1.0
    assert card["reconstruction_accuracy"] > 0.8
    assert 0.1 < card["ssim"] <= 1
    assert card["data"] == TRAIN.hash
    count = len(told)
    again, same = trained(judge=brightest, progress=told.append)
    assert len(told) == count
    assert same == card
    assert weights(again) == weights(net)
    (folder,) = (cache / "networks").iterdir()
    assert folder.name.startswith("vae-linear-")
    assert weights(generators.load_generator(folder, data=TRAIN.hash)[0]) == weights(net)
    with pytest.raises(HardcaseError, match="trained on other data"):
        generators.load_generator(folder, data=TEST.hash)


def test_the_same_seed_gives_the_same_bytes_again(cache, monkeypatch):
    first, _ = trained(epochs=2)
    monkeypatch.setenv("HARDCASE_CACHE", str(cache / "another"))
    assert weights(trained(epochs=2)[0]) == weights(first)
    assert weights(trained(epochs=2, seed=1)[0]) != weights(first)
    assert weights(trained(epochs=2, beta=0.5)[0]) != weights(first)


def test_another_judge_measures_again_without_training():
    _, unjudged = trained(epochs=4)
    assert unjudged["reconstruction_accuracy"] is None
    told = []
    _, judged = trained(epochs=4, judge=brightest, progress=told.append)
    _, confused = trained(epochs=4, judge=lambda x: brightest(x).roll(1, 1), progress=told.append)
    assert told == []
    assert judged["judge_accuracy"] == 1.0
    assert confused["judge_accuracy"] == 0.0
    assert unjudged["weights"] == judged["weights"] == confused["weights"]
    assert judged["reconstruction_agreement"] == confused["reconstruction_agreement"]


def test_a_conditional_generator_is_measured_with_its_labels():
    net, card = trained(kind="conditional", epochs=100, judge=brightest)
    assert card["reconstruction_accuracy"] > 0.8
    turned = net.decode(net.encode(TEST.x.float() / 255, TEST.y)[0], (TEST.y + 1) % 3)
    assert float((brightest(turned).argmax(1) == (TEST.y + 1) % 3).float().mean()) > 0.8


class Fixed(torch.nn.Module):
    """Gives back what it is shown, a class further on."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, x, y):
        return x.roll(4 * self.shift, 3) + 0.001


def test_reconstructions_are_8_bit_images_and_perfect_ones_are_told_from_wrong_ones():
    perfect, wrong = (measure(Fixed(shift), TEST, brightest) for shift in (0, 1))
    assert perfect["reconstruction_accuracy"] == perfect["ssim"] == pytest.approx(1.0)
    assert perfect["mse"] == 0
    assert wrong["reconstruction_accuracy"] == wrong["reconstruction_agreement"] == 0
    assert wrong["ssim"] < 0.6
    assert wrong["judge_accuracy"] == 1.0
    stored = reconstructions(Fixed(0), TEST)
    assert stored.x.dtype == torch.uint8
    assert torch.equal(stored.x, TEST.x)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("vae", {"kind": "linear", "latent": 4}),
        ("vqvae", {"kind": "ema", "latent": 8}),
        ("vqvae", {"kind": "gradient", "latent": 8, "mix": 0.2}),
    ],
)
def test_the_same_call_goes_on_and_ends_with_the_same_bytes(family, options, tmp_path, monkeypatch):
    images, how = bars(48, size=16), {"epochs": 4, "batch": 16, **options}
    train = partial(generators.trained_generator, family, images, images, **how)
    monkeypatch.setattr(monitor, "EVERY", 2)
    few = lambda net, images: None  # noqa: E731 - so few steps teach it little
    monkeypatch.setattr("hardcase.generators.vqvae.healthy", few)
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "whole"))
    whole, card = train()
    monkeypatch.setenv("HARDCASE_CACHE", str(tmp_path / "stopped"))
    monkeypatch.setattr(monitor, "SECONDS", 0.0)
    told = []
    with pytest.raises(StopError):
        train(progress=stop_at(7))
    again, same = train(progress=told.append)
    assert any("goes on after step" in report.warning for report in told)
    assert same["weights"] == card["weights"]
    assert weights(again) == weights(whole)
    assert not list((tmp_path / "stopped" / "networks").glob("*.unfinished"))
