"""Each attack of `old_attacks` holds no more. With the code of f841173 each of these fails."""

import subprocess
import sys
from pathlib import Path

import old_attacks
import pytest

NAMES = sorted(old_attacks.ATTACKS)
PARTS = 6
"""Processes that the programs are forked from: each loads what all of them need once."""


SHORT = 3
"""Parts that `make test` runs; the others take as long again and are run by `make torture`."""


@pytest.mark.parametrize(
    "part", [*range(SHORT), *(pytest.param(n, marks=pytest.mark.long) for n in range(SHORT, PARTS))]
)
def test_old_attacks_hold_no_more(part):
    names = NAMES[part::PARTS]
    line = [sys.executable, str(Path(old_attacks.__file__)), "", *names]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    found = [row.split(" | ") for row in done.stdout.splitlines()]
    assert [row[0] for row in found] == names, done.stderr
    assert [row for row in found if row[-1].strip()] == []


def test_what_each_said_then_is_stored():
    assert all(attack.then and attack.where for attack in old_attacks.ATTACKS.values())
