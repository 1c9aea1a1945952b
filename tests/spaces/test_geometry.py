import math

import pytest
import torch

from hardcase.randomness import stream
from hardcase.spaces.appearance import appearance
from hardcase.spaces.geometry import Camera, centred_places, resample, spread
from hardcase.types import Seeds


def hills(side=48, channels=3):
    """A smooth image: bilinear sampling there and back keeps it."""
    line = torch.linspace(0, 2 * math.pi, side)
    wave = 0.5 + 0.2 * torch.sin(line)[:, None] + 0.2 * torch.cos(1.5 * line)[None, :]
    return torch.stack([wave, wave.T, 1 - wave])[None, :channels].clone()


def decoded(text, x, **codes):
    space = appearance(text, shape=tuple(x.shape[1:]))
    z = torch.zeros(len(x), space.size)
    for name, code in codes.items():
        z[:, space.names.index(name.replace("_", " "))] = code
    origin = Seeds(z, x, torch.zeros(len(x)).long(), torch.arange(len(x)))
    return space.decode(z, origin)


def noise(side=32):
    return torch.rand(2, 3, side, side, generator=stream(0))


def test_a_quarter_turn_is_clockwise():
    x = noise()
    turned = decoded("camera(rotation=90)", x, rotation=1.0)
    assert torch.allclose(turned, x.rot90(-1, (2, 3)), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "code", "shift"),
    [("shift_right", 1.0, (0, 4)), ("shift_right", -1.0, (0, -4)), ("shift_down", 1.0, (4, 0))],
)
def test_shifts_move_whole_pixels(name, code, shift):
    x = noise()
    moved = decoded("camera(shift=0.125)", x, **{name: code})
    expected = x.roll(shift, (2, 3))
    assert torch.equal(moved[:, :, 4:-4, 4:-4], expected[:, :, 4:-4, 4:-4])


def test_edges_are_mirrored():
    x = noise()
    moved = decoded("camera(shift=0.125)", x, shift_right=1.0)
    assert torch.equal(moved[..., :4], x[..., 1:5].flip(3))


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
    assert decoded("camera", x, scale=1.0).sum() == pytest.approx(
        float(x.sum()) * 1.15**2, rel=0.03
    )
    assert decoded("camera", x, scale=-1.0).sum() == pytest.approx(
        float(x.sum()) * 0.85**2, rel=0.03
    )


def test_what_is_far_is_small():
    """Seen from the left, the right end is farther away: it reads a taller stretch of the scene."""
    shape = (1, 31, 31)
    camera = Camera()
    zero = torch.zeros(1)
    values = {c.name: zero for g in camera.groups(shape) for c in g.coordinates}
    flat = centred_places(shape, zero)
    aside = camera.move(flat, {**values, "view from the left": zero + 10}, shape)
    height = aside[0, 0, -1] - aside[0, 0, 0]
    assert height[-1] > 30 > height[0]
    above = camera.move(flat, {**values, "view from above": zero + 10}, shape)
    width = above[0, 1, :, -1] - above[0, 1, :, 0]
    assert width[-1] > 30 > width[0]


@pytest.mark.parametrize(("name", "axis"), [("view from the left", 1), ("view from above", 0)])
def test_the_tilted_plane_is_seen_by_a_pinhole_camera(name, axis):
    """A point of the plane, projected to the image, is where the image is read from."""
    shape = (1, 40, 40)
    camera = Camera()
    zero = torch.zeros(1, dtype=torch.float64)
    values = {c.name: zero for g in camera.groups(shape) for c in g.coordinates}
    point = 20 * torch.rand(1, 2, 5, 5, generator=stream(0), dtype=torch.float64) - 10
    angle = math.radians(12)
    depth = 40 + point[:, axis] * math.sin(angle)
    seen = 40 * point / depth[:, None]
    seen[:, axis] *= math.cos(angle)
    read = camera.move(seen, {**values, name: zero + 12}, shape)
    assert torch.allclose(read, point, atol=1e-9)


def test_slanted_to_the_right_leans_like_italics():
    x = torch.zeros(1, 1, 33, 33)
    x[..., 16] = 1
    leaning = decoded("camera", x, shear=1.0)
    column = torch.arange(33.0)
    centre = (leaning[0, 0] * column).sum(1) / leaning[0, 0].sum(1)
    assert centre[0] > 16.5 > 15.5 > centre[-1]


def test_an_even_bend_is_a_shift_by_the_reach():
    x = noise()
    space = appearance("warp(points=5, reach=0.125)", shape=(3, 32, 32))
    z = torch.zeros(2, space.size)
    z[:, [i for i, name in enumerate(space.names) if "right" in name]] = 1.0
    moved = space.decode(z, Seeds(z, x, torch.zeros(2).long(), torch.arange(2)))
    assert torch.allclose(moved[..., 5:-5], x.roll(4, 3)[..., 5:-5], atol=1e-4)


@pytest.mark.parametrize(("side", "points", "reach"), [(28, 7, 0.06), (64, 7, 0.06), (65, 6, 0.05)])
def test_no_pixel_moves_farther_than_the_reach(side, points, reach):
    space = appearance("warp", shape=(1, side, side))
    (warp,) = space.parts
    assert space.size == 2 * points**2
    flat = centred_places(space.shape, torch.zeros(1)).expand(8, -1, -1, -1)
    z = torch.randn(8, space.size, generator=stream(0)).sign()
    moved = warp.move(flat, {"bend": space.values(z)}, space.shape) - flat
    length = moved.square().sum(1).sqrt()
    assert length.max() <= reach * side * (1 + 1e-5)
    assert length.max() > 0.99 * reach * side


def test_a_field_passes_through_its_control_points():
    coarse = torch.rand(2, 1, 4, 3, generator=stream(0))
    fine = spread(coarse, 31, 21)
    assert torch.allclose(fine[:, :, ::10, ::10], coarse, atol=1e-6)
    assert torch.allclose(
        spread(torch.ones(1, 1, 4, 3), 31, 21), torch.ones(1, 1, 31, 21), atol=1e-6
    )


def test_the_gradient_of_sampling_reaches_places_only():
    x = noise().requires_grad_()
    places = centred_places((3, 32, 32), x.detach()) * torch.full((2, 1, 1, 1), 0.93)
    places = places.detach().requires_grad_()
    out = resample(x, places)
    (slope,) = torch.autograd.grad(out.sum(), places)
    assert slope.abs().sum() > 0
    with pytest.raises(RuntimeError, match="not have been used"):
        torch.autograd.grad(resample(x, places).sum(), x)


def test_sampling_agrees_with_torch():
    x = noise().double()
    places = 17 * torch.randn(2, 2, 32, 32, generator=stream(1), dtype=torch.float64)
    grid = torch.stack([places[:, 1], places[:, 0]], 3) / 15.5
    expected = torch.nn.functional.grid_sample(
        x, grid, padding_mode="reflection", align_corners=True
    )
    near = (places.abs() < 40).all(1)[:, None].expand_as(x)
    assert torch.allclose(resample(x, places)[near], expected[near], atol=1e-9)
