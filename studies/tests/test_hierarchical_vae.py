"""The hierarchical VAE: its codes, its reconstructions, and that it learns."""

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.generators import build
from hardcase.randomness import named_randomness, stream
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import fit
from hardcase_studies.hierarchical_vae import hierarchical, reconstruct
from tiny import bars, global_state


def small(size=16, channels=1, latent=64):
    with named_randomness(0, "test"):
        return hierarchical(channels, size, 3, latent, width=8).eval()


@pytest.mark.parametrize(("size", "channels"), [(16, 1), (28, 1), (32, 3)])
def test_the_image_of_the_mean_code_is_the_reconstruction(size, channels):
    net = small(size, channels)
    x = torch.rand(3, channels, size, size, generator=stream(0))
    with torch.no_grad():
        mean, logvar = net.encode(x)
        assert mean.shape == logvar.shape == (3, net.latent)
        assert torch.allclose(net.decode(mean), net(x), atol=1e-6)
        assert 0 <= float(net(x).min()) <= float(net(x).max()) <= 1


def test_rows_are_independent_and_any_code_is_an_image():
    net = small()
    z = torch.randn(5, net.latent, generator=stream(0)) * 3
    with torch.no_grad():
        whole = net.decode(z)
        assert torch.allclose(whole[2:3], net.decode(z[2:3]), atol=1e-6)
    assert bool(whole.isfinite().all())


def test_it_learns_what_tells_images_apart():
    images, net = bars(120, size=16), small()
    before = global_state()
    goal = reconstruct(images, beta=0.1)
    history = fit(net, images, goal, TrainingRecipe(epochs=6, batch=24, lr=3e-3), seed=0)
    assert history.loss[-1] < goal.chance
    assert before == global_state()
    x = images.x[:6].float() / 255
    with torch.no_grad():
        assert float((net(x) - x).square().mean()) < float((x.mean(0) - x).square().mean())


def test_without_the_studies_it_names_the_install(monkeypatch):
    sizes = {"channels": 1, "size": 16, "classes": 3, "latent": 64}
    assert build.build_generator("vae", kind="hierarchical", **sizes).latent > 0
    known = build.families()
    del known["vae"]["hierarchical"]
    monkeypatch.setattr(build, "families", lambda: known)
    with pytest.raises(HardcaseError) as told:
        build.build_generator("vae", kind="hierarchical", **sizes)
    assert told.value.fix == "pip install 'hardcase[studies]'"
