"""Cells with confirmed failures: what counts, and a search without a memory."""

import hardcase as hc
from hardcase.analysis.maps import grid_of
from hardcase.testing.toys import toy_images, toy_subject
from hardcase.types import Budget, Verdicts
from hardcase_studies.map_cells import ARMS, RandomCodes, _confirmed


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


def test_only_confirmed_findings_fill_a_cell():
    found = hc.search(toy_subject(), toy_images(8), method=method())
    assert len(found) > 1
    grid = grid_of("brightness:4,contrast:4", toy_images(8))
    half = [i % 2 == 0 for i in range(len(found))]
    yes = [True] * len(found)
    every = _confirmed(lambda findings: Verdicts(yes, yes), grid, found)
    some = _confirmed(lambda findings: Verdicts(half, yes), grid, found)
    none = _confirmed(lambda findings: Verdicts([None] * len(found), yes), grid, found)
    assert some <= every
    assert none == set()
    assert every <= set(range(16))


def test_arms_name_the_rivals():
    assert {"sinvad", "map (natural)", "random (natural)"} <= set(ARMS)
