"""Regression: the oracle, counts with groups, and an excess that chance does not have."""

import math

import pytest
import torch

from hardcase.analysis.references import Changed, Regression, changed, excess
from hardcase.errors import HardcaseError
from hardcase.oracles import LeavesLabel
from hardcase.randomness import stream
from hardcase.statistics import mcnemar
from hardcase.types import Oracle, Probe, Seeds

RIGHT, WRONG, EVEN = [4.0, 0.0], [0.0, 4.0], [1.0, 1.0]


def probe(subject, *peers):
    m = len(subject)
    z = torch.zeros(m, 1, 2, 2)
    origin = Seeds(z, z, torch.zeros(m, dtype=torch.int64), torch.arange(m))
    return Probe(z, z, torch.tensor(subject), origin, tuple(torch.tensor(peer) for peer in peers))


def test_old_right_new_wrong_and_witnesses_agree():
    subject = [WRONG, WRONG, RIGHT, WRONG, WRONG, EVEN]
    old = [RIGHT, WRONG, RIGHT, RIGHT, EVEN, RIGHT]
    witness = [RIGHT, RIGHT, RIGHT, WRONG, RIGHT, RIGHT]
    seen = probe(subject, old, witness)
    assert isinstance(Regression(), Oracle)
    assert Regression()(seen).tolist() == [True, False, False, False, False, False]
    assert Regression()(probe(subject, old)).tolist() == [True, False, False, True, False, False]
    assert bool((Regression()(seen) <= LeavesLabel()(seen)).all()), "only what leaves the label"
    with pytest.raises(HardcaseError, match="--baseline"):
        Regression()(probe(subject))


def test_inputs_are_told_apart_with_groups():
    before = torch.tensor([1, 1, 0, 0, 0, 0, 1], dtype=torch.bool)
    after = torch.tensor([0, 1, 1, 1, 1, 0, 0], dtype=torch.bool)
    alone = changed(before, after)
    assert (alone.fixed, alone.still, alone.newly, alone.right) == (2, 1, 3, 1)
    assert alone.p == mcnemar(3, 2).p
    assert alone.groups == (2, 3, 2)
    together = changed(before, after, group=list("aabbbcb"))
    assert together.groups == (1, 1, 1), "three newly failing of one group are one that got worse"
    assert together.p_groups == 1.0
    said = together.record()
    assert (said["newly_failing"]["hits"], said["newly_failing"]["total"]) == (3, 4)
    assert (said["fixed"]["hits"], said["fixed"]["total"]) == (2, 3)
    assert isinstance(together, Changed)
    with pytest.raises(HardcaseError, match="groups"):
        changed(before, after, group=["a"])


def sides(scale, name, count=300, seed=0):
    """Severities as a strong search gives them: something is found for every seed."""
    drawn = torch.empty(count).exponential_(1, generator=stream(seed, name)) * scale
    return {f"s{i}": value for i, value in enumerate(drawn.tolist())}


def test_a_regression_is_what_exceeds_both_nulls():
    nulls = {"a retraining": sides(1.0, "null"), "swapped": sides(2.0, "swap")}
    found = excess(sides(0.5, "found"), nulls, rng=stream(0))
    assert found.shown
    assert found.value.value == pytest.approx(found.found - found.nulls["a retraining"])
    assert 0.15 < found.value.value < 0.35, "the largest gap between the two is 25 points"
    assert all(0.3 < limit < 1.5 for limit in found.limits)
    assert found.value.low < found.value.value < found.value.high
    assert found.p < 1e-6
    assert found.seeds == 300
    assert "a regression" in str(found)


def test_where_nothing_got_worse_none_is_shown():
    shown = 0
    for i in range(60):
        found, one, other = (sides(1, name, seed=i) for name in "abc")
        shown += excess(found, {"b": one, "c": other}, rng=stream(i)).shown
    assert shown <= 3


def test_a_search_that_finds_nothing_or_everything_at_once_shows_nothing():
    never = {str(i): math.inf for i in range(9)}
    nothing = excess(never, {"swapped": never}, rng=stream(0))
    assert (nothing.found, nothing.shown) == (0.0, False)
    always = dict.fromkeys(never, 0.5)
    everything = excess(always, {"swapped": always}, rng=stream(0))
    assert (everything.value.value, everything.shown) == (0.0, False)
    assert "within severity 0.50" in str(everything)


def test_only_seeds_that_all_attempted_count_and_a_null_is_needed():
    found = dict.fromkeys("abcdef", 0.1)
    one = excess(found, {"swapped": dict.fromkeys("cdefgh", 0.9)}, rng=stream(0))
    assert one.seeds == 4
    assert (one.found, one.nulls) == (1.0, {"swapped": 0.0})
    with pytest.raises(HardcaseError, match="without a null"):
        excess(found, {}, rng=stream(0))
    with pytest.raises(HardcaseError, match="at least 4"):
        excess(found, {"swapped": {"a": 0.1}}, rng=stream(0))
