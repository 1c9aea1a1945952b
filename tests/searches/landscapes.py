"""Evaluators that are a function of the code: what a search asks is known, and what it should find."""

import torch

from hardcase.randomness import Rng
from hardcase.types import Feedback, Seeds
from tiny import BlackBox


def flat_seeds(count, width):
    """Seeds of class 0 at the origin."""
    images = torch.zeros(count, 1, 2, 2)
    return Seeds(torch.zeros(count, width), images, torch.zeros(count).long(), torch.arange(count))


class Landscape(BlackBox):
    """Keeps every evaluation; `answers` gives score, failure and predicted class of each row."""

    def __init__(self, seeds, limit=10**6):
        super().__init__(len(seeds), limit)
        self.seeds = seeds
        self.seen = []

    def __call__(self, z, rows, targets=None):
        self.seen.append((z.clone(), rows.clone()))
        self.count(rows)
        score, failed, predicted = self.answers(z, rows)
        return Feedback(z, score, failed, predicted, score * 0, torch.ones_like(failed))


def walk(search, evaluate):
    """Run a search to its end."""
    rng = Rng.numbered(0, "walk", len(evaluate.seeds))
    state = search.init(evaluate.seeds, rng)
    while bool(evaluate.live.any()):
        state = search.step(state, evaluate, rng)
    return state
