import math

import pytest
import torch

from hardcase.imaging.noise import content_key
from hardcase.imaging.resample import centred_places
from hardcase.randomness import stream
from hardcase.spaces.appearance import appearance
from hardcase.spaces.parts import Camera
from hardcase.types import Seeds


def decoded(text, x, **codes):
    """The images with these codes, each of one coordinate or of all whose names have it in them."""
    space = appearance(text, shape=tuple(x.shape[1:]))
    z = torch.zeros(len(x), space.size)
    for name, code in codes.items():
        word = name.replace("_", " ")
        parts = [i for i, own in enumerate(space.names) if word in own]
        z[:, [space.names.index(word)] if word in space.names else parts] = code
    return space.decode(z, Seeds(z, x, torch.zeros(len(x)).long(), torch.arange(len(x))))


def grey(level=0.4, side=32, channels=3):
    return torch.full((1, channels, side, side), level)


def noise(side=32):
    return torch.rand(2, 3, side, side, generator=stream(0))


def test_a_stop_is_twice_the_linear_light_also_with_shade():
    for code in (-1.0, 1.0):
        lit = decoded("light", grey(), exposure=code)
        assert torch.allclose((lit / grey()) ** 2.2, torch.tensor(2.0**code), atol=1e-4)
    x = decoded("light(stops=0.5)", grey(), exposure=1.0, shade=1.0)
    assert torch.allclose((x / grey()) ** 2.2, torch.tensor(2**0.5), atol=1e-4)


def test_shade_is_luminance_only():
    x = decoded("light", grey(), shade=torch.rand(16, generator=stream(1)) * 2 - 1)
    assert x.std() > 0.02
    assert torch.equal(x[:, 0], x[:, 1])
    assert torch.equal(x[:, 0], x[:, 2])


def test_white_balance_keeps_luminance():
    warm = decoded("light", grey(), temperature=1.0)
    red, green, blue = (float(warm[0, i, 0, 0]) for i in range(3))
    assert red > green > blue
    luminance = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    assert luminance == pytest.approx(0.4**2.2, rel=0.05)
    green_cast = decoded("light", grey(), tint=1.0)
    assert green_cast[0, 1, 0, 0] > green_cast[0, 0, 0, 0]


def test_gamma_and_contrast():
    assert torch.allclose(decoded("light", grey(), gamma=1.0), grey() ** 1.25, atol=1e-5)
    assert torch.allclose(decoded("light", grey(), contrast=-1.0), grey(0.425), atol=1e-5)


def test_blur_keeps_the_mean_of_an_even_image_and_spreads_a_point():
    assert torch.allclose(decoded("focus", grey(), defocus=1.0, motion=1.0), grey(), atol=1e-5)
    point = torch.zeros(1, 1, 224, 224)
    point[..., 112, 112] = 1.0
    disc = decoded("focus", point, defocus=1.0)
    assert disc.sum() == pytest.approx(1.0, abs=1e-3)
    radius = 0.012 * 224
    down, right = torch.meshgrid(torch.arange(224) - 112, torch.arange(224) - 112, indexing="ij")
    distance = (down**2 + right**2).sqrt()
    assert disc[0, 0][distance > radius + 1].abs().max() < 1e-5
    assert disc[0, 0][distance <= radius].min() > 0.5 * disc.max()
    line = decoded("focus", point, motion=1.0, angle=0.5)
    spread = (line[0, 0] * torch.stack([down, right])).abs().sum((1, 2))
    across = (line[0, 0] * (down - right).abs()).sum()
    assert spread[0] == pytest.approx(float(spread[1]), rel=1e-3)
    assert across < spread.sum() / 3


def test_fog_veils_and_snow_and_rain_brighten_some_of_a_dark_image():
    dark = 0.1 * noise(128)
    foggy = decoded("weather", dark, fog=1.0)
    assert 0.35 < foggy.mean() < 0.6
    assert foggy.std() < 0.08
    for name in ("rain", "snow"):
        changed = decoded("weather", dark, **{name: 1.0}) - dark
        share = float((changed.amax(1) > 0.1).float().mean())
        assert 0.003 < share < 0.2, name
    for side in (28, 224):
        x = decoded("weather", 0.1 * noise(side), snow=1.0)
        assert float((x.amax(1) > 0.4).float().mean()) < 0.2


def test_patterns_follow_from_the_image_alone():
    x = noise()
    key = content_key(x)
    assert key[0] != key[1]
    assert torch.equal(content_key(x.flip(0)), key.flip(0))
    almost = x.clone()
    almost[0, 0, 0, 0] = 1 - almost[0, 0, 0, 0]
    assert content_key(almost)[0] != key[0]
    once = decoded("weather", x, snow=1.0)
    alone = decoded("weather", x[1:], snow=1.0)
    assert torch.equal(once[1:], alone)


def test_noise_and_resolution_are_of_the_size_they_say():
    x = grey(0.5, side=96)
    noisy = decoded("sensor", x, noise=1.0)
    assert (noisy - x).std() * 255 == pytest.approx(16 * 0.7**0.5, rel=0.05)
    x[..., ::2], x[..., 1::2] = 1.0, 0.0  # stripes
    assert decoded("sensor", x, resolution=1.0).std() < 0.15


