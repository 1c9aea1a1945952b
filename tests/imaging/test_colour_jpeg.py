import io

import numpy as np
import pytest
import torch
from PIL import Image

from hardcase.imaging.colour import compressed
from hardcase.randomness import stream


def photograph(side=64, channels=3):
    rng = stream(0, "photograph")
    coarse = torch.rand(1, channels, 9, 9, generator=rng)
    x = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    return ((x + 0.1 * torch.rand(x.shape, generator=rng)).clamp(0, 1) * 255).round() / 255


def by_pillow(x, quality):
    pixels = (x[0].permute(1, 2, 0) * 255).round().byte().numpy()
    file = io.BytesIO()
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    image.save(file, "JPEG", quality=quality, subsampling=0)
    back = torch.from_numpy(np.array(Image.open(file))).reshape(pixels.shape)
    return back.permute(2, 0, 1)[None].float() / 255


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_that_of_a_library_where_its_steps_are_whole(channels):
    x = photograph(channels=channels)
    ours = compressed(x, torch.tensor([50.0]))
    theirs = by_pillow(x, 50)
    assert (ours - theirs).abs().mean() * 255 < 1
    assert (ours - theirs).abs().mean() < 0.15 * (theirs - x).abs().mean()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("quality", [20, 35, 65, 80, 90])
def test_as_much_is_lost_as_by_a_library_at_every_quality(quality, channels):
    x = photograph(channels=channels)
    ours = (compressed(x, torch.tensor([float(quality)])) - x).square().mean()
    theirs = (by_pillow(x, quality) - x).square().mean()
    assert ours == pytest.approx(float(theirs), rel=0.08)


def test_quality_100_is_untouched_and_less_loses_more():
    x = photograph()
    assert torch.equal(compressed(x, torch.tensor([100.0])), x)
    made = [compressed(x, torch.tensor([quality])) for quality in (98.0, 90.0, 60.0, 20.0)]
    lost = [float((one - x).square().mean()) for one in made]
    assert 0 < lost[0] < lost[1] < lost[2] < lost[3]


def test_sizes_that_are_no_multiple_of_a_block():
    x = photograph(64)[:, :, :29, :43]
    out = compressed(x, torch.tensor([50.0]))
    assert out.shape == x.shape
    whole = compressed(photograph(64), torch.tensor([50.0]))
    assert torch.allclose(out[:, :, :24, :40], whole[:, :, :24, :40], atol=1e-5)


@pytest.mark.parametrize("quality", [25.0, 60.0, 100.0])
def test_the_slope_by_quality_is_that_of_a_secant(quality):
    x = (0.3 + 0.4 * photograph()).double()
    weight = torch.rand(x.shape, generator=stream(3), dtype=torch.float64)
    at = torch.tensor([quality], dtype=torch.float64, requires_grad=True)
    out = compressed(x, at)
    (gradient,) = torch.autograd.grad((out * weight).sum(), at)
    assert torch.equal(out.detach(), compressed(x, at.detach()))
    more = (at.detach() + 5).clamp_max(100)
    less = at.detach() - 5
    rise = ((compressed(x, more) - compressed(x, less)) * weight).sum()
    assert gradient == pytest.approx(float(rise / (more - less)), rel=1e-6)


def test_compression_is_straight_through_for_the_image():
    x = (0.3 + 0.4 * photograph()).requires_grad_()
    (gradient,) = torch.autograd.grad(compressed(x, torch.tensor([50.0])).sum(), x)
    assert torch.equal(gradient, torch.ones_like(x))
