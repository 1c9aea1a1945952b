"""Evaluators that are a function of the code: what a search asks is known, and what it should find."""

import torch

from hardcase.randomness import Rng
from hardcase.types import Feedback, Seeds


def flat_seeds(count, width):
    """Seeds of class 0 at the origin."""
    images = torch.zeros(count, 1, 2, 2)
    return Seeds(torch.zeros(count, width), images, torch.zeros(count).long(), torch.arange(count))


class Landscape:
    """Keeps every evaluation, and ends seeds that have asked `limit` times.

    `answers` gives the score, whether it fails and the predicted class of each row.
    """

    def __init__(self, seeds, limit=10**6):
        self.seeds = seeds
        self.live = torch.ones(len(seeds), dtype=torch.bool)
        self.limit = limit
        self.asked = torch.zeros(len(seeds), dtype=torch.int64)
        self.seen = []

    def __call__(self, z, rows, targets=None):
        self.seen.append((z.clone(), rows.clone()))
        self.asked += rows.bincount(minlength=len(self.asked))
        self.live &= self.asked < self.limit
        score, failed, predicted = self.answers(z, rows)
        return Feedback(z, score, failed, predicted, score * 0, torch.ones_like(failed))

    def gradient(self, z, rows, targets=None):
        raise AssertionError("asked for a gradient")

    surrogates = gradient

    def choose(self, rows, following=None):
        return {}

    def retire(self, rows):
        self.live[rows] = False


def walk(search, evaluate, rng=None, through=lambda state: state):
    """Run a search to its end; `through` is what becomes of its state after every step."""
    rng = rng or Rng.numbered(0, "walk", len(evaluate.seeds))
    state = search.init(evaluate.seeds, rng)
    while bool(evaluate.live.any()):
        state = through(search.step(state, evaluate, rng))
    return state
