"""Runs of drawn digits and studies of them."""

from __future__ import annotations

import pytest
from asking import METHODS, NAMES, Browsing
from drawn import drawn_run, judge


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Runs by method; all on the same seeds, that of sinvad judged."""
    folder = tmp_path_factory.mktemp("runs")
    for i, name in enumerate(METHODS):
        strength = (0.1 + 0.08 * i, 0.2 + 0.08 * i)
        drawn_run(folder / name, method=name, per_seed=2, strength=strength)
    for name in NAMES:
        run = drawn_run(folder / name, method=name, seed=3, per_seed=3)
        if name == "sinvad":
            judge(run)
    return folder


@pytest.fixture
def make(runs, tmp_path):
    """Make a study of a design; the runs it needs are chosen."""
    from hardcase_study import new

    def made(design="label", **options):
        folders = {
            "sinvad": NAMES,
            "argus": METHODS,
            "rank": METHODS[:3],
            "compare": METHODS[:3],
            "fault": NAMES,
        }.get(design, ("sinvad",))
        if design == "fault":
            options = {"thing": "the stroke", "arms": ("faulty", "clean", "placebo"), **options}
        name = options.pop("name", design)
        return new([runs / one for one in folders], design, tmp_path / name, **options)

    return made


@pytest.fixture
def browse():
    return Browsing
