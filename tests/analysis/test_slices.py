"""Slices: a planted one is found, chance finds none, thirds and groups stay apart, numbers are
exact."""

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch

from hardcase.analysis import slices
from hardcase.analysis.semantics import Tags
from hardcase.analysis.slices import Rules, Slice, SliceRates, find_slices, split, stratified_p
from hardcase.errors import HardcaseError
from hardcase.randomness import Rng, stream

CLASSES = 6


def world(seed, count=1500, tags=14, *, slope=0.25):
    """Tags of which some follow the class, and a rate of failing that follows it too."""
    rng = stream(seed, "world")
    strata = torch.randint(CLASSES, (count,), generator=rng)
    lean = 0.15 + 0.5 * torch.rand(CLASSES, tags, generator=rng)
    has = torch.rand(count, tags, generator=rng) < lean[strata]
    rate = 0.1 + slope * torch.rand(CLASSES, generator=rng)
    failing = torch.rand(count, generator=rng) < rate[strata]
    names = tuple(f"tag {i}" for i in range(tags))
    return Tags(names, names, has), failing, strata


def planted(seed, which, rate=0.75, **options):
    tags, failing, strata = world(seed, **options)
    inside = tags.has[:, list(which)].all(1)
    more = torch.rand(len(failing), generator=stream(seed, "planted")) < rate
    return tags, torch.where(inside, more, failing), strata


def shuffled_within(failing, strata, rng):
    order = torch.randperm(len(failing), generator=rng)
    by_class = order[strata[order].argsort(stable=True)]
    out = torch.empty_like(failing)
    out[strata.argsort(stable=True)] = failing[by_class]
    return out


def test_chance_makes_a_slice_in_at_most_five_of_a_hundred_permutations():
    """Permuted within class, so that tags and failing still both follow the class; many more tags
    than may be carried, so that choosing and testing on the same third would show."""
    tags, failing, strata = planted(0, (2, 5), count=900, tags=40)
    rng, wrong = stream(0, "permutations"), 0
    for number in range(80):
        moved = shuffled_within(failing, strata, rng)
        assert torch.equal(torch.bincount(strata[moved]), torch.bincount(strata[failing]))
        found = find_slices(tags, moved, strata, seed=number, rules=Rules(difference=0.0))
        wrong += any(one.accepted for one in found)
    assert wrong <= 7


def test_a_planted_tag_is_the_first_slice_and_holds():
    held = accepted = 0
    for seed in range(12):
        found = find_slices(*planted(seed, (3,), rate=0.5), seed=seed)
        assert found[0].tags == ("tag 3",)
        assert found[0].accepted
        good = [s for s in found if s.accepted]
        accepted += len(good)
        held += sum(s.held for s in good)
    assert held >= 0.9 * accepted
    assert accepted <= 12 * 1.5, "a pair with the planted tag says no more than the tag"


def test_a_planted_pair_is_found_as_a_pair():
    firsts = [find_slices(*planted(seed, (2, 5), count=3000), seed=seed)[0] for seed in range(6)]
    assert [s.tags for s in firsts].count(("tag 2", "tag 5")) >= 5
    assert all(s.accepted and s.held for s in firsts)


def test_what_follows_from_the_class_alone_is_no_slice():
    """All failing is of one class, and a tag that this class nearly always has."""
    rng = stream(1, "class")
    strata = torch.randint(3, (1200,), generator=rng)
    tag = torch.rand(1200, generator=rng) < torch.tensor([0.9, 0.1, 0.1])[strata]
    failing = (torch.rand(1200, generator=rng) < 0.6) & (strata == 0)
    tags = Tags(("t",), ("t",), tag[:, None])
    assert not any(one.accepted for one in find_slices(tags, failing, strata))
    blind = find_slices(tags, failing, torch.zeros_like(strata))
    assert blind[0].accepted, "without strata it would be one"


def test_the_test_is_exact():
    """Against all ways to choose which images fail, class by class."""
    inside = torch.tensor([1, 1, 0, 0, 1, 0, 0], dtype=torch.bool)
    failing = torch.tensor([1, 0, 0, 1, 1, 0, 0], dtype=torch.bool)
    strata = torch.tensor([4, 4, 4, 4, 9, 9, 9])
    seen = int((inside & failing).sum())
    pairs = product(combinations(range(4), 2), range(4, 7))
    ways = [len({0, 1} & set(one)) + (two == 4) for one, two in pairs]
    expected = sum(way >= seen for way in ways) / len(ways)
    assert stratified_p(inside, failing, strata) == pytest.approx(expected)
    assert stratified_p(inside, torch.zeros_like(failing), strata) == 1.0
    assert stratified_p(inside[:0], failing[:0], strata[:0]) == 1.0
    alone = torch.arange(7)
    assert stratified_p(inside, failing, alone) == 1.0, "strata of one image say nothing"


