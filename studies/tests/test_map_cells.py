"""Cells with accepted failures: what counts, and a search without a memory."""

import torch

import hardcase as hc
from hardcase.analysis.maps import grid_of
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, Verdicts
from hardcase_studies.lab import Lab
from hardcase_studies.map_cells import (
    ARMS,
    MAP,
    PRIMARY,
    RandomCodes,
    _accepted,
    _campaign,
    _table,
)


def method():
    return hc.Method(
        name="random",
        space=hc.spaces.Pixels(hc.spaces.Linf(0.5)),
        search=RandomCodes(spread=0.5),
        objective=hc.objectives.Margin(),
        oracle=hc.oracles.LeavesLabel(),
        until="budget",
        budget=Budget(queries=40),
    )


def test_only_accepted_findings_fill_a_cell():
    images = toy_images(8)
    found = hc.search(toy_subject(), images, method=method())
    assert len(found) > 1
    grid = grid_of("brightness:4,contrast:4", images)

    def cells(*words):
        said = [words[i % len(words)] for i in range(len(found))]
        return _accepted(lambda pairs: Verdicts(said), grid, images, found)

    every = cells("kept")
    some = cells("kept", "lost")
    assert some <= every <= set(range(16))
    assert some
    assert cells("lost", "unsure", "foreign") == set()


def test_the_goal_is_compared_with_the_arm_that_differs_by_the_map_alone():
    """Twice the cells of SINVAD is no goal reached: another space explains it as well."""
    assert (PRIMARY, ARMS[PRIMARY]) == ("natural, again and again", (ARMS[MAP][0], False))
    cells = {arm: [10.0, 11.0, 12.0, 11.0] for arm in ARMS} | {MAP: [20.0, 21.0, 22.0, 21.0]}
    asked = {arm: [400.0] * 4 for arm in ARMS}
    for ours, word in (
        ([20.0, 21.0, 22.0, 21.0], "not reached"),
        ([40.0, 42.0, 50.0, 45.0], "reached"),
    ):
        rows = _table({**cells, MAP: ours}, asked, "stroke:12", 12, 32, []).rows
        assert rows[1][0].startswith(PRIMARY)
        assert rows[1][2].endswith(f"goal 2 {word}")
        assert not any("reached" in str(row[2]) for row in rows if not row[0].startswith(PRIMARY))


def test_every_arm_searches_with_the_witnesses_it_is_given(bench):
    here = Lab(bench())
    witnesses = (here.network("lenet1", seed=7)[0],)
    grid = grid_of("brightness:4,contrast:4", here.test)
    images = here.test.take(torch.arange(2))
    for text in (None, "brightness:4,contrast:4"):
        made = _campaign(here, images, PRIMARY, "natural", text, grid, witnesses, 0)
        assert made.witnesses == witnesses
        assert made.keep.place is grid
