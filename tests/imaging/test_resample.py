import pytest
import torch

from hardcase.imaging.resample import centred_places, resample, resample_sharply, spread
from hardcase.randomness import stream


def noise(side=32):
    return torch.rand(2, 3, side, side, generator=stream(0))


def test_a_field_passes_through_its_control_points():
    coarse = torch.rand(2, 1, 4, 3, generator=stream(0))
    fine = spread(coarse, 31, 21)
    assert torch.allclose(fine[:, :, ::10, ::10], coarse, atol=1e-6)
    even = spread(torch.ones(1, 1, 4, 3), 31, 21)
    assert torch.allclose(even, torch.ones(1, 1, 31, 21), atol=1e-6)


def test_the_gradient_of_sampling_reaches_places_only():
    x = noise().requires_grad_()
    places = centred_places(32, 32, x.detach()) * torch.full((2, 1, 1, 1), 0.93)
    places = places.detach().requires_grad_()
    out = resample(x, places)
    (gradient,) = torch.autograd.grad(out.sum(), places)
    assert gradient.abs().sum() > 0
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(resample(x, places).sum(), x)


def test_sampling_agrees_with_torch():
    x = noise().double()
    places = 17 * torch.randn(2, 2, 32, 32, generator=stream(1), dtype=torch.float64)
    grid = torch.stack([places[:, 1], places[:, 0]], 3) / 15.5
    how = {"padding_mode": "reflection", "align_corners": True}
    expected = torch.nn.functional.grid_sample(x, grid, **how)
    near = (places.abs() < 40).all(1)[:, None].expand_as(x)
    assert torch.allclose(resample(x, places)[near], expected[near], atol=1e-9)


def test_a_sharp_reading_keeps_pixels_and_blurs_less():
    x = noise(12)
    places = centred_places(12, 12, x).expand(2, -1, -1, -1)
    assert torch.allclose(resample_sharply(x, places), x, atol=1e-6)
    half = places + 0.5
    assert resample_sharply(x, half).std() > resample(x, half).std()
