"""Generators of one's own: with an encoder, without one, from diffusers; and which ones are refused."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import hardcase as hc
from hardcase.context import Context
from hardcase.errors import HardcaseError
from hardcase.generators.adapters import Coder, Inverted, coder, from_diffusers
from hardcase.spaces.latent import Labelled, Latent, latent
from hardcase.testing import check_space
from hardcase.testing.toys import toy_images, toy_subject

OWN = """
from torch import nn
class Halves(nn.Module):
    def encode(self, x):
        return (x - 0.5) * 6, None
    def decode(self, z):
        return z / 6 + 0.5
class Blank(Halves):
    def decode(self, z):
        return 0 * z
class Told(Halves):
    def decode(self, z, y):
        return z / 6 + 0.5 + 0 * y[:, None, None, None]
class Nothing(nn.Module):
    pass
"""
SHAPE = (1, 8, 8)


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def context(own, name, method="sinvad", **options):
    images = toy_images(24)
    given = {"train": images, "generator": f"{own}:{name}", **options}
    return Context.of(toy_subject(), images.first(4), method, **given)


@pytest.mark.parametrize("method", ["sinvad", "argus-adaptive"])
def test_methods_search_in_the_codes_of_an_own_generator(own, method):
    ready = context(own, "Halves", method)
    built = ready.method
    card = built.details["generator"]
    assert card["kind"] == "supplied"
    assert card["reconstruction_agreement"] == 1
    found = hc.search(toy_subject(), toy_images(4), method=built)
    assert len(set(found.seed.tolist())) == 4


def test_a_generator_whose_reconstructions_lose_labels_stops_the_run(own):
    ready = context(own, "Blank")
    with pytest.raises(HardcaseError, match=r"keep only \d+% of the labels") as refused:
        _ = ready.generator
    assert "--method natural" in refused.value.fix
    allowed = context(own, "Blank", allow_low_accuracy=True)
    assert allowed.generator.card["reconstruction_agreement"] < 0.8


def test_codes_that_hold_no_class_cannot_be_mixed_and_no_codes_are_refused(own):
    ready = context(own, "Told", "argus-adaptive")
    assert isinstance(ready.space, Labelled)
    with pytest.raises(HardcaseError, match="hold no class"):
        _ = ready.method
    with pytest.raises(HardcaseError, match="gives images no code"):
        _ = context(own, "Nothing").generator


class Generator(nn.Module):
    """Every pixel is a number of the code, the class a shade."""

    latent = 64

    def forward(self, z, y):
        return torch.sigmoid(z.reshape(-1, 1, 8, 8) + 0.1 * y[:, None, None, None])


def test_codes_of_a_generator_without_an_encoder_are_found_by_descent():
    net = coder(Generator(), shape=SHAPE, classes=4)
    assert isinstance(net, Inverted)
    space = latent(net)
    assert isinstance(space, Labelled)
    check_space(space, images=toy_images(3), tolerance=0.02)
    x = toy_images(3).x.float() / 255
    y = toy_images(3).y
    assert torch.equal(net.encode(x, y)[0], net.encode(x, y)[0])


def test_an_own_autoencoder_obeys_the_laws(own):
    class Kept(nn.Module):
        def encode(self, x):
            return x.flatten(1)

        def decode(self, z):
            return z.reshape(-1, *SHAPE)

    space = latent(coder(Kept(), shape=SHAPE, classes=4))
    assert isinstance(space, Latent)
    check_space(space)
    wrong = Coder(Kept(), shape=(3, 8, 8), classes=4)
    with pytest.raises(HardcaseError, match="images of the data are"):
        wrong.decode(torch.zeros(2, 64))


class Stored(nn.Module):
    """As AutoencoderKL: images in [-1, 1], codes behind a distribution."""

    @classmethod
    def from_pretrained(cls, folder, local_files_only, use_safetensors):
        assert local_files_only
        return cls()

    def encode(self, x, return_dict=True):
        return SimpleNamespace(latent_dist=SimpleNamespace(mode=lambda: x / 2))

    def decode(self, z, return_dict=True, generator=None):
        return SimpleNamespace(sample=2 * z)


def test_autoencoders_of_diffusers_are_read_from_their_folder(tmp_path, monkeypatch):
    fake = ModuleType("diffusers")
    fake.AutoencoderKL = Stored
    monkeypatch.setitem(sys.modules, "diffusers", fake)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    net = from_diffusers(tmp_path)
    check_space(latent(coder(net, shape=SHAPE, classes=4)))
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    with pytest.raises(HardcaseError, match="only AutoencoderKL and VQModel"):
        from_diffusers(tmp_path)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(HardcaseError, match="not installed"):
        from_diffusers(tmp_path)
