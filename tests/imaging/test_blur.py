import numpy
import pytest
import torch
from scipy import ndimage

from hardcase.imaging import blur
from hardcase.randomness import stream


def noise(side=32):
    return torch.rand(2, 3, side, side, generator=stream(0))


def test_convolution_agrees_with_sums_over_the_window():
    x = noise(20)
    kernel = torch.rand(2, 5, 5, generator=stream(4))
    kernel = kernel / kernel.sum((1, 2), keepdim=True)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="reflect")
    flipped = kernel.flip(1, 2).repeat_interleave(3, 0)[:, None]
    expected = torch.nn.functional.conv2d(padded.reshape(1, 6, 24, 24), flipped, groups=6)
    assert torch.allclose(blur.convolve(x, kernel), expected.reshape(x.shape), atol=1e-5)


def test_mirrored_reflects_without_repeating_the_edge():
    line = torch.arange(5.0)
    assert blur.mirrored(line, 2, 0).tolist() == [2, 1, 0, 1, 2, 3, 4, 3, 2]
    assert torch.equal(blur.mirrored(line, 0, 0), line)
    wide = [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]
    assert blur.mirrored(line[:3], 5, 0).tolist() == wide


def test_a_gaussian_is_that_of_scipy():
    x = noise(40)[:1, :1]
    ours = blur.gaussian(x, torch.tensor([2.0]), reach=6.0)[0, 0]
    theirs = ndimage.gaussian_filter(x[0, 0].double().numpy(), 2.0, mode="nearest", truncate=4.0)
    assert numpy.allclose(ours.numpy(), theirs, atol=1e-5)


@pytest.mark.parametrize(("border", "mode"), [("mirror", "mirror"), ("repeat", "nearest")])
@pytest.mark.parametrize("side", [40, 8])
def test_a_convolution_is_that_of_scipy_also_where_the_kernel_is_larger(side, border, mode):
    x = noise(side)[:1, :1]
    kernel = torch.rand(1, 25, 25, generator=stream(1))
    kernel = kernel / kernel.sum()
    ours = blur.convolve(x, kernel, border=border)[0, 0]
    theirs = ndimage.convolve(x[0, 0].double().numpy(), kernel[0].double().numpy(), mode=mode)
    assert numpy.allclose(ours.numpy(), theirs, atol=1e-5)


def test_a_streak_is_half_a_normal_curve_in_its_direction():
    both = torch.tensor([[5.0, 5.0], [2.0, 0.0], [0.0, 0.0]])
    kernel = blur.streak(*both, reach=6.0)
    weight = torch.exp(-0.5 * (torch.arange(5.0) / 2) ** 2)
    assert torch.allclose(kernel[0, 6, 2:7].flip(0), weight / weight.sum(), atol=1e-6)
    assert kernel[1, 6, 6] == 1
    up = blur.streak(*torch.tensor([[5.0], [2.0], [90.0]]), reach=6.0)
    assert torch.allclose(up[0], kernel[0].T, atol=1e-6)


def line(bright):
    x = torch.zeros(1, 1, 12, 12)
    x[:, :, 3:9, 4:8] = 1
    return 1 - x if bright else x


@pytest.mark.parametrize("bright", [False, True])
@pytest.mark.parametrize(("amount", "area"), [(0, 24), (1, 48), (2, 80), (-1, 8), (0.5, 36)])
def test_strokes_grow_and_shrink_by_pixels_on_each_side(bright, amount, area):
    x = line(bright)
    ground = blur.plain_ground(x)
    changed = blur.widened(x, ground, torch.tensor([float(amount)]), most=2)
    assert (changed - ground).abs().sum().item() == pytest.approx(area)
    if amount == 0:
        assert torch.equal(changed, x)


def test_a_figure_fades_into_its_own_ground():
    x = 0.8 - 0.6 * line(False)
    changed = blur.faded(x, blur.plain_ground(x), torch.tensor([0.5]))
    assert changed[0, 0, 0, 0].item() == pytest.approx(0.8)
    assert changed[0, 0, 5, 5].item() == pytest.approx(0.5)
