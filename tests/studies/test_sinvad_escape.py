"""Mixed labels: how many, which, the smaller share inside the larger; and who notices."""

import pytest

from hardcase.errors import Problem
from hardcase_studies import sinvad_escape
from hardcase_studies.sinvad_escape import pollute
from tiny import bars


def test_the_share_of_both_classes_is_mixed_and_nothing_else():
    images = bars(120, classes=3)
    mixed = pollute(images, (0, 2), 0.25)
    changed = images.y != mixed.y
    assert int((changed & (images.y == 0)).sum()) == int((changed & (images.y == 2)).sum()) == 10
    assert set(mixed.y[changed & (images.y == 0)].tolist()) == {2}
    assert not bool(changed[images.y == 1].any())
    assert mixed.hash != images.hash


def test_a_smaller_share_lies_inside_a_larger_one():
    images = bars(120, classes=3)
    small, large = (pollute(images, (0, 1), share).y != images.y for share in (0.1, 0.3))
    assert not bool((small & ~large).any())


def test_nothing_mixed_is_the_same_data():
    images = bars(30)
    assert pollute(images, (0, 1), 0.0).hash == images.hash


def test_nonsense_is_refused():
    with pytest.raises(Problem, match="cannot be mixed"):
        pollute(bars(30), (1, 1), 0.1)


def test_rq3_measures_each_pair_at_each_share(bench, written):
    ready = bench(pairs=[[0, 1]], shares=[0.05, 0.1, 0.4, 0.5], attempts=8, walks=5)
    outcome = sinvad_escape.run(ready)
    correlations, rates = outcome.tables
    names = [sinvad_escape.OURS, sinvad_escape.FLOOR, sinvad_escape.GENETIC, sinvad_escape.ERROR]
    assert [row[0] for row in correlations.rows] == [row[1] for row in rates.rows] == names
    by_name = {row[1]: row[2:] for row in rates.rows}
    assert by_name[sinvad_escape.FLOOR] == sorted(by_name[sinvad_escape.FLOOR])
    assert max(by_name[sinvad_escape.ERROR]) > 0.1, (
        "half of the labels mixed must show in the test error"
    )
    assert "detection.png" in written(outcome, ready)


def test_rq3_refuses_pairs_that_the_data_does_not_have(bench):
    with pytest.raises(Problem, match="do not fit"):
        sinvad_escape.run(bench())
