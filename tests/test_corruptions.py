"""Corruptions: the image itself at 0, the published constants at 1 to 5, rows that know nothing of
each other."""

import numpy
import pytest
import torch

from hardcase.corruptions import CORRUPTIONS, corrupt, corruption
from hardcase.errors import HardcaseError
from hardcase.imaging import blur
from tiny import global_state

NAMES = list(CORRUPTIONS)


def pictures(count=6, channels=3, side=48, seed=0):
    """Smooth shapes with some fine detail, each image darker than the one before."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 6, 6, generator=rng)
    smooth = torch.nn.functional.interpolate(coarse, size=(side, side), mode="bicubic")
    light = 1 - 0.1 * torch.arange(count)[:, None, None, None].clamp_max(6)
    noise = torch.rand(count, channels, side, side, generator=rng)
    return light * (smooth + 0.1 * noise).clamp(0, 1)


def at(x, name, severity, keys=None, **options):
    keys = torch.arange(len(x)) if keys is None else keys
    return corrupt(x, name, torch.full((len(x),), float(severity)), keys, **options)


def test_there_are_eighteen_of_four_kinds_fourteen_of_which_count_in_the_mean():
    assert len(NAMES) == 18
    assert {one.kind for one in CORRUPTIONS.values()} == {"noise", "blur", "weather", "digital"}
    assert sum(not one.extra for one in CORRUPTIONS.values()) == 14
    for one in CORRUPTIONS.values():
        assert (len(one.nodes), len({len(row) for row in one.nodes})) == (6, 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 48)])
def test_nothing_at_zero_little_near_it_and_images_everywhere(name, channels, side):
    x = pictures(channels=channels, side=side)
    before = x.clone()
    state = global_state()
    assert torch.equal(at(x, name, 0), x)
    small = float((at(x, name, 0.01) - x).abs().mean())
    assert small < 0.01
    for severity in (0.5, 1, 2.3, 5):
        y = at(x, name, severity)
        assert y.shape == x.shape
        assert bool(y.isfinite().all())
        assert 0 <= float(y.min()) <= float(y.max()) <= 1
    whole = float((at(x, name, 5) - x).abs().mean())
    assert whole > small or (name == "saturate" and channels == 1)
    assert torch.equal(x, before)
    assert global_state() == state


@pytest.mark.parametrize("name", NAMES)
def test_a_row_follows_from_its_image_key_and_severity_alone(name):
    x, severity = pictures(5), torch.tensor([1.0, 2.5, 5.0, 0.0, 3.5])
    keys = torch.tensor([9, 4, 7, 4, 2**40])
    together = corrupt(x, name, severity, keys)
    for some in (torch.tensor([3, 1, 4, 0, 2]), *torch.arange(5)[:, None]):
        apart = corrupt(x[some], name, severity[some], keys[some])
        assert torch.allclose(apart, together[some], atol=1e-6)
    assert torch.equal(corrupt(x, name, severity, keys), together)


@pytest.mark.parametrize("name", NAMES)
def test_constants_are_linear_between_the_published_ones(name):
    table = torch.tensor(CORRUPTIONS[name].nodes, dtype=torch.float32)
    assert torch.allclose(CORRUPTIONS[name].constants(torch.arange(6.0)), table)
    between = CORRUPTIONS[name].constants(torch.tensor([2.25]))
    assert torch.allclose(between, table[2:3] * 0.75 + table[3:4] * 0.25)


IN_STEPS = {"pixelate", "jpeg_compression", "shot_noise"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in IN_STEPS])
def test_images_change_continuously_with_severity(name):
    x = pictures(3)
    for severity in (0.4, 1.0, 2.0, 3.0, 4.0):
        gap = (at(x, name, severity + 0.002) - at(x, name, severity)).abs().mean()
        assert float(gap) < 0.01, severity


STEADY = ["gaussian_noise", "impulse_noise", "speckle_noise", "brightness", "contrast"]
STEADY += ["defocus_blur", "gaussian_blur", "elastic_transform"]


@pytest.mark.parametrize("name", STEADY)
def test_more_severe_is_farther_from_the_image(name):
    x = pictures(4, side=96)
    effect = torch.stack([(at(x, name, s / 2) - x).abs().mean((1, 2, 3)) for s in range(11)])
    assert bool((effect.diff(dim=0) > -1e-4).all())


def test_lengths_scale_with_the_image_unless_pixels_are_asked_for():
    x = pictures(2, side=56)
    in_pixels = at(x, "gaussian_blur", 1, lengths="pixels")
    assert torch.allclose(in_pixels, blur.gaussian(x, torch.ones(2), reach=6.0), atol=1e-6)
    assert torch.allclose(at(x, "gaussian_blur", 4), in_pixels, atol=1e-5)


def test_what_cannot_be_corrupted_is_told():
    x = pictures(2)
    with pytest.raises(HardcaseError, match="fog"):
        corruption("fogg")
    for severity in (5.5, float("nan")):
        with pytest.raises(HardcaseError, match="between 0 and 5"):
            at(x, "fog", severity)
    with pytest.raises(HardcaseError, match="shape"):
        at(x[:, :2], "fog", 1)
    assert len(at(x[:0], "fog", 1)) == 0


def test_cells_are_those_of_pillow():
    image = pytest.importorskip("PIL.Image")
    x = (255 * pictures(1, side=56)).round() / 255
    picture = image.fromarray((255 * x[0]).round().byte().permute(1, 2, 0).numpy())
    for severity, share in ((1, 0.6), (3, 0.4), (5, 0.25)):
        small = picture.resize((int(56 * share),) * 2, image.Resampling.BOX)
        whole = small.resize((56, 56), image.Resampling.NEAREST)
        theirs = numpy.array(whole).transpose(2, 0, 1) / 255
        assert numpy.abs(at(x, "pixelate", severity)[0].numpy() - theirs).max() < 1.5 / 255
