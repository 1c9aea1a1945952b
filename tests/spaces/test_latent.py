"""Latent spaces of plain and conditional VAEs."""

import torch

from hardcase.generators.vae import conditional, linear
from hardcase.randomness import Rng
from hardcase.spaces.latent import Labelled, Latent, latent
from hardcase.testing import check_space
from hardcase.testing.toys import ToyAutoencoder, toy_images
from hardcase.types import Seeds


class ToyConditional(ToyAutoencoder):
    """The toy's code with the label added to it, so that a wrong label shows."""

    labels = 4

    def encode(self, x, y):
        z, logvar = super().encode(x)
        return z + y[:, None], logvar

    def decode(self, z, y):
        return super().decode(z - y[:, None])


def test_the_laws_hold_and_the_kind_of_space_follows_the_network():
    check_space(Latent(ToyAutoencoder()))
    check_space(Labelled(ToyConditional()))
    assert isinstance(latent(linear(1, 8, 4, 3, hidden=8)), Latent)
    assert isinstance(latent(conditional(1, 8, 4, 3, hidden=8)), Labelled)


def test_a_conditional_code_is_decoded_as_the_seeds_class():
    images = toy_images(5)
    x, space = images.x.float() / 255, Labelled(ToyConditional())
    z, _ = space.encode(x, images.y, Rng.numbered(0, "space", len(x)))
    seeds = Seeds(z, x, images.y, torch.arange(5))
    other = Seeds(z, x, (images.y + 1) % 4, torch.arange(5))
    assert torch.allclose(space.decode(z, seeds), x, atol=1e-6)
    assert not torch.allclose(space.decode(z, other), x, atol=0.05)
    assert bool((space.distance(z + 1, seeds) == z.shape[1]).all())
