"""The genetic search and hill climbing against hand-made feedback: what they keep, how they cool, when they end."""

from itertools import pairwise

import torch
from landscapes import Landscape, flat_seeds, walk as climbed

from hardcase.randomness import Rng
from hardcase.searches.genetic import Genetic, HillClimbing

D = 12


class Slope(Landscape):
    """Scores are minus the L1 distance to a goal."""

    def __init__(self, goal, count):
        super().__init__(flat_seeds(count, D))
        self.goal = goal

    def answers(self, z, rows):
        return -(z - self.goal).abs().sum(1), rows < 0, rows


def walk(search, evaluate, steps, count=3):
    rng = Rng.numbered(0, "walk", count)
    state = search.init(evaluate.seeds, rng)
    history = []
    for _ in range(steps):
        state = search.step(state, evaluate, rng)
        history.append(state["score"][:, 0].clone())
    return state, history


def test_the_best_never_gets_worse_and_improves():
    state, history = walk(Genetic(population=20, elite=8, reset=0.1), Slope(torch.ones(D), 3), 15)
    assert all(bool((later >= earlier).all()) for earlier, later in pairwise(history))
    assert bool((history[-1] > history[0]).all())
    assert torch.equal(state["score"], state["score"].sort(1, descending=True).values)


def test_the_first_generation_is_a_cloud_and_later_ones_only_children():
    evaluate = Slope(torch.ones(D), 3)
    walk(Genetic(population=20, elite=8), evaluate, 2)
    assert [len(rows) for _, rows in evaluate.seen] == [60, 36]
    assert evaluate.seen[0][0].std() > 0.5


def test_children_are_reset_toward_the_seed():
    evaluate = Slope(torch.ones(D), 3)
    walk(Genetic(population=40, elite=8, reset=0.5), evaluate, 2)
    share = (evaluate.seen[1][0] == 0).float().mean()
    assert 0.4 < share < 0.6


def test_a_coordinate_equal_to_the_seeds_is_never_mutated():
    evaluate = Slope(torch.ones(D), 3)
    walk(Genetic(population=20, elite=8, spread=0.0), evaluate, 3)
    assert all(bool((z == 0).all()) for z, _ in evaluate.seen)


def test_a_seed_that_stalls_retires_after_thirteen_generations_and_on_its_own():
    class Half(Slope):
        def answers(self, z, rows):
            score, failed, predicted = super().answers(z, rows)
            return torch.where(rows == 0, -999.0, score), failed, predicted

    evaluate = Half(torch.ones(D), 3)
    state, _ = walk(Genetic(population=20, elite=8, reset=0.1), evaluate, 14)
    assert evaluate.live.tolist() == [False, True, True]
    assert state["size"][0] < 1e-3
    assert state["size"][1] >= 1e-3


def test_retired_seeds_are_not_bred():
    evaluate = Slope(torch.ones(D), 3)
    evaluate.retire(torch.tensor([1]))
    walk(Genetic(population=20, elite=8), evaluate, 2)
    assert 1 not in evaluate.seen[1][1].tolist()


def test_progress_below_the_tolerance_is_no_progress():
    evaluate = Slope(torch.ones(D), 3)
    state, _ = walk(Genetic(population=20, elite=8, reset=0.1, tolerance=1e3), evaluate, 5)
    assert bool((state["size"] < 0.1).all())


SIDE = 6


class Bowl(Landscape):
    """The score is minus the squared distance to (1, 1, ...)."""

    def __init__(self, count=3, limit=10**6):
        super().__init__(flat_seeds(count, SIDE), limit)

    def answers(self, z, rows):
        return -(z - 1).square().sum(1), rows < 0, rows * 0


def test_it_climbs_and_asks_once_a_coordinate_and_pass():
    evaluate = Bowl()
    state = climbed(HillClimbing(passes=8), evaluate)
    assert evaluate.asked.tolist() == [1 + 8 * SIDE] * 3
    assert bool((state["score"] > -3).all()), "it started at -6"
    assert torch.allclose(-(state["z"] - 1).square().sum(1), state["score"])


def test_a_candidate_differs_from_the_best_in_one_coordinate():
    evaluate = Bowl(1)
    climbed(HillClimbing(passes=1), evaluate)
    best = evaluate.seen[0][0]
    for turn, (z, _) in enumerate(evaluate.seen[1:]):
        changed = (z != best).nonzero()[:, 1].tolist()
        assert changed in ([], [turn % SIDE])
        best = z if -(z - 1).square().sum() > -(best - 1).square().sum() else best


def test_a_stride_that_does_not_depend_on_moves():
    state = climbed(HillClimbing(passes=2, step_size=2.0, adapt="never"), Bowl())
    assert state["step_size"].tolist() == [2.0] * 3


def test_the_stride_follows_the_moves_that_were_kept():
    state = climbed(HillClimbing(passes=1, step_size=50.0), Bowl())
    assert bool((state["step_size"] < 50).all())


def test_from_the_prior_the_start_is_drawn():
    evaluate = Bowl()
    climbed(HillClimbing(passes=1, start="prior"), evaluate)
    assert evaluate.seen[0][0].std() > 0.5
