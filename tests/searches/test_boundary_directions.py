"""Directions between classes, against codes whose layout is known."""

import torch

from hardcase.searches.boundary import directions, span
from hardcase.spaces.latent import Library
from hardcase.types import Seeds

CENTRES = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 6, 0], [0, 0, 9]])


def library(per_class=20, spread=0.1, seed=0):
    rng = torch.Generator().manual_seed(seed)
    label = torch.arange(4).repeat(per_class)
    return Library(CENTRES[label] + spread * torch.randn(len(label), 3, generator=rng), label)


def seeds(z, y):
    return Seeds(z, torch.zeros(len(y), 1, 2, 2), torch.tensor(y), torch.arange(len(y)))


def test_goals_are_the_nearest_other_classes_in_order():
    ways = directions(library(), seeds(CENTRES[:2].clone(), [0, 1]), classes=3, neighbours=5)
    assert ways.goal.tolist() == [[1, 2, 3], [0, 2, 3]]


def test_a_step_is_the_difference_of_the_classes_whatever_is_peculiar_to_the_seed():
    odd = CENTRES[:1] + torch.tensor([[0.0, 1.5, 1.5]])
    ways = directions(library(spread=0.0), seeds(odd, [0]), classes=1, neighbours=5)
    assert torch.allclose(ways.step[0, 0], CENTRES[1])
    assert torch.allclose(ways.nearest[0, 0], CENTRES[1] - odd[0])


def test_only_the_neighbours_count():
    codes = torch.tensor([[0.0], [0.1], [5], [1], [1.2], [9]])
    ways = directions(
        Library(codes, torch.tensor([0, 0, 0, 1, 1, 1])),
        seeds(torch.zeros(1, 1), [0]),
        classes=1,
        neighbours=2,
    )
    assert torch.allclose(ways.step, torch.tensor([[[1.1 - 0.05]]]))


def test_toward_one_class_alone_and_none_for_seeds_of_that_class():
    ways = directions(
        library(), seeds(CENTRES[:3].clone(), [0, 1, 2]), classes=1, neighbours=5, toward=2
    )
    assert ways.goal.tolist() == [[2], [2], [-1]]
    assert bool((ways.step[2] == 0).all())


def test_a_class_without_codes_and_a_class_with_few():
    some = Library(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, 1, 2]))
    ways = directions(some, seeds(torch.zeros(1, 1), [0]), classes=5, neighbours=3)
    assert ways.goal[0, :2].tolist() == [1, 2]
    assert ways.goal[0, 2:].tolist() == [-1] * (ways.goal.shape[1] - 2)
    assert torch.allclose(ways.step[0, 1], torch.tensor([4.0]))


def test_the_span_holds_all_codes_and_the_seed():
    low, high = span(library(spread=0.0), seeds(torch.tensor([[-1.0, 0, 20]]), [0]))
    assert low.tolist() == [[-1, 0, 0]]
    assert high.tolist() == [[4, 6, 20]]
