"""The usual normalisations, told apart on fifty labelled images."""

import pytest
import torch
from torch import nn

from hardcase.errors import Problem
from hardcase.models.normalisation import USUAL, guess, settled
from hardcase.tensors import to_bytes
from hardcase.types import Images

COLOURS = torch.rand(12, 3, generator=torch.Generator().manual_seed(5))


class Picky(nn.Module):
    """Right only where its input is normalised as `wanted`: the nearest of twelve colours, in its own units."""

    def __init__(self, wanted, *, swapped=False):
        super().__init__()
        mean, std = (torch.tensor(values) for values in USUAL[wanted])
        self.std = std.flip(0) if swapped else std
        expected = (COLOURS - mean) / std
        self.expected = expected.flip(1) if swapped else expected

    def forward(self, x):
        gap = (x.mean((2, 3))[:, None] - self.expected) * self.std
        return -gap.square().sum(2) * 200


def photographs(count=60):
    y = torch.arange(count) % len(COLOURS)
    noise = 0.1 * torch.randn(count, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    return (COLOURS[y][:, :, None, None] + noise).clamp(0, 1), y


@pytest.mark.parametrize(
    "wanted", ["none (images in 0..1)", "ImageNet", "to -1..1", "images in 0..255"]
)
def test_the_right_one_is_found(wanted):
    found = guess(Picky(wanted).eval(), *photographs())
    assert (found.name, found.swapped) == (wanted, False)
    assert found.accuracy > 0.9
    assert found.sure is (wanted != "ImageNet")  # which CLIP's and CIFAR-10's are very near to
    assert "--set subject.mean=" in str(found)


def test_exchanged_colours_are_noticed():
    found = guess(Picky("ImageNet", swapped=True).eval(), *photographs())
    assert found.swapped
    assert "red and blue" in str(found)


def test_a_network_that_does_not_care_is_not_sure():
    class Blind(nn.Module):
        def forward(self, x):
            return torch.zeros(len(x), 12)

    assert not guess(Blind().eval(), *photographs()).sure


def test_grey_images_are_tried_with_one_channel():
    x, y = photographs()
    found = guess(nn.Sequential(nn.Flatten(), nn.Linear(16, 12)).eval(), x[:, :1], y)
    assert "ImageNet" not in found.tried
    assert "MNIST" in found.tried


def test_mistakes_are_told():
    x, y = photographs()
    with pytest.raises(Problem, match="training mode"):
        guess(Picky("ImageNet"), x, y)
    with pytest.raises(Problem, match="label 18"):
        guess(Picky("ImageNet").eval(), x, y + 7)
    with pytest.raises(Problem, match="there are none"):
        guess(Picky("ImageNet").eval(), x[:0], y[:0])


def stored():
    x, y = photographs()
    names = tuple(map(str, range(len(COLOURS))))
    return Images(to_bytes(x), y, tuple(map(str, range(len(y)))), names)


def test_a_normalisation_that_a_network_clearly_wants_is_taken_unasked():
    found = settled(Picky("to -1..1").eval(), stored())
    assert found is not None
    assert (found.mean, found.std) == USUAL["to -1..1"]


def test_a_network_that_does_well_without_any_is_left_alone():
    assert settled(Picky("none (images in 0..1)").eval(), stored()) is None


def test_a_network_that_fails_is_left_to_the_check_of_its_health():
    class Broken(nn.Module):
        def forward(self, x):
            raise RuntimeError("other size")

    assert settled(Broken().eval(), stored()) is None
