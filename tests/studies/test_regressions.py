"""The spoilt version: only digits that lean right are taught wrongly."""

import torch

from hardcase.types import Images
from hardcase_studies.regressions import WRONG, _spoilt


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
