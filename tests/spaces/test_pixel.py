import pytest
import torch

from hardcase.randomness import stream
from hardcase.spaces.latent import Latent
from hardcase.spaces.pixel import L2, Linf, Pixels
from hardcase.tensors import from_bytes, to_grid
from hardcase.testing.spaces import check_space
from hardcase.testing.toys import ToyAutoencoder, toy_images
from hardcase.types import Seeds

SPACES = {
    "pixels": Pixels(),
    "linf": Pixels(Linf(0.1)),
    "l2": Pixels(L2(0.5)),
    "vae": Latent(ToyAutoencoder()),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_space_obeys_the_laws(space):
    check_space(space)


def seeds():
    images = toy_images(30)
    x = from_bytes(images.x)
    return Seeds(x, x, images.y, torch.arange(30))


def far(origin):
    return origin.z + 3 * torch.randn(origin.z.shape, generator=stream(0))


def test_projected_images_are_in_range():
    origin = seeds()
    for space in (Pixels(), Pixels(Linf(0.9)), Pixels(L2(30.0))):
        z = space.project(far(origin), origin)
        assert z.min() >= 0
        assert z.max() <= 1


def test_the_rounded_image_obeys_the_linf_ball():
    origin, space = seeds(), Pixels(Linf(0.1))
    x = to_grid(space.decode(space.project(far(origin), origin), origin))
    assert (x - origin.x).abs().max() <= 0.1


def test_the_l2_ball_is_obeyed_and_what_lies_inside_stays():
    origin, space = seeds(), Pixels(L2(0.5))
    assert space.distance(space.project(far(origin), origin), origin).max() <= 0.5 + 1e-5
    near = (origin.z + 0.001).clamp(0, 1)
    assert torch.equal(space.project(near, origin), near)
