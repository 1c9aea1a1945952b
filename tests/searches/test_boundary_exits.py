"""Ways out on a line whose borders are known."""

import torch
from safetensors.torch import load, save

from hardcase.randomness import Rng
from hardcase.searches.boundary import Exits, lengths
from hardcase.spaces.latent import Library
from hardcase.types import Feedback, Seeds


class Line:
    """Class 1 right of 1, class 2 left of -2, class 0 between."""

    def __init__(self, count, limit=10**6):
        self.seeds = Seeds(
            torch.zeros(count, 1),
            torch.zeros(count, 1, 2, 2),
            torch.zeros(count).long(),
            torch.arange(count),
        )
        self.live, self.asked, self.limit = (
            torch.ones(count, dtype=torch.bool),
            torch.zeros(count).long(),
            limit,
        )

    def __call__(self, z, rows, aim=None):
        self.asked += rows.bincount(minlength=len(self.asked))
        self.live &= self.asked < self.limit
        predicted = torch.where(z[:, 0] > 1, 1, torch.where(z[:, 0] < -2, 2, 0))
        failed = predicted != 0
        score = failed.float()
        return Feedback(z, score, failed, predicted, score, torch.ones_like(failed))

    def gradient(self, z, rows, aim=None):
        raise AssertionError("asked for a gradient")

    def choose(self, rows, following=None):
        return {}

    surrogates = gradient

    def retire(self, rows):
        self.live[rows] = False


def walk(look, search, through=lambda state: state):
    rng = Rng.numbered(0, "walk", len(look.seeds))
    state = search.init(look.seeds, rng)
    while bool(look.live.any()):
        state = through(search.step(state, look, rng))
    return state


def test_every_walk_ends_at_the_border_it_crosses():
    state = walk(Line(3), Exits(walks=40, halvings=12))
    length = lengths(state)
    right, left, inside = (state["entered"] == c for c in (1, 2, -1))
    assert torch.allclose(length[right], torch.tensor(1.0), atol=0.01)
    assert torch.allclose(length[left], torch.tensor(2.0), atol=0.01)
    assert bool(length[inside].isinf().all())
    assert bool((state["far"][right] > 1).all())
    assert bool(((state["far"][inside] <= 1) & (state["far"][inside] >= -2)).all())
    assert right.any()
    assert left.any()


def test_questions_are_one_a_walk_and_halvings_for_those_that_leave():
    look = Line(5)
    state = walk(look, Exits(walks=7, halvings=3))
    left = (state["entered"] >= 0).reshape(5, 7).sum(1)
    assert look.asked.tolist() == (7 + 3 * left).tolist()


def test_walks_follow_differences_of_codes():
    codes = Library(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    state = walk(Line(4), Exits(codes=codes, walks=50, reach=2.0))
    assert set((state["far"].abs() / 2**0.5).round(decimals=4).flatten().tolist()) <= {0.0, 1.0}


def test_a_limit_ends_it():
    look = Line(2, limit=5)
    walk(look, Exits(walks=5))
    assert look.asked.tolist() == [5, 5]


def test_the_state_survives_saving():
    one, two = (
        walk(Line(2), Exits()),
        walk(Line(2), Exits(), through=lambda state: load(save(state))),
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