def test_the_test_is_fishers_in_one_stratum():
    scipy = pytest.importorskip("scipy.stats")
    rng = stream(3, "fisher")
    for _ in range(20):
        inside, failing = (torch.rand(60, generator=rng) < 0.4 for _ in range(2))
        table = [[int((a & b).sum()) for b in (failing, ~failing)] for a in (inside, ~inside)]
        expected = scipy.fisher_exact(table, alternative="greater").pvalue
        found = stratified_p(inside, failing, torch.zeros(60, dtype=torch.int64))
        assert found == pytest.approx(expected)


def test_groups_are_never_split_and_classes_are_spread():
    rng = stream(0, "groups")
    group = torch.randint(200, (900,), generator=rng)
    strata = group % 5
    third = split(group, strata, seed=4)
    for number in range(200):
        assert len(third[group == number].unique()) <= 1
    counts = torch.stack([torch.bincount(strata[third == i], minlength=5) for i in range(3)])
    assert bool((counts.float().std(0) / counts.float().mean(0) < 0.25).all())
    named = split([f"g{i}" for i in group.tolist()], strata, seed=4)
    assert len(named.unique()) == 3
    assert not torch.equal(split(group, strata, seed=5), third)
    assert torch.equal(split(group, strata, seed=4), third)


def test_one_image_stands_for_its_group():
    number, rows = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 3, 4, 5])
    rngs = [Rng.numbered(i, "one", len(number)) for i in range(40)]
    drawn = [slices._one_each(number, rows, rng) for rng in rngs]
    assert all(sorted(number[d].tolist()) == [0, 2] for d in drawn)
    assert {d.tolist()[1] for d in drawn} == {3, 4, 5}


def test_copies_of_images_are_no_evidence():
    """Twenty copies of every image, in its group: p is as of the images alone."""
    tags, failing, strata = world(5, count=150, slope=0.4)
    many = torch.arange(150).repeat(20)
    tags, rules = replace(tags, has=tags.has[many]), Rules(support=5, difference=-1)
    copies = find_slices(tags, failing[many], strata[many], group=many, rules=rules)
    assert copies
    assert all(s.tested.total + s.tested.total_outside == 50 for s in copies)


def test_no_more_than_twenty_are_carried_and_the_rest_of_the_rules_hold():
    tags, failing, strata = planted(2, (3,))
    found = find_slices(tags, failing, strata, rules=Rules(difference=-1.0))
    assert len(found) <= 20
    assert all(s.proposed.total >= 30 for s in found)
    none = find_slices(tags, failing, strata, rules=Rules(support=2000))
    assert none == []
    single = find_slices(tags, failing, strata, rules=Rules(pairs=False))
    assert all(len(s.tags) == 1 for s in single)
    same = find_slices(Tags(tags.names, ("one",) * len(tags), tags.has), failing, strata)
    assert all(len(s.tags) == 1 for s in same), "two tags of one family are not joined"
    strict = find_slices(tags, failing, strata, rules=Rules(difference=0.9))
    assert not any(s.accepted for s in strict)


def test_what_is_printed_is_of_the_last_third():
    rates = SliceRates(41, 60, 18, 200)
    other = SliceRates(1, 1, 0, 1)
    one = Slice(("dark", "tilted"), other, other, rates, 0.001, 0.01, True)
    assert str(one).startswith("fails on 41 of 60 (68%")
    assert one.held
    assert list(one.record()["C"].values()) == [41, 60, 18, 200]
    assert not Slice(("dark",), rates, rates, SliceRates(3, 20, 18, 200), 0.001, 0.01, True).held
    assert not Slice(("dark",), rates, rates, SliceRates(0, 0, 1, 2), 0.1, 0.1, False).held


def test_what_does_not_fit_is_told():
    tags, failing, strata = world(0, count=30)
    with pytest.raises(HardcaseError, match="do not fit"):
        find_slices(tags, failing[:-1], strata[:-1])
    with pytest.raises(HardcaseError, match="groups"):
        find_slices(tags, failing, strata, group=["a"] * 7)
