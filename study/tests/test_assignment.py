from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hardcase.errors import HardcaseError
from hardcase_study.assignment import GAP, Sizes, assign
from hardcase_study.forms import Item


def items(count, quotas=1, seeds=None, checks=3):
    main = [
        Item(f"m{i}", "label", ("x",), unit=f"s{i % (seeds or count)}", quota=f"q{i % quotas}")
        for i in range(count)
    ]
    again = [Item(f"r{i}", "label", ("x",), use="repeat", repeats=f"m{i}") for i in range(count)]
    tests = [
        Item(f"c{i}", "label", ("x",), use="attention", unit=f"c{i}") for i in range(2 * checks)
    ]
    return main + again + tests


@given(
    st.integers(1, 40),
    st.integers(2, 25),
    st.integers(0, 3),
    st.integers(0, 2),
    st.integers(5, 90),
    st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_lists_are_balanced_and_nobody_sees_an_item_twice(
    raters, own, checks, repeats, count, seed
):
    sizes = Sizes(raters, own + checks + repeats, checks, repeats)
    lists = assign(items(count), sizes, np.random.default_rng(seed))
    assert len(lists) == raters
    votes = Counter({f"m{i}": 0 for i in range(count)})
    for one in lists:
        assert len(set(one)) == len(one)
        main = [name for name in one if name[0] == "m"]
        assert len(main) == min(own, count)
        assert sum(name[0] == "c" for name in one) == checks
        votes.update(main)
        assert max(votes.values()) - min(votes.values()) <= 1
        for name in one:
            if name[0] == "r":
                first = one.index(f"m{name[1:]}")
                assert one.index(name) > first


def test_repeats_come_well_after_the_first_time():
    lists = assign(items(60), Sizes(12, 33, 3, 4), np.random.default_rng(0))
    gaps = [one.index(n) - one.index(f"m{n[1:]}") for one in lists for n in one if n[0] == "r"]
    assert len(gaps) == 12 * 4
    assert min(gaps) >= GAP


def test_every_rater_gets_as_much_of_each_quota():
    lists = assign(items(90, quotas=3), Sizes(20, 33, 3), np.random.default_rng(0))
    for one in lists:
        counts = Counter(int(name[1:]) % 3 for name in one if name[0] == "m")
        assert set(counts.values()) == {10}


def test_a_rater_sees_a_seed_once_while_there_are_others():
    lists = assign(items(120, seeds=60), Sizes(8, 33, 3), np.random.default_rng(1))
    for one in lists:
        units = [int(name[1:]) % 60 for name in one if name[0] == "m"]
        assert len(set(units)) == len(units)


def test_orders_differ_from_rater_to_rater_and_follow_from_the_seed():
    first, again, other = (
        assign(items(30), Sizes(5, 33, 3), np.random.default_rng(seed)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert len({tuple(one) for one in first}) == 5


def test_sizes_that_leave_nothing_are_refused():
    with pytest.raises(HardcaseError, match="leave nothing to ask"):
        Sizes(12, 3, 3)
    with pytest.raises(HardcaseError, match="leave nothing to ask"):
        Sizes(0, 33, 3)
