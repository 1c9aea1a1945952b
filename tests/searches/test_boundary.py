"""Searches for the boundary on worlds whose borders are known: how near they come, what they ask, when they end."""

import pytest
import torch
from landscapes import Landscape, flat_seeds, walk

from hardcase.searches.boundary import BoundaryWalks, Crossing, directions, lengths, span
from hardcase.spaces.latent import Library
from hardcase.types import Seeds

D = 40


class World(Landscape):
    """Class 1 beyond x0 + 0.1 x1 > 2, class 2 beyond x2 > 5, else class 0; keeps the shortest way."""

    def __init__(self, seeds, limit=10**6):
        super().__init__(seeds, limit)
        self.best = torch.full((len(seeds),), torch.inf)

    def label(self, z):
        one, two = z[:, 0] + 0.1 * z[:, 1] > 2, z[:, 2] > 5
        return torch.where(one, 1, torch.where(two, 2, 0))

    def answers(self, z, rows):
        predicted = self.label(z)
        failed = predicted != self.seeds.y[rows]
        length = (z - self.seeds.z[rows]).abs().sum(1)
        self.best = self.best.scatter_reduce(0, rows[failed], length[failed], "amin")
        return length * 0, failed, predicted


def at(count=3):
    seeds = flat_seeds(count, D)
    seeds.z[:, 3] = torch.arange(count) * 0.1
    return seeds


def codes(seed=0):
    rng = torch.Generator().manual_seed(seed)
    label = torch.arange(3).repeat(60)
    z = torch.randn(180, D, generator=rng) * 0.3
    z[label == 1, 0] += 4
    z[label == 2, 2] += 8
    return Library(z, label)


@pytest.mark.parametrize("count", [1, 5])
def test_questions_stay_below_the_promise(count):
    evaluate, search = World(at(count)), Crossing(codes=codes(), classes=2)
    walk(search, evaluate)
    most = 3 * 2 * (1 + search.halvings) + search.shorten + search.closing
    assert search.shorten < int(evaluate.asked.min()) <= int(evaluate.asked.max()) <= most


def test_it_ends_on_the_boundary_near_the_shortest_way_in_the_range_of_the_codes():
    evaluate, known = World(at()), codes()
    state = walk(Crossing(codes=known), evaluate)
    assert bool((evaluate.best < 2.2).all()), evaluate.best
    assert torch.allclose(state["length"], evaluate.best)
    last = state["seed"] + state["best"]
    assert bool(((last[:, 0] + 0.1 * last[:, 1] - 2).abs() < 0.01).all())
    for z, rows in evaluate.seen:
        assert bool((z >= torch.minimum(known.codes.amin(0), evaluate.seeds.z[rows]) - 1e-6).all())
        assert bool((z <= torch.maximum(known.codes.amax(0), evaluate.seeds.z[rows]) + 1e-6).all())


def test_shortening_shortens():
    short, long = World(at()), World(at())
    walk(Crossing(codes=codes(), cuts=(0.5,), shorten=60), short)
    walk(Crossing(codes=codes(), cuts=(0.5,), shorten=0), long)
    assert float(short.best.mean()) < 0.8 * float(long.best.mean())


def test_apart_every_class_is_reached_and_toward_asks_nothing_of_that_class():
    state = walk(Crossing(codes=codes(), classes=2, apart=True), World(at()))
    assert state["row"].tolist() == [0, 0, 1, 1, 2, 2]
    z = state["seed"] + state["best"]
    assert torch.equal(World(at()).label(z)[:, None], state["goal"])
    assert bool((state["length"][state["goal"][:, 0] == 1] < 2.5).all())
    assert bool((state["length"][state["goal"][:, 0] == 2] >= 5).all())
    given = at(2)
    evaluate = World(Seeds(given.z, given.x, torch.tensor([0, 1]), given.id))
    walk(Crossing(codes=codes(), toward=1), evaluate)
    assert evaluate.asked[0] > 0
    assert evaluate.asked[1] == 0


def test_where_the_steps_miss_the_codes_themselves_are_tried():
    class Hidden(World):
        def label(self, z):
            return torch.where((z[:, 4:] != 0).all(1) & (z[:, 0] > 2), 1, 0)

    hidden, world = Hidden(at()), World(at())
    walk(Crossing(codes=codes(), shorten=0), hidden)
    walk(Crossing(classes=120), world)  # without codes it starts from the prior
    assert bool((hidden.best + world.best).isfinite().all())


