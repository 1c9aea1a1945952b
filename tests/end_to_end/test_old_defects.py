"""Each defect of `old_defects` is gone. With the code of f841173 each of these fails."""

from pathlib import Path

import pytest
from old_defects import DEFECTS, outcome

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", DEFECTS)
def test_an_old_defect_is_gone(name, tmp_path):
    code, said = outcome(DEFECTS[name], ROOT, tmp_path)
    assert (code, said) == (0, "sound")
