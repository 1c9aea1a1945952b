"""The genetic search against hand-made feedback: what it keeps, how it cools, when it retires."""

from itertools import pairwise

import torch

from hardcase.randomness import Rng
from hardcase.searches.genetic import Genetic
from hardcase.types import Feedback, Seeds

D = 12


class Landscape:
    """Scores are minus the L1 distance to a goal; `live` can be closed by retiring."""

    def __init__(self, goal, count):
        self.goal, self.live = goal, torch.ones(count, dtype=torch.bool)
        self.seen = []

    def __call__(self, z, rows, aim=None):
        self.seen.append((z, rows))
        score = -(z - self.goal).abs().sum(1)
        no = torch.zeros(len(rows), dtype=torch.bool)
        return Feedback(z, score, no, rows, score * 0, ~no)

    def gradient(self, z, rows, aim=None):
        raise AssertionError("a genetic search asked for a gradient")

    def choose(self, rows):
        return {}

    surrogates = gradient

    def retire(self, rows):
        self.live[rows] = False


def seeds(count=3):
    z = torch.zeros(count, D)
    return Seeds(
        z, torch.zeros(count, 1, 2, 2), torch.zeros(count, dtype=torch.int64), torch.arange(count)
    )


def walk(search, look, steps, count=3):
    rng = Rng.numbered(0, "walk", count)
    state = search.init(seeds(count), rng)
    history = []
    for _ in range(steps):
        state = search.step(state, look, rng)
        history.append(state["score"][:, 0].clone())
    return state, history


def test_the_best_never_gets_worse_and_improves():
    state, history = walk(
        Genetic(population=20, elite=8, reset=0.1), Landscape(torch.ones(D), 3), 15
    )
    assert all(bool((later >= earlier).all()) for earlier, later in pairwise(history))
    assert bool((history[-1] > history[0]).all())
    assert torch.equal(state["score"], state["score"].sort(1, descending=True).values)


def test_the_first_generation_is_a_cloud_and_later_ones_only_children():
    look = Landscape(torch.ones(D), 3)
    walk(Genetic(population=20, elite=8), look, 2)
    assert [len(rows) for _, rows in look.seen] == [60, 36]
    assert look.seen[0][0].std() > 0.5


def test_children_are_reset_toward_the_seed():
    look = Landscape(torch.ones(D), 3)
    walk(Genetic(population=40, elite=8, reset=0.5), look, 2)
    share = (look.seen[1][0] == 0).float().mean()
    assert 0.4 < share < 0.6


def test_a_coordinate_equal_to_the_seeds_is_never_mutated():
    look = Landscape(torch.ones(D), 3)
    walk(Genetic(population=20, elite=8, spread=0.0), look, 3)
    assert all(bool((z == 0).all()) for z, _ in look.seen)


def test_a_seed_that_stalls_retires_after_thirteen_generations_and_on_its_own():
    class Half(Landscape):
        def __call__(self, z, rows, aim=None):
            feedback = super().__call__(z, rows)
            score = torch.where(rows == 0, -999.0, feedback.score)
            return Feedback(z, score, feedback.failed, rows, score * 0, feedback.looked)

    look = Half(torch.ones(D), 3)
    state, _ = walk(Genetic(population=20, elite=8, reset=0.1), look, 14)
    assert look.live.tolist() == [False, True, True]
    assert state["size"][0] < 1e-3
    assert state["size"][1] >= 1e-3


def test_retired_seeds_are_not_bred():
    look = Landscape(torch.ones(D), 3)
    look.retire(torch.tensor([1]))
    walk(Genetic(population=20, elite=8), look, 2)
    assert 1 not in look.seen[1][1].tolist()


def test_progress_below_the_tolerance_is_no_progress():
    look = Landscape(torch.ones(D), 3)
    state, _ = walk(Genetic(population=20, elite=8, reset=0.1, tolerance=1e3), look, 5)
    assert bool((state["size"] < 0.1).all())
