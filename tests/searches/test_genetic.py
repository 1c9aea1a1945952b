"""The genetic search and hill climbing against hand-made feedback: what they keep, how they cool, when they end."""

from itertools import pairwise

import torch
from landscapes import Landscape, flat_seeds, walk

from hardcase.randomness import Rng
from hardcase.searches.genetic import Genetic, HillClimbing, PixelGenetic

D = 12


class Slope(Landscape):
    """Scores are minus the L1 distance to a goal."""

    def __init__(self, goal, count):
        super().__init__(flat_seeds(count, D))
        self.goal = goal

    def answers(self, z, rows):
        return -(z - self.goal).abs().sum(1), rows < 0, rows


def bred(steps, evaluate=None, **options):
    """The evaluator, the last state and the best scores of every generation."""
    search = Genetic(**{"population": 20, "elite": 8, **options})
    evaluate = evaluate or Slope(torch.ones(D), 3)
    rng = Rng.numbered(0, "walk", 3)
    state = search.init(evaluate.seeds, rng)
    history = []
    for _ in range(steps):
        state = search.step(state, evaluate, rng)
        history.append(state["score"][:, 0].clone())
    return evaluate, state, history


def test_the_best_never_gets_worse_and_improves():
    _, state, history = bred(15, reset=0.1)
    assert all(bool((later >= earlier).all()) for earlier, later in pairwise(history))
    assert bool((history[-1] > history[0]).all())
    assert torch.equal(state["score"], state["score"].sort(1, descending=True).values)


def test_the_first_generation_is_a_cloud_and_later_ones_only_children_half_reset():
    evaluate, _, _ = bred(2, population=40)
    assert [len(rows) for _, rows in evaluate.seen] == [120, 96]
    assert evaluate.seen[0][0].std() > 0.5
    share = (evaluate.seen[1][0] == 0).float().mean()
    assert 0.4 < share < 0.6


def test_a_coordinate_equal_to_the_seeds_is_never_mutated():
    evaluate, _, _ = bred(3, spread=0.0)
    assert all(bool((z == 0).all()) for z, _ in evaluate.seen)


def test_a_seed_that_stalls_retires_after_thirteen_generations_and_on_its_own():
    class Half(Slope):
        def answers(self, z, rows):
            score, failed, predicted = super().answers(z, rows)
            return torch.where(rows == 0, -999.0, score), failed, predicted

    evaluate, state, _ = bred(14, Half(torch.ones(D), 3), reset=0.1)
    assert evaluate.live.tolist() == [False, True, True]
    assert state["size"][0] < 1e-3
    assert state["size"][1] >= 1e-3


def test_retired_seeds_are_not_bred():
    evaluate = Slope(torch.ones(D), 3)
    evaluate.retire(torch.tensor([1]))
    bred(2, evaluate)
    assert 1 not in evaluate.seen[1][1].tolist()


def test_progress_below_the_tolerance_is_no_progress():
    _, state, _ = bred(5, reset=0.1, tolerance=1e3)
    assert bool((state["size"] < 0.1).all())


def test_in_pixels_the_best_survives_children_mix_two_parents_and_seeds_retire_in_time():
    evaluate, rng = Slope(torch.ones(D), 2), Rng.numbered(0, "walk", 2)
    search = PixelGenetic(population=8, tournament=3, rate=0.0, generations=5)
    state = search.init(evaluate.seeds, rng)
    best = []
    while bool(evaluate.live.any()):
        before = state["z"].clone()
        state = search.step(state, evaluate, rng)
        best.append(state["score"].amax(1))
        if len(best) > 1:
            same = (evaluate.seen[-1][0].reshape(2, 7, 1, D) == before[:, None]).any(2)
            assert bool(same.all()), "without mutation every pixel comes from the old population"
    assert len(best) == 5
    assert all(bool((b >= a).all()) for a, b in pairwise(best))
    assert bool((best[-1] > best[0]).all())
    assert [len(rows) for _, rows in evaluate.seen] == [16, 14, 14, 14, 14]


SIDE = 6


class Bowl(Landscape):
    """The score is minus the squared distance to (1, 1, ...)."""

    def __init__(self, count=3, limit=10**6):
        super().__init__(flat_seeds(count, SIDE), limit)

    def answers(self, z, rows):
        return -(z - 1).square().sum(1), rows < 0, rows * 0


def test_it_climbs_and_asks_once_a_coordinate_and_pass():
    evaluate = Bowl()
    state = walk(HillClimbing(passes=8), evaluate)
    assert evaluate.asked.tolist() == [1 + 8 * SIDE] * 3
    assert bool((state["score"] > -3).all()), "it started at -6"
    assert torch.allclose(-(state["z"] - 1).square().sum(1), state["score"])


def test_a_candidate_differs_from_the_best_in_one_coordinate():
    evaluate = Bowl(1)
    walk(HillClimbing(passes=1), evaluate)
    best = evaluate.seen[0][0]
    for turn, (z, _) in enumerate(evaluate.seen[1:]):
        changed = (z != best).nonzero()[:, 1].tolist()
        assert changed in ([], [turn % SIDE])
        best = z if -(z - 1).square().sum() > -(best - 1).square().sum() else best


def test_the_step_size_stays_or_follows_the_moves_that_were_kept():
    state = walk(HillClimbing(passes=2, step_size=2.0, adapt="never"), Bowl())
    assert state["step_size"].tolist() == [2.0] * 3
    state = walk(HillClimbing(passes=1, step_size=50.0), Bowl())
    assert bool((state["step_size"] < 50).all())


def test_from_the_prior_the_start_is_drawn():
    evaluate = Bowl()
    walk(HillClimbing(passes=1, start="prior"), evaluate)
    assert evaluate.seen[0][0].std() > 0.5
