"""Hill climbing on a bowl: it goes up, one coordinate at a time, and ends after its passes."""

import torch
from landscapes import Landscape, flat_seeds, walk

from hardcase.searches.genetic import HillClimbing

D = 6


class Bowl(Landscape):
    """The score is minus the squared distance to (1, 1, ...)."""

    def __init__(self, count=3, limit=10**6):
        super().__init__(flat_seeds(count, D), limit)

    def answers(self, z, rows):
        return -(z - 1).square().sum(1), rows < 0, rows * 0


def test_it_climbs_and_asks_once_a_coordinate_and_pass():
    evaluate = Bowl()
    state = walk(HillClimbing(passes=8), evaluate)
    assert evaluate.asked.tolist() == [1 + 8 * D] * 3
    assert bool((state["score"] > -3).all()), "it started at -6"
    assert torch.allclose(-(state["z"] - 1).square().sum(1), state["score"])


def test_a_candidate_differs_from_the_best_in_one_coordinate():
    evaluate = Bowl(1)
    walk(HillClimbing(passes=1), evaluate)
    best = evaluate.seen[0][0]
    for turn, (z, _) in enumerate(evaluate.seen[1:]):
        changed = (z != best).nonzero()[:, 1].tolist()
        assert changed in ([], [turn % D])
        best = z if -(z - 1).square().sum() > -(best - 1).square().sum() else best


def test_a_stride_that_does_not_depend_on_moves():
    state = walk(HillClimbing(passes=2, step_size=2.0, adapt="never"), Bowl())
    assert state["step_size"].tolist() == [2.0] * 3


def test_the_stride_follows_the_moves_that_were_kept():
    state = walk(HillClimbing(passes=1, step_size=50.0), Bowl())
    assert bool((state["step_size"] < 50).all())


def test_from_the_prior_the_start_is_drawn():
    evaluate = Bowl()
    walk(HillClimbing(passes=1, start="prior"), evaluate)
    assert evaluate.seen[0][0].std() > 0.5
