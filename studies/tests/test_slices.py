"""Planted faults for slices: which pictures are taught wrongly, and permutations that stay in classes."""

import torch

from hardcase.types import Images
from hardcase_studies import slices
from hardcase_studies.slices import (
    _by_chance,
    _generated,
    _of_acquired,
    _points_at,
    _tags,
    _taught,
    _without,
)
from hardcase_studies.traits import HIGH, NAMES


def digits(count=60):
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    x[:, :, 6:22, 10:16] = 200
    names = tuple(map(str, range(count)))
    return Images(x, torch.arange(count) % 3, names, ("a", "b", "c"), name="strokes")


def test_only_pictures_with_a_high_trait_get_the_next_label():
    train, traits = _generated(digits(), 0, "train", copies=2)
    assert len(train) == 120
    assert len(set(train.id)) == 120
    taught = _taught(train, traits, "mark", 0)
    high = traits[:, NAMES.index("mark")] > HIGH
    assert torch.equal(taught.y[~high], train.y[~high])
    assert torch.equal(taught.y[high], (train.y[high] + 1) % 3)
    assert _taught(train, traits, None, 0) is train


def test_permutations_keep_the_failing_of_each_class(monkeypatch):
    test, _ = _generated(digits(90), 0, "test")
    failing = test.y == 1
    seen = []
    monkeypatch.setattr(slices, "find_slices", lambda tags, bad, y, seed: seen.append(bad) or [])
    said = _by_chance(_tags(test, 0), failing, test, 5, 0)
    assert said.tolist() == [False] * 5
    assert all(torch.equal(bad, failing) for bad in seen), "all of one class fail, in any order"


def test_the_planted_measure_is_left_out_and_unacquired_faults_count_nowhere(bench, monkeypatch):
    monkeypatch.setattr(slices, "load", lambda data, split: digits(600))
    offered = []

    def failing(bench, train, traits, fault, test, number):
        high = _generated(digits(600), bench.seed, "test")[1][:, NAMES.index("mark")] > HIGH
        return high if fault == "mark" else torch.zeros(600, dtype=torch.bool)

    def found(tags, bad, y, seed):
        offered.append(set(tags.family))
        return []

    monkeypatch.setattr(slices, "_failing", failing)
    monkeypatch.setattr(slices, "find_slices", found)
    made = slices.run(bench(faults=["mark", "tint"], trainings=2, permutations=2))
    rows = {row[0]: row for row in made.tables[0].rows}
    assert rows["tint"][2:5] == ["0 of 2", "not acquired", "not acquired"]
    assert rows["mark"][2:4] == ["2 of 2", "0 of 2"]
    first = made.tables[1].rows[0]
    assert first[0].startswith("planted measure left out")
    assert first[1] == "0 of 1", "tint was not acquired, so it is no fault to be found"
    assert any("mark" not in families and "tint" in families for families in offered)


def test_a_slice_is_right_if_most_of_it_lies_where_the_fault_is():
    test, _ = _generated(digits(300), 0, "test")
    tags = _tags(test, 0)
    rest = _without(tags, "mark")
    assert "mark" not in rest.family
    assert rest.has.shape[1] == len(rest.names) < len(tags)
    region = rest.has[:, 0]
    assert _points_at(rest.names[:1], rest, region)
    assert not _points_at(rest.names[1:2], rest, region)
    assert not _points_at((), rest, region)
    assert _of_acquired(torch.tensor([True, True]), torch.tensor([True, False])) == "1 of 1"
