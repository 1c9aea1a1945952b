"""Hill climbing on a bowl: it goes up, one coordinate at a time, and ends after its passes."""

import pytest
import torch
from safetensors.torch import load, save

from hardcase.randomness import Rng
from hardcase.searches.hill_climbing import HillClimbing
from hardcase.types import Feedback, Seeds

D = 6


class Bowl:
    """The score is minus the squared distance to (1, 1, ...)."""

    def __init__(self, count=3, limit=10**6):
        self.seeds = Seeds(
            torch.zeros(count, D),
            torch.zeros(count, 1, 2, 2),
            torch.zeros(count).long(),
            torch.arange(count),
        )
        self.live, self.asked, self.limit, self.seen = (
            torch.ones(count, dtype=torch.bool),
            torch.zeros(count).long(),
            limit,
            [],
        )

    def __call__(self, z, rows, aim=None):
        self.seen.append(z.clone())
        self.asked += rows.bincount(minlength=len(self.asked))
        self.live &= self.asked < self.limit
        score = -(z - 1).square().sum(1)
        no = torch.zeros(len(rows), dtype=torch.bool)
        return Feedback(z, score, no, rows * 0, score * 0, ~no)

    def gradient(self, z, rows, aim=None):
        raise AssertionError("asked for a gradient")

    def choose(self, rows, following=None):
        return {}

    surrogates = gradient

    def retire(self, rows):
        self.live[rows] = False


def climb(look, search, through=lambda state: state):
    rng = Rng.numbered(0, "climb", len(look.seeds))
    state = search.init(look.seeds, rng)
    while bool(look.live.any()):
        state = through(search.step(state, look, rng))
    return state


def test_it_climbs_and_asks_once_a_coordinate_and_pass():
    look = Bowl()
    state = climb(look, HillClimbing(passes=8))
    assert look.asked.tolist() == [1 + 8 * D] * 3
    assert bool((state["score"] > -3).all()), "it started at -6"
    assert torch.allclose(-(state["z"] - 1).square().sum(1), state["score"])


def test_a_candidate_differs_from_the_best_in_one_coordinate():
    look = Bowl(1)
    climb(look, HillClimbing(passes=1))
    best = look.seen[0]
    for turn, z in enumerate(look.seen[1:]):
        changed = (z != best).nonzero()[:, 1].tolist()
        assert changed in ([], [turn % D])
        best = z if -(z - 1).square().sum() > -(best - 1).square().sum() else best


@pytest.mark.parametrize(("adapt", "expected"), [("halved", 0.5), ("never", 2.0)])
def test_strides_that_do_not_depend_on_moves(adapt, expected):
    state = climb(Bowl(), HillClimbing(passes=2, stride=2.0, adapt=adapt))
    assert state["stride"].tolist() == [expected] * 3


def test_the_stride_follows_the_moves_that_were_kept():
    state = climb(Bowl(), HillClimbing(passes=1, stride=50.0))
    assert bool((state["stride"] < 50).all())


def test_from_the_prior_the_start_is_drawn():
    look = Bowl()
    climb(look, HillClimbing(passes=1, start="prior"))
    assert look.seen[0].std() > 0.5


def test_a_limit_ends_it_and_the_state_survives_saving():
    look = Bowl(limit=4)
    climb(look, HillClimbing())
    assert look.asked.tolist() == [4, 4, 4]
    one, two = (
        climb(Bowl(), HillClimbing()),
        climb(Bowl(), HillClimbing(), through=lambda state: load(save(state))),
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
