"""Colours move as in hue, saturation and value."""

import colorsys

import pytest
import torch

from hardcase.imaging.colour import raised, saturated
from hardcase.randomness import stream


def test_colours_move_as_in_hue_saturation_value():
    x = torch.rand(1, 3, 12, 12, generator=stream(0))
    x[0, :, 0, 0] = 0.4  # grey
    x[0, :, 0, 1] = 0.0  # black
    lighter, stronger = raised(x, torch.tensor([0.3])), saturated(x, *torch.tensor([[2.0], [0.0]]))
    for pixel, light, strong in zip(*(one[0].flatten(1).T for one in (x, lighter, stronger))):
        h, s, v = colorsys.rgb_to_hsv(*pixel.tolist())
        assert light.tolist() == pytest.approx(colorsys.hsv_to_rgb(h, s, min(1, v + 0.3)), abs=1e-5)
        assert strong.tolist() == pytest.approx(colorsys.hsv_to_rgb(h, min(1, 2 * s), v), abs=1e-5)
