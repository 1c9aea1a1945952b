"""What is done to training images: in range, repeatable, and really what its name says."""

import pytest
import torch

from hardcase.training.loop import AUGMENTS, flip


def test_a_shift_moves_whole_images_and_a_flip_mirrors_them():
    rng = torch.Generator().manual_seed(0)
    dots = torch.zeros(64, 2, 9, 9)
    dots[:, :, 4, 4] = 1
    moved = AUGMENTS["shift"](dots, rng)
    assert (moved.sum((2, 3)) == 1).all()
    assert (moved[:, 0] == moved[:, 1]).all()
    places = moved[:, 0].nonzero()[:, 1:]
    assert places.min() >= 2
    assert places.max() <= 6
    assert len(places.unique(dim=0)) > 10
    corner = torch.zeros(64, 1, 4, 4)
    corner[:, :, 0, 0] = 1
    mirrored = flip(corner, rng)
    share = float(mirrored[:, 0, 0, 3].mean())
    assert 0.25 < share < 0.75
    assert (mirrored[:, 0, 0, 0] + mirrored[:, 0, 0, 3] == 1).all()


@pytest.mark.parametrize("name", AUGMENTS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_augmentation_keeps_shape_and_range_and_repeats_itself(name, channels):
    x = torch.rand(8, channels, 12, 12, generator=torch.Generator().manual_seed(1))
    before = x.clone()
    first, again = (AUGMENTS[name](x, torch.Generator().manual_seed(2)) for _ in range(2))
    assert first.shape == x.shape
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1
    assert torch.equal(first, again)
    assert torch.equal(x, before)
    assert name == "none" or not torch.equal(first, x)
