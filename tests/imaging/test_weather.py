import torch

from hardcase.imaging.noise import Draws
from hardcase.imaging.weather import plasma


def test_clouds_fill_the_range_and_are_coarse():
    cloud = plasma(Draws(torch.arange(4)), torch.full((4,), 2.0), 60)
    assert cloud.shape == (4, 64, 64)
    assert torch.allclose(cloud.amin((1, 2)), torch.zeros(4))
    assert torch.allclose(cloud.amax((1, 2)), torch.ones(4))
    near = (cloud - cloud.roll(1, 2)).abs().mean()
    far = (cloud - cloud.roll(32, 2)).abs().mean()
    assert float(far) > 3 * float(near)
