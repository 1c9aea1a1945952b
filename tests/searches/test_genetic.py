"""The genetic search and hill climbing against hand-made feedback: what they keep, how they cool, when they end."""

from dataclasses import replace
from itertools import pairwise

import torch
from landscapes import Landscape, flat_seeds, walk

import hardcase as hc
from hardcase.analysis.maps import grid_of, mapping
from hardcase.randomness import Rng
from hardcase.searches.genetic import Genetic, HillClimbing, PixelGenetic
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget
from tiny import noise_method as method

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


def test_the_best_never_gets_worse_and_small_progress_is_none():
    _, state, history = bred(15, reset=0.1)
    assert all(bool((later >= earlier).all()) for earlier, later in pairwise(history))
    assert bool((history[-1] > history[0]).all())
    assert torch.equal(state["score"], state["score"].sort(1, descending=True).values)
    _, state, _ = bred(5, reset=0.1, tolerance=1e3)
    assert bool((state["size"] < 0.1).all())


def test_the_first_generation_is_a_cloud_and_later_ones_only_children_half_reset():
    evaluate, _, _ = bred(2, population=40)
    assert [len(rows) for _, rows in evaluate.seen] == [120, 96]
    assert evaluate.seen[0][0].std() > 0.5
    share = (evaluate.seen[1][0] == 0).float().mean()
    assert 0.4 < share < 0.6


def test_a_coordinate_equal_to_the_seeds_is_never_mutated_and_the_retired_not_bred():
    evaluate, _, _ = bred(3, spread=0.0)
    assert all(bool((z == 0).all()) for z, _ in evaluate.seen)
    evaluate = Slope(torch.ones(D), 3)
    evaluate.retire(torch.tensor([1]))
    bred(2, evaluate)
    assert 1 not in evaluate.seen[1][1].tolist()


def test_a_seed_that_stalls_retires_after_thirteen_generations_and_on_its_own():
    class Half(Slope):
        def answers(self, z, rows):
            score, failed, predicted = super().answers(z, rows)
            return torch.where(rows == 0, -999.0, score), failed, predicted

    evaluate, state, _ = bred(14, Half(torch.ones(D), 3), reset=0.1)
    assert evaluate.live.tolist() == [False, True, True]
    assert state["size"][0] < 1e-3
    assert state["size"][1] >= 1e-3


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


def test_it_climbs_asks_once_a_coordinate_and_may_start_from_the_prior():
    evaluate = Bowl()
    state = walk(HillClimbing(passes=8), evaluate)
    assert evaluate.asked.tolist() == [1 + 8 * SIDE] * 3
    assert bool((state["score"] > -3).all()), "it started at -6"
    assert torch.allclose(-(state["z"] - 1).square().sum(1), state["score"])
    evaluate = Bowl()
    walk(HillClimbing(passes=1, start="prior"), evaluate)
    assert evaluate.seen[0][0].std() > 0.5


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


GRID = grid_of("brightness,contrast", toy_images(30))


def test_drafts_reach_more_cells_at_the_same_queries():
    reached = {}
    for drafts in (1, 8):
        made = mapping(method(), GRID)
        search = replace(made.search, drafts=drafts, queries=20)
        guide = mapped(replace(made, search=search), 120)
        reached[drafts] = int((guide.base["level"] > 0).sum())
    assert reached[8] > reached[1]


def test_without_an_aim_the_seed_is_the_parent():
    made = mapping(method(), GRID)
    search = replace(made.search, children=3, spread=1e-6)
    z = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    state = {"z": z, "x": z, "y": torch.zeros(2), "id": torch.arange(2)}
    drawn = search._drafted(state, torch.arange(2), {}, Rng.numbered(0, "search", 2))
    assert drawn.shape == (6, 1, 8, 8)
    assert torch.allclose(drawn, z.repeat_interleave(3, 0), atol=1e-4)


def mapped(made, queries):
    """What a search teaches the map of its method."""
    budget, how = Budget(queries=queries), hc.Execution(shard=4)
    hc.search(toy_subject(), toy_images(4), method=made, budget=budget, execution=how)
    (guide,) = made.guides
    assert int(guide.base["visits"].sum()) == 4 * queries
    return guide


def test_the_methods_own_search_comes_first_and_the_map_goes_on():
    guide = mapped(mapping(method(), GRID), 60)
    assert int((guide.base["level"] > 1).sum()) > 0, "a gradient finds failures of the toy at once"
    assert int(guide.base["aimed"].sum()) > 0, "and then the map steers"
    made = mapping(replace(method(), budget=Budget(queries=40, gradients=3)), GRID)
    assert made.search.gradients == 3
    mapped(made, 60)
