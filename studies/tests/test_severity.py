"""Crossings beside a fine grid: the nearest place where a seed starts to fail, and the first."""

import torch

from hardcase.analysis.curves import Crossings, Curve
from hardcase_studies.severity import _errors


def test_the_nearest_start_of_failing_counts_and_so_does_the_first():
    severity = torch.arange(1, 7) * 0.5
    failing = torch.tensor([[0, 1, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]], dtype=torch.bool).T
    found = Crossings(torch.tensor([2.4, 1.9]), torch.tensor([2.6, 2.1]), 8)
    nearest, first = _errors(Curve(severity, failing), found)
    assert nearest.tolist() == [0.0, 0.0]
    assert [round(value, 6) for value in first.tolist()] == [1.5, 0.0]
