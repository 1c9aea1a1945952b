"""Every command of the first pages, as typed, on every kind of model, stopped and resumed.

Which cells `make test` takes, by rule: all commands with every kind for which nothing is trained
for minutes; every stop with a network of one's own; of the other kinds one stop, `kill -9` in the
search. `make way-in` takes the whole product, and the kinds that train or need transformers.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from kinds import KINDS
from pages import ROOT, typed

WHOLE = os.environ.get("HARDCASE_AS_TYPED") == "whole"
KNOWN = {}
"""Cells that are known to fail, and why: one that does not fail is told of too."""


@cache
def cells(kind):
    """What came of the cells of one kind, in a process of their own."""
    command = [sys.executable, str(Path(__file__).parent / "cells.py"), kind]
    command.append("whole" if WHOLE else "small")
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", KINDS)
def test_every_command_of_the_pages_as_typed(name):
    kind = KINDS[name]
    if kind.missing:
        pytest.skip(f"{kind.missing} is not installed: make way-in")
    if kind.trains and not WHOLE:
        pytest.skip("trains for minutes: make way-in")
    found = cells(name)
    wrong = {one["cell"]: one for one in found if one["wrong"]}
    for cell in wrong.keys() - KNOWN.keys():
        print(f"{cell}: {wrong[cell]['wrong']}\n{wrong[cell]['said']}\n")
    assert sorted(wrong) == sorted(cell for cell in KNOWN if cell.startswith(f"{name}: "))
    assert len(found) >= len(typed()) // 2


def test_a_command_that_is_added_to_a_page_joins(tmp_path):
    page = (
        "`hardcase doctor` looks; `hardcase status RUN` too.\n```sh\nhardcase open runs/x  # see\n"
    )
    (tmp_path / "page.md").write_text(f"{page}```\n`hardcase status runs/x` and `hardcase resume`")
    found = [one.words for one in typed(tmp_path, ["page.md"])]
    assert found == [("open", "runs/x"), ("status", "runs/x")]
    verbs = {one.name for one in typed(ROOT)}
    assert {"doctor", "run", "open", "repair", "gate", "python"} <= verbs
