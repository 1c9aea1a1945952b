"""Each defect of `old_defects` is gone. With the code of f841173 each of these fails."""

from pathlib import Path

import pytest
from old_defects import DEFECTS, outcome

ROOT = Path(__file__).parents[2]


HELD_ELSEWHERE = ("interrupted", "baseline", "stored", "repair", "resume", "shrink", "killed")
"""Whole commands of many seconds, which `test_front_as_typed` and `torture` hold too, in process."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in HELD_ELSEWHERE else name
        for name in DEFECTS
    ],
)
def test_an_old_defect_is_gone(name, tmp_path):
    code, said = outcome(DEFECTS[name], ROOT, tmp_path)
    assert (code, said) == (0, "sound")