CENTRES = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 6, 0], [0, 0, 9]])


def library(per_class=20, spread=0.1, seed=0):
    rng = torch.Generator().manual_seed(seed)
    label = torch.arange(4).repeat(per_class)
    return Library(CENTRES[label] + spread * torch.randn(len(label), 3, generator=rng), label)


def seeds(z, y):
    return Seeds(z, torch.zeros(len(y), 1, 2, 2), torch.tensor(y), torch.arange(len(y)))


def test_goals_are_the_nearest_other_classes_and_steps_the_difference_of_classes():
    some = seeds(CENTRES[:3].clone(), [0, 1, 2])
    ways = directions(library(), some, classes=3, neighbours=5)
    assert ways.goal.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3]]
    ways = directions(library(), some, classes=1, neighbours=5, toward=2)
    assert ways.goal.tolist() == [[2], [2], [-1]]
    assert bool((ways.step[2] == 0).all())
    odd = CENTRES[:1] + torch.tensor([[0.0, 1.5, 1.5]])
    ways = directions(library(spread=0.0), seeds(odd, [0]), classes=1, neighbours=5)
    assert torch.allclose(ways.step[0, 0], CENTRES[1])
    assert torch.allclose(ways.nearest[0, 0], CENTRES[1] - odd[0])


def test_only_the_neighbours_count_and_a_class_may_have_few_codes_or_none():
    origin = seeds(torch.zeros(1, 1), [0])
    codes = torch.tensor([[0.0], [0.1], [5], [1], [1.2], [9]])
    known = Library(codes, torch.tensor([0, 0, 0, 1, 1, 1]))
    ways = directions(known, origin, classes=1, neighbours=2)
    assert torch.allclose(ways.step, torch.tensor([[[1.1 - 0.05]]]))
    some = Library(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1, 1, 2]))
    ways = directions(some, origin, classes=5, neighbours=3)
    assert ways.goal[0, :2].tolist() == [1, 2]
    assert ways.goal[0, 2:].tolist() == [-1] * (ways.goal.shape[1] - 2)
    assert torch.allclose(ways.step[0, 1], torch.tensor([4.0]))


def test_the_span_holds_all_codes_and_the_seed():
    low, high = span(library(spread=0.0), seeds(torch.tensor([[-1.0, 0, 20]]), [0]))
    assert low.tolist() == [[-1, 0, 0]]
    assert high.tolist() == [[4, 6, 20]]


class Line(Landscape):
    """Class 1 right of 1, class 2 left of -2, class 0 between."""

    def __init__(self, count, limit=10**6):
        super().__init__(flat_seeds(count, 1), limit)

    def answers(self, z, rows):
        predicted = torch.where(z[:, 0] > 1, 1, torch.where(z[:, 0] < -2, 2, 0))
        return z[:, 0], predicted != 0, predicted


def test_every_walk_ends_at_the_border_it_crosses():
    state = walk(BoundaryWalks(walks=40, halvings=12), Line(3))
    length = lengths(state)
    right, left, inside = (state["entered"] == c for c in (1, 2, -1))
    assert torch.allclose(length[right], torch.tensor(1.0), atol=0.01)
    assert torch.allclose(length[left], torch.tensor(2.0), atol=0.01)
    assert bool(length[inside].isinf().all())
    assert bool((state["far"][right] > 1).all())
    assert bool(((state["far"][inside] <= 1) & (state["far"][inside] >= -2)).all())
    assert right.any()
    assert left.any()


def test_questions_are_one_a_walk_and_halvings_and_walks_follow_codes():
    evaluate = Line(5)
    state = walk(BoundaryWalks(walks=7, halvings=3), evaluate)
    left = (state["entered"] >= 0).reshape(5, 7).sum(1)
    assert evaluate.asked.tolist() == (7 + 3 * left).tolist()
    codes = Library(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    state = walk(BoundaryWalks(codes=codes, walks=50, reach=2.0), Line(4))
    assert set((state["far"].abs() / 2**0.5).round(decimals=4).flatten().tolist()) <= {0.0, 1.0}
