"""The new versions: each is worse in the way that its name says, and in no other."""

import torch

from hardcase.types import Images
from hardcase_studies.regressions import RARE, SCARCE, WRONG, _poor, _prune, _spoilt


def test_about_half_of_those_leaning_right_are_spoilt():
    count = 300
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for i in range(count):
        for row in range(6, 22):
            left = 14 + (i % 3 - 1) * (14 - row) // 4
            x[i, 0, row, left : left + 3] = 220
    train = Images(x, torch.arange(count) % 10, tuple(map(str, range(count))), tuple("0123456789"))
    changed = _spoilt(train, 0).y != train.y
    lean = torch.arange(count) % 3
    assert int(changed[lean != 2].sum()) in (0, int(changed.sum()))
    assert 0 < int(changed.sum()) < count // 3
    assert WRONG == 0.5


def test_the_forgetful_version_sees_few_of_the_rare_classes():
    count = 400
    x = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    train = Images(x, torch.arange(count) % 10, tuple(map(str, range(count))), tuple("0123456789"))
    kept = _poor(train).y.bincount(minlength=10).tolist()
    assert [kept[rare] for rare in RARE] == [count // 10 // SCARCE] * len(RARE)
    assert kept[:8] == [count // 10] * 8


def test_the_pruned_version_loses_its_smallest_weights():
    net = torch.nn.Linear(10, 10)
    before = net.weight.detach().clone()
    bias = net.bias.detach().clone()
    _prune(net, 0.5)
    gone = net.weight == 0
    assert int(gone.sum()) == 50
    assert float(before[gone].abs().max()) < float(before[~gone].abs().min())
    assert bool((net.bias == bias).all())
