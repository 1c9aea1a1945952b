"""Differences of paired shares against Newcombe's table, and against what they promise."""

import numpy as np
import pytest
import torch

from hardcase.errors import HardcaseError
from hardcase.statistics import newcombe_paired
from tiny import check_coverage, holds


def rows(both, one, other, neither):
    first = [1] * both + [1] * one + [0] * other + [0] * neither
    second = [1] * both + [0] * one + [1] * other + [0] * neither
    return torch.tensor(first).bool(), torch.tensor(second).bool()


def test_paired_differences_as_in_newcombes_table():
    ours = newcombe_paired(*rows(36, 12, 2, 0))
    assert (ours.low, ours.high) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    nothing = newcombe_paired(*rows(0, 0, 0, 200))
    assert nothing.low < 0 < nothing.high, "0 of 200 twice is not certain"
    with pytest.raises(HardcaseError, match="row by row"):
        newcombe_paired(torch.ones(2).bool(), torch.ones(3).bool())


@pytest.mark.parametrize("total", [20, 60, 200])
def test_intervals_of_paired_shares_cover_what_they_say(total):
    rng = np.random.default_rng(total)
    cells = rng.choice(4, size=(400, total), p=(0.5, 0.2, 0.1, 0.2))
    pairs = [map(torch.from_numpy, (row < 2, row % 2 == 0)) for row in cells]
    check_coverage([holds(newcombe_paired(*pair), 0.1) for pair in pairs], most=1)
