"""Every space with every search and every objective: a cell works, or one line says why it cannot."""

import os
from itertools import product

import pytest

from hardcase.types import KINDS
from hardcase_studies import crossings
from hardcase_studies.bench import Bench
from hardcase_studies.crossings import (
    OBJECTIVES,
    REASONS,
    SEARCHES,
    SPACES,
    crossed,
    method,
    run,
)

CELLS = list(product(SPACES, SEARCHES, OBJECTIVES))
WORKING = [cell for cell in CELLS if cell not in REASONS]
SOME = WORKING if os.environ.get("HARDCASE_TORTURE") == "long" else WORKING[::3]
"""Every third cell, which meets every space, search and objective; all of them in make torture."""
KIND = {
    "margin": "label",
    "coverage": "label",
    "surprise": "surprise",
    "disagreement": "disagreement",
}


@pytest.mark.parametrize("cell", SOME, ids=" x ".join)
def test_the_crossing_works(cell):
    done = crossed(*cell, seeds=4)
    budget = method(*cell).budget
    assert 1 < int(done.queries.max()) <= budget.queries
    assert int(done.gradients.max()) <= (budget.gradients or 0)
    assert (int(done.gradients.sum()) > 0) == (cell[1] == "gradient")
    found = {KINDS[kind] for kind in done.findings.kind.tolist()}
    assert found <= {
        KIND[cell[2]],
        "label",
    }  # a disagreement in which the label is left is one about the label
    if cell[2] == "surprise" or cell[1] == "interpolation" or cell[1:] == ("gradient", "margin"):
        assert done.succeeded == 4


def test_some_cells_meet_all_that_is_crossed():
    for place, names in enumerate((SPACES, SEARCHES, OBJECTIVES)):
        assert {cell[place] for cell in SOME} == set(names)


def test_every_reason_is_one_line_about_a_cell():
    assert set(REASONS) <= set(CELLS)
    assert all("\n" not in reason and len(reason) > 20 for reason in REASONS.values())
    assert len(REASONS) < len(CELLS) / 10


def test_the_table_has_every_cell(tmp_path, monkeypatch):
    """One campaign stands for all of them here: each is run on its own above."""
    done = crossed(*CELLS[0], seeds=4)
    monkeypatch.setattr(crossings, "crossed", lambda *cell: done)
    outcome = run(Bench(out=tmp_path))
    cells = [cell for table in outcome.tables for row in table.rows for cell in row[1:]]
    assert len(cells) == len(CELLS)
    assert sum(cell.startswith("no: ") for cell in cells) == len(REASONS)
