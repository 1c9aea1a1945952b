"""Mixed labels: how many, which, and the smaller share inside the larger."""

import pytest

from hardcase.errors import Problem
from hardcase.experiments.pollution import pollute
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
