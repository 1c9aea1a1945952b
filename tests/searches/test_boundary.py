"""The crossing search on worlds whose boundaries are known: how near it comes, what it asks, when it ends."""

import pytest
import torch
from landscapes import Landscape, flat_seeds, walk

from hardcase.searches.boundary import Crossing
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


def test_it_comes_close_to_the_shortest_way():
    evaluate = World(at())
    state = walk(Crossing(codes=codes()), evaluate)
    assert bool((evaluate.best < 2.2).all()), evaluate.best
    assert torch.allclose(state["length"], evaluate.best)


def test_the_last_failing_candidate_lies_on_the_boundary():
    evaluate = World(at())
    state = walk(Crossing(codes=codes()), evaluate)
    z = state["seed"] + state["best"]
    assert bool(((z[:, 0] + 0.1 * z[:, 1] - 2).abs() < 0.01).all())


@pytest.mark.parametrize("count", [1, 5])
def test_questions_stay_below_the_promise(count):
    evaluate, search = World(at(count)), Crossing(codes=codes(), classes=2)
    walk(search, evaluate)
    assert (
        int(evaluate.asked.max()) <= 3 * 2 * (1 + search.halvings) + search.shorten + search.closing
    )
    assert int(evaluate.asked.min()) > search.shorten


def test_candidates_stay_in_the_range_of_the_codes():
    evaluate, known = World(at()), codes()
    walk(Crossing(codes=known), evaluate)
    for z, rows in evaluate.seen:
        assert bool((z >= torch.minimum(known.codes.amin(0), evaluate.seeds.z[rows]) - 1e-6).all())
        assert bool((z <= torch.maximum(known.codes.amax(0), evaluate.seeds.z[rows]) + 1e-6).all())


def test_shortening_shortens():
    short, long = World(at()), World(at())
    walk(Crossing(codes=codes(), cuts=(0.5,), shorten=60), short)
    walk(Crossing(codes=codes(), cuts=(0.5,), shorten=0), long)
    assert float(short.best.mean()) < 0.8 * float(long.best.mean())


def test_apart_every_class_is_reached_on_its_own():
    state = walk(Crossing(codes=codes(), classes=2, apart=True), World(at()))
    assert state["row"].tolist() == [0, 0, 1, 1, 2, 2]
    z = state["seed"] + state["best"]
    assert torch.equal(World(at()).label(z)[:, None], state["goal"])
    assert bool((state["length"][state["goal"][:, 0] == 1] < 2.5).all())
    assert bool((state["length"][state["goal"][:, 0] == 2] >= 5).all())


def test_toward_asks_nothing_about_seeds_of_that_class():
    given = at(2)
    evaluate = World(Seeds(given.z, given.x, torch.tensor([0, 1]), given.id))
    walk(Crossing(codes=codes(), toward=1), evaluate)
    assert evaluate.asked[0] > 0
    assert evaluate.asked[1] == 0


def test_where_the_steps_miss_the_codes_themselves_are_tried():
    class Hidden(World):
        def label(self, z):
            return torch.where((z[:, 4:] != 0).all(1) & (z[:, 0] > 2), 1, 0)

    evaluate = Hidden(at())
    walk(Crossing(codes=codes(), shorten=0), evaluate)
    assert bool(evaluate.best.isfinite().all())


def test_without_codes_it_starts_from_the_prior():
    evaluate = World(at())
    walk(Crossing(classes=120), evaluate)
    assert bool(evaluate.best.isfinite().all())
