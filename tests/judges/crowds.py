"""Made crowds: findings with a judge's log-odds, and what people say of them."""

import numpy as np
from scipy.special import expit

from hardcase.judges.asking import Asking, FindingPopulation


def crowd(rng, size, *, attempted=None, spread=1.5, shift=-0.4, slope=0.8):
    """A population whose judge ranks well but is not calibrated, and the answers about it."""
    odds = rng.normal(1.3, spread, size)
    kept = rng.random(size) < expit(slope * odds + shift)
    looks = rng.normal(size=(size, 8))
    names = tuple(f"f{i}" for i in range(size))
    return FindingPopulation(names, odds, 0.6, attempted or size, looks=looks), kept


def played(people, kept, *, budget, limit=None, seed=0):
    """A session that is answered to its end."""
    asking = Asking(people, budget, limit, seed)
    while (draw := asking.draw()) is not None:
        asking.answer(draw.number, bool(kept[draw.row]))
    return asking


def at_stopping(crowds, *, size, budget, attempted=None, limit=None, first=0):
    """For many crowds: whether the interval holds when one stops, the error, and the answers."""
    holds, errors, answers = [], [], []
    for number in range(first, first + crowds):
        people, kept = crowd(
            np.random.default_rng((11, number)),
            size,
            attempted=attempted,
            shift=(-0.4, -1.5, 0.6)[number % 3],
            slope=(0.8, 0.1, 1.2)[number // 3 % 3],  # also a judge that knows nothing
        )
        end = played(people, kept, budget=budget, limit=limit, seed=number).standing()
        truth = kept.sum() / people.attempted
        holds.append(end.low - 1e-9 <= truth <= end.high + 1e-9)
        errors.append(end.value - truth)
        answers.append(end.answers)
    return np.array(holds), np.array(errors), np.array(answers)
