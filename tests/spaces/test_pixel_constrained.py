"""Light, occlusion and black squares: what each allows, and nothing else."""

import pytest
import torch

from hardcase.errors import Problem
from hardcase.randomness import Rng, stream
from hardcase.spaces.pixel import Blackout, Brightness, Occlusion, Unclipped
from hardcase.tensors import from_bytes
from hardcase.testing.spaces import check_space
from hardcase.testing.toys import toy_images
from hardcase.types import Seeds

SPACES = (Brightness(), Occlusion((3, 4)), Occlusion((3, 4), (1, 2)), Blackout(2, 3), Unclipped())


def seeds_in(space, count=6):
    images = toy_images(count)
    x = from_bytes(images.x)
    z, context = space.encode(x, images.y, Rng.numbered(0, "places", count))
    return Seeds(z, x, images.y, torch.arange(count), context)


def thrown(seeds):
    return seeds.z + torch.randn(seeds.z.shape, generator=stream(1, "throw"))


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.name)
def test_space_obeys_the_laws(space):
    check_space(space)


def test_light_moves_every_pixel_by_the_mean_of_the_move():
    seeds = seeds_in(Brightness())
    moved = thrown(seeds)
    change = Brightness().project(moved, seeds) - seeds.z
    mean = (moved - seeds.z).flatten(1).mean(1)
    assert torch.allclose(change, mean[:, None, None, None].expand_as(change), atol=1e-6)
    assert torch.allclose(
        Brightness().distance(Brightness().project(moved, seeds), seeds), mean.abs(), atol=1e-6
    )


def test_light_is_limited():
    seeds = seeds_in(Brightness(0.1))
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


def test_occlusion_at_a_given_place():
    seeds = seeds_in(Occlusion((3, 4), (1, 2)))
    assert seeds.context["box"].tolist() == [[1, 2, 3, 4]] * 6


def test_occlusion_clips_unless_told_not_to():
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
    with pytest.raises(Problem, match="does not fit"):
        seeds_in(space)
