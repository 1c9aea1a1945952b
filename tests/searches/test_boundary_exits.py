"""Ways out on a line whose borders are known."""

import torch
from landscapes import Landscape, flat_seeds, walk

from hardcase.searches.boundary import Exits, lengths
from hardcase.spaces.latent import Library


class Line(Landscape):
    """Class 1 right of 1, class 2 left of -2, class 0 between."""

    def __init__(self, count, limit=10**6):
        super().__init__(flat_seeds(count, 1), limit)

    def answers(self, z, rows):
        predicted = torch.where(z[:, 0] > 1, 1, torch.where(z[:, 0] < -2, 2, 0))
        return z[:, 0], predicted != 0, predicted


def test_every_walk_ends_at_the_border_it_crosses():
    state = walk(Exits(walks=40, halvings=12), Line(3))
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
    evaluate = Line(5)
    state = walk(Exits(walks=7, halvings=3), evaluate)
    left = (state["entered"] >= 0).reshape(5, 7).sum(1)
    assert evaluate.asked.tolist() == (7 + 3 * left).tolist()


def test_walks_follow_differences_of_codes():
    codes = Library(torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1]))
    state = walk(Exits(codes=codes, walks=50, reach=2.0), Line(4))
    assert set((state["far"].abs() / 2**0.5).round(decimals=4).flatten().tolist()) <= {0.0, 1.0}
