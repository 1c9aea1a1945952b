"""Autoencoders: shapes and ranges, rows that do not see each other, the label where it is asked for, the loss."""

import pytest
import torch

from hardcase import generators
from hardcase.errors import HardcaseError
from hardcase.generators.vae import reconstruct
from hardcase.training.cards import TrainingRecipe
from hardcase.training.loop import fit
from tiny import bars, global_state, weights

KINDS = ["linear", "conv", "conditional"]
"""Of any size and latent size; the hierarchical one has a file of its own."""


def fresh(kind, *, channels=1, size=28, latent=5, classes=3, seed=0):
    sizes = {"channels": channels, "size": size, "classes": classes, "latent": latent}
    return generators.build_generator("vae", kind=kind, **sizes, seed=seed).eval()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 13)])
@pytest.mark.parametrize("latent", [1, 7])
def test_shapes_and_range(kind, channels, size, latent):
    net = fresh(kind, channels=channels, size=size, latent=latent)
    x, y = torch.rand(4, channels, size, size), torch.tensor([0, 1, 2, 0])
    mean, logvar = net.encode(x, y)
    assert mean.shape == logvar.shape == (4, latent)
    image = net.decode(mean * 100, y)
    assert image.shape == x.shape
    assert image.min() >= 0
    assert image.max() <= 1
    assert torch.equal(net(x, y), net.decode(mean, y))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_independent(kind):
    net, y = fresh(kind).train(), torch.tensor([0, 1, 2, 0])
    x = torch.rand(4, 1, 28, 28)
    for _ in range(30):
        net(x, y)
    net.eval()
    other = x.clone()
    other[1:] = 0
    torch.testing.assert_close(net(x, y)[0], net(other, y)[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(net(x, y)[1], net(other, y)[1], rtol=1e-4, atol=1e-5)


def test_a_conditional_vae_needs_the_label_and_uses_it_on_both_sides():
    net, x = fresh("conditional"), torch.rand(2, 1, 28, 28)
    zeros, ones = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)
    with pytest.raises(HardcaseError, match="needs the label"):
        net.encode(x)
    assert not torch.equal(net.encode(x, zeros)[0], net.encode(x, ones)[0])
    z = torch.zeros(2, 5)
    assert not torch.equal(net.decode(z, zeros), net.decode(z, ones))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_weights_whatever_the_global_state(kind):
    torch.manual_seed(1)
    before = global_state()
    first = weights(fresh(kind))
    assert global_state() == before
    torch.manual_seed(2)
    assert weights(fresh(kind)) == first
    assert weights(fresh(kind, seed=1)) != first


def test_sinvads_linear_network_and_eight_convolutions():
    linear = [tuple(value.shape) for value in fresh("linear", latent=400).parameters()]
    weighty = [shape for shape in linear if len(shape) == 2]
    assert weighty == [(1600, 784), (800, 1600), (1600, 400), (784, 1600)]
    conv = fresh("conv")
    for side in (conv.encoder, conv.decoder):
        assert sum(isinstance(module, torch.nn.Conv2d) for module in side.modules()) == 8


def test_the_loss_is_the_negative_lower_bound_and_chance_paints_the_mean():
    images = bars(16)
    net = fresh("linear", size=12)
    x, y = images.x.float() / 255, images.y
    for beta in (0.0, 2.0):
        found = reconstruct(images, beta=beta).loss(net, x, y, torch.Generator().manual_seed(3))
        mean, logvar = net.encode(x)
        noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(3))
        image = net.decode(mean + (0.5 * logvar).exp() * noise).double()
        generated = -(x * image.log() + (1 - x) * (1 - image).log()).sum() / 16
        posterior = torch.distributions.Normal(mean, (0.5 * logvar).exp())
        prior = torch.distributions.Normal(0.0, 1.0)
        divergence = torch.distributions.kl_divergence(posterior, prior).sum().double() / 16
        expected = generated + beta * divergence
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-3)
    mean = x.mean(0, keepdim=True).expand_as(x)
    cost = torch.nn.functional.binary_cross_entropy(mean, x, reduction="sum") / 16
    assert reconstruct(images).chance == pytest.approx(float(cost), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_training_learns_to_paint(kind):
    images = bars(64, size=8)
    net = fresh(kind, size=8, latent=4)
    goal = reconstruct(images)
    history = fit(net, images, goal, TrainingRecipe(epochs=60, batch=32, lr=3e-3), seed=0)
    assert history.loss[-1] < goal.chance
    x = images.x.float() / 255
    blind = (x - x.mean(0)).square().mean()
    assert (net(x, images.y) - x).square().mean() < blind * 0.7


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(HardcaseError, match="no generator 'vea'"):
        generators.build_generator("vea", kind="linear", channels=1, size=8, classes=2, latent=2)
    with pytest.raises(HardcaseError, match="no kind of vae 'liner'"):
        generators.build_generator("vae", kind="liner", channels=1, size=8, classes=2, latent=2)
    with pytest.raises(HardcaseError, match="3x3 pixels are too few"):
        fresh("conv", size=3)
