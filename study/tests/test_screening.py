import pytest

from hardcase_study import Study, simulate
from hardcase_study.answers import Answers
from hardcase_study.forms import Item
from hardcase_study.screening import consistent, passed, screen


@pytest.mark.parametrize("design", ["label", "likert", "same", "fault", "sinvad"])
def test_cheats_are_flagged_and_others_are_not(make, design):
    study = make(design, raters=20, repeats=2)
    simulate(study, cheats=0.2, seed=1)
    found = screen(study, Answers(study.folder).all())
    fast = [one for one in found if one.seconds < 0.8]
    assert len(fast) == 4
    assert all(one.flags for one in fast)
    assert sum(bool(one.flags) for one in found if one not in fast) <= 2


def test_checks_by_form():
    two = Item("i", "resemble", ("a",), labels=("3", "5"), truth=("second", "first"))
    assert passed(two, {"first": "2", "second": "4"})
    assert not passed(two, {"first": "4", "second": "4"})
    ranked = Item("i", "rank", ("a", "b"), truth=("order", "b"))
    assert passed(ranked, {"order": ["b", "a"]})
    assert not passed(ranked, {"order": ["a", "b"]})
    assert passed(Item("i", "scale", ("a",), truth=("score", "3")), {"score": "4"})
    assert not passed(Item("i", "label", ("a",), truth=("label", "3")), {"label": "unsure"})


def test_a_twin_has_other_ids_and_scales_may_move_by_one():
    one, two = Item("i", "rank", ("a", "b")), Item("j", "rank", ("x", "y"), repeats="i")
    assert consistent(one, two, {"order": ["b", "a"]}, {"order": ["y", "x"]})
    assert not consistent(one, two, {"order": ["b", "a"]}, {"order": ["x", "y"]})
    first, again = Item("i", "scale", ("a",)), Item("j", "scale", ("x",), repeats="i")
    assert consistent(first, again, {"score": "3"}, {"score": "4"})
    assert not consistent(first, again, {"score": "3"}, {"score": "5"})


def test_nobody_yet(make):
    study = make()
    assert screen(Study.open(study.folder), []) == []
