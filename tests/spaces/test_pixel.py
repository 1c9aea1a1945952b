"""Norm balls, light, occlusion and black squares: what each allows, and nothing else."""

import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, stream
from hardcase.spaces.latent import Latent
from hardcase.spaces.pixel import L2, Blackout, Brightness, Linf, Occlusion, Pixels, Unclipped
from hardcase.tensors import from_bytes, to_grid
from hardcase.testing import check_space
from hardcase.testing.toys import ToyAutoencoder, toy_images
from hardcase.types import Seeds

SPACES = {
    "pixels": Pixels(),
    "linf": Pixels(Linf(0.1)),
    "l2": Pixels(L2(0.5)),
    "vae": Latent(ToyAutoencoder()),
    "light": Brightness(),
    "occlusion": Occlusion((3, 4)),
    "occlusion in its place": Occlusion((3, 4), (1, 2)),
    "blackout": Blackout(2, 3),
    "unclipped": Unclipped(),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_space_obeys_the_laws(space):
    check_space(space)


def seeds_in(space, count=6):
    images = toy_images(count)
    x = from_bytes(images.x)
    z, context = space.encode(x, images.y, Rng.numbered(0, "places", count))
    return Seeds(z, x, images.y, torch.arange(count), context)


def thrown(seeds, size=1):
    return seeds.z + size * torch.randn(seeds.z.shape, generator=stream(1, "throw"))


@pytest.mark.parametrize("ball", [Linf(0.1), Linf(0.9), L2(0.5), L2(30.0)], ids=str)
def test_balls_are_obeyed_by_images_in_range_and_what_lies_inside_stays(ball):
    space = Pixels(ball)
    origin = seeds_in(space, 30)
    z = space.project(thrown(origin, 3), origin)
    assert 0 <= z.min() <= z.max() <= 1
    assert space.distance(z, origin).max() <= ball.radius + 1e-5
    if isinstance(ball, Linf):
        assert (to_grid(z) - origin.x).abs().max() <= ball.radius, "rounded to 8 bits too"
    near = (origin.z + 0.001).clamp(0, 1)
    assert torch.equal(space.project(near, origin), near)


def test_light_moves_every_pixel_by_the_mean_of_the_move_and_is_limited():
    seeds = seeds_in(Brightness())
    moved = thrown(seeds)
    shifted = Brightness().project(moved, seeds)
    mean = (moved - seeds.z).flatten(1).mean(1)
    assert torch.allclose(shifted - seeds.z, mean[:, None, None, None], atol=1e-6)
    assert torch.allclose(Brightness().distance(shifted, seeds), mean.abs(), atol=1e-6)
    assert torch.allclose(Brightness(0.1).project(seeds.z + 5, seeds), seeds.z + 0.1)


def test_occlusion_keeps_the_move_inside_one_rectangle_of_the_right_size():
    space = Occlusion((3, 4))
    seeds = seeds_in(space)
    changed = (space.project(thrown(seeds), seeds) != seeds.z).any(1)
    boxes = seeds.context["box"]
    assert len({tuple(box) for box in boxes.tolist()}) > 1, "every seed has the same place"
    for picture, (top, left, height, width) in zip(changed, boxes.tolist(), strict=True):
        assert (height, width) == (3, 4)
        assert picture[top : top + 3, left : left + 4].all()
        assert picture.sum() == 12


def test_occlusion_at_a_given_place_clips_unless_told_not_to():
    seeds = seeds_in(Occlusion((3, 4), (1, 2)))
    assert seeds.context["box"].tolist() == [[1, 2, 3, 4]] * 6
    for clip, most in ((True, 1.0), (False, 9.0)):
        space = Occlusion((8, 8), clip=clip)
        seeds = seeds_in(space)
        assert space.project(torch.full_like(seeds.z, 9.0), seeds).amax() == most


def test_black_squares_only_darken_and_only_inside():
    space = Blackout(2, 3)
    seeds = seeds_in(space)
    moved = space.project(thrown(seeds), seeds)
    assert bool((moved <= seeds.z).all())
    touched = (space.project(torch.zeros_like(seeds.z), seeds) != seeds.z).flatten(1).sum(1)
    assert bool(((touched >= 4) & (touched <= 12)).all())
    assert not (moved == seeds.z).all()


@pytest.mark.parametrize("space", [Occlusion((9, 3)), Occlusion((3, 3), (6, 0)), Blackout(9)])
def test_a_rectangle_that_does_not_fit_is_refused(space):
    with pytest.raises(HardcaseError, match="does not fit"):
        seeds_in(space)


def test_the_grid_holds_its_images_and_passes_every_gradient_on():
    x = (
        3 * torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) - 1
    ).requires_grad_()
    grid = to_grid(x)
    assert torch.equal(grid.detach(), to_grid(x.detach()))
    levels = grid.detach() * 255
    assert torch.allclose(levels, levels.round(), atol=1e-4)
    weight = torch.rand_like(x)
    (gradient,) = torch.autograd.grad((weight * grid).sum(), x)
    assert torch.equal(gradient, weight)  # also where it was clamped
    with torch.no_grad():
        assert not to_grid(x).requires_grad
