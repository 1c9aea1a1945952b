"""Objectives and oracles of SINVAD's searches, row by row."""

from dataclasses import replace

import pytest
import torch

from hardcase.objectives import UNFIT, NearestFailing, NearestSplit, Surprise
from hardcase.oracles import LeavesLabel, Splits, Surprising
from hardcase.types import Probe, Seeds


def probe(own, peer, z=None, activations=None):
    own, peer = torch.tensor(own).log(), torch.tensor(peer).log()
    n = len(own)
    z = torch.zeros(n, 2) if z is None else torch.tensor(z)
    x, label = torch.zeros(n, 1, 2, 2), torch.zeros(n, dtype=torch.int64)
    origin = Seeds(torch.zeros(n, 2), x, label, torch.arange(n))
    return Probe(z, x, own, origin, (peer,), activations or {})


def test_between_two_networks_nearer_is_better_and_more_so_where_the_peer_is_right():
    rows = probe(
        [[0.4, 0.6], [0.4, 0.6], [0.4, 0.6], [0.6, 0.4]], [[0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.1]],
        z=[[1.0, 0.0], [1.0, -2.0], [1.0, 0.0], [1.0, 0.0]],
    )  # fmt: skip
    score = NearestSplit()(rows)
    assert score[0] == pytest.approx(-(2 + 0.4 - 0.9))
    assert score[1] == pytest.approx(-3 * (2 + 0.4 - 0.9))
    assert score[0] > score[2] > score[1]
    assert score[3] == -UNFIT


@pytest.mark.parametrize("width", [2, 400, 1_120, 20_384, 1_000_000])
def test_failing_beats_not_failing_at_any_dimension(width):
    """A failing code far away, one farther still, and one at the image that does not fail."""
    z = torch.stack([torch.full((width,), 3.0), torch.full((width,), 4.0), torch.zeros(width)])
    plain = probe([[0.4, 0.6], [0.4, 0.6], [0.9, 0.1]], [[0.9, 0.1]] * 3, z=z.tolist())
    origin = replace(plain.origin, z=torch.zeros(3, width))
    rows = replace(plain, origin=origin)
    for objective in (NearestFailing(LeavesLabel()), NearestSplit()):
        near, far, unfit = objective(rows).tolist()
        assert near > far > unfit > -torch.inf, objective


def test_splits_are_wrong_for_the_subject_and_right_for_the_peer():
    rows = probe([[0.4, 0.6], [0.4, 0.6], [0.6, 0.4]], [[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]])
    assert Splits()(rows).tolist() == [True, False, False]
    assert Splits()(Probe(rows.z, rows.x, rows.logits, rows.origin)).tolist() == [False] * 3


def test_surprise_is_raised_or_brought_to_a_goal():
    shown = {"relu": torch.tensor([[1.0], [5.0], [float("nan")]])}
    rows = probe([[0.5, 0.5]] * 3, [[0.5, 0.5]] * 3, activations=shown)
    first = lambda traces, label: traces[:, 0]  # noqa: E731
    highest, goal = (Surprise(first, "relu", goal) for goal in (None, 4.0))
    assert highest(rows).tolist() == [1, 5, -torch.inf]
    assert goal(rows).tolist() == [-3, -1, -torch.inf]
    assert Surprising(goal, -1.5)(rows).tolist() == [False, True, False]
    assert Surprising(highest, 1.0)(rows).tolist() == [True, True, False]
