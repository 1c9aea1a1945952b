"""Strokes: thicker and thinner by as much as asked, on dark and on bright ground."""

import pytest
import torch

from hardcase.imaging.strokes import faded, plain_ground, widened


def line(bright):
    x = torch.zeros(1, 1, 12, 12)
    x[:, :, 3:9, 4:8] = 1
    return 1 - x if bright else x


@pytest.mark.parametrize("bright", [False, True])
@pytest.mark.parametrize(("amount", "area"), [(0, 24), (1, 48), (2, 80), (-1, 8), (0.5, 36)])
def test_strokes_grow_and_shrink_by_pixels_on_each_side(bright, amount, area):
    x = line(bright)
    ground = plain_ground(x)
    changed = widened(x, ground, torch.tensor([float(amount)]), most=2)
    assert (changed - ground).abs().sum().item() == pytest.approx(area)
    if amount == 0:
        assert torch.equal(changed, x)


def test_a_figure_fades_into_its_own_ground():
    x = 0.8 - 0.6 * line(False)
    changed = faded(x, plain_ground(x), torch.tensor([0.5]))
    assert changed[0, 0, 0, 0].item() == pytest.approx(0.8)
    assert changed[0, 0, 5, 5].item() == pytest.approx(0.5)
