"""Colours move as in hue, saturation and value."""

import colorsys

import pytest
import torch

from hardcase.imaging.colour import raised, saturated
from hardcase.randomness import stream


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda x: raised(x, torch.tensor([0.3])), lambda h, s, v: (h, s, min(1, v + 0.3))),
        (
            lambda x: saturated(x, torch.tensor([2.0]), torch.tensor([0.0])),
            lambda h, s, v: (h, min(1, 2 * s), v),
        ),
    ],
    ids=["raised", "saturated"],
)
def test_colours_move_as_in_hue_saturation_value(change, expected):
    x = torch.rand(1, 3, 12, 12, generator=stream(0))
    x[0, :, 0, 0] = 0.4  # grey
    x[0, :, 0, 1] = 0.0  # black
    pixels = x[0].flatten(1).T.tolist()
    theirs = [colorsys.hsv_to_rgb(*expected(*colorsys.rgb_to_hsv(*pixel))) for pixel in pixels]
    assert torch.allclose(change(x)[0].flatten(1).T, torch.tensor(theirs), atol=1e-5)