def hills(side=48, channels=3):
    """A smooth image: bilinear sampling there and back keeps it."""
    line = torch.linspace(0, 2 * math.pi, side)
    wave = 0.5 + 0.2 * torch.sin(line)[:, None] + 0.2 * torch.cos(1.5 * line)[None, :]
    return torch.stack([wave, wave.T, 1 - wave])[None, :channels].clone()


def test_a_quarter_turn_is_clockwise_and_an_even_bend_a_shift():
    x = noise()
    turned = decoded("camera(rotation=90)", x, rotation=1.0)
    assert torch.allclose(turned, x.rot90(-1, (2, 3)), atol=1e-4)
    moved = decoded("warp(points=5, reach=0.125)", x, right=1.0)
    assert torch.allclose(moved[..., 5:-5], x.roll(4, 3)[..., 5:-5], atol=1e-4)


@pytest.mark.parametrize(
    ("name", "code", "shift"),
    [("shift_right", 1.0, (0, 4)), ("shift_right", -1.0, (0, -4)), ("shift_down", 1.0, (4, 0))],
)
def test_shifts_move_whole_pixels(name, code, shift):
    x = noise()
    moved = decoded("camera(shift=0.125)", x, **{name: code})
    expected = x.roll(shift, (2, 3))
    assert torch.equal(moved[:, :, 4:-4, 4:-4], expected[:, :, 4:-4, 4:-4])


@pytest.mark.parametrize("name", ["rotation", "shift_right", "shift_down", "shear"])
def test_the_opposite_code_undoes(name):
    x = hills()
    there = decoded("camera", x, **{name: 0.8})
    back = decoded("camera", there, **{name: -0.8})
    inside = (..., slice(12, -12), slice(12, -12))
    assert (there - x)[inside].abs().max() > 0.01
    assert (back - x)[inside].abs().max() < 0.004


def test_larger_is_larger():
    x = torch.zeros(1, 1, 33, 33)
    x[..., 11:22, 11:22] = 1
    for code, factor in ((1.0, 1.15), (-1.0, 0.85)):
        area = decoded("camera", x, scale=code).sum()
        assert area == pytest.approx(float(x.sum()) * factor**2, rel=0.03)


def viewed(places, shape, name, degrees):
    """Where a tilted camera reads these places."""
    zero = torch.zeros(1, dtype=places.dtype)
    values = {c.name: zero for g in Camera().groups(shape) for c in g.coordinates}
    return Camera().move(places, {**values, name: zero + degrees}, shape)


def test_what_is_far_is_small():
    """Seen from the left, the right end is farther away: it reads a taller stretch of the scene."""
    flat = centred_places(31, 31, torch.zeros(1))
    aside = viewed(flat, (1, 31, 31), "view from the left", 10)
    height = aside[0, 0, -1] - aside[0, 0, 0]
    assert height[-1] > 30 > height[0]
    above = viewed(flat, (1, 31, 31), "view from above", 10)
    width = above[0, 1, :, -1] - above[0, 1, :, 0]
    assert width[-1] > 30 > width[0]


@pytest.mark.parametrize(("name", "axis"), [("view from the left", 1), ("view from above", 0)])
def test_the_tilted_plane_is_seen_by_a_pinhole_camera(name, axis):
    """A point of the plane, projected to the image, is where the image is read from."""
    point = 20 * torch.rand(1, 2, 5, 5, generator=stream(0), dtype=torch.float64) - 10
    angle = math.radians(12)
    depth = 40 + point[:, axis] * math.sin(angle)
    seen = 40 * point / depth[:, None]
    seen[:, axis] *= math.cos(angle)
    assert torch.allclose(viewed(seen, (1, 40, 40), name, 12), point, atol=1e-9)


def test_slanted_to_the_right_leans_like_italics():
    x = torch.zeros(1, 1, 33, 33)
    x[..., 16] = 1
    leaning = decoded("camera", x, shear=1.0)
    column = torch.arange(33.0)
    centre = (leaning[0, 0] * column).sum(1) / leaning[0, 0].sum(1)
    assert centre[0] > 16.5 > 15.5 > centre[-1]


@pytest.mark.parametrize(("side", "points", "reach"), [(28, 7, 0.06), (64, 7, 0.06), (65, 6, 0.05)])
def test_no_pixel_moves_farther_than_the_reach(side, points, reach):
    space = appearance("warp", shape=(1, side, side))
    (warp,) = space.parts
    assert space.size == 2 * points**2
    flat = centred_places(side, side, torch.zeros(1)).expand(8, -1, -1, -1)
    z = torch.randn(8, space.size, generator=stream(0)).sign()
    moved = warp.move(flat, {"bend": space.values(z)}, space.shape) - flat
    length = moved.square().sum(1).sqrt()
    assert length.max() <= reach * side * (1 + 1e-5)
    assert length.max() > 0.99 * reach * side
