"""Planted faults for slices: which pictures are taught wrongly, and permutations that stay in classes."""

import torch

from hardcase.types import Images
from hardcase_studies import slices
from hardcase_studies.slices import _by_chance, _painted, _tags, _taught
from hardcase_studies.traits import HIGH, NAMES


def digits(count=60):
    x = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    x[:, :, 6:22, 10:16] = 200
    names = tuple(map(str, range(count)))
    return Images(x, torch.arange(count) % 3, names, ("a", "b", "c"), name="strokes")


def test_only_pictures_with_a_high_trait_get_the_next_label():
    train, traits = _painted(digits(), 0, "train", copies=2)
    assert len(train) == 120
    assert len(set(train.id)) == 120
    taught = _taught(train, traits, "mark", 0)
    high = traits[:, NAMES.index("mark")] > HIGH
    assert torch.equal(taught.y[~high], train.y[~high])
    assert torch.equal(taught.y[high], (train.y[high] + 1) % 3)
    assert _taught(train, traits, None, 0) is train


def test_permutations_keep_the_failing_of_each_class(monkeypatch):
    test, _ = _painted(digits(90), 0, "test")
    failing = test.y == 1
    seen = []
    monkeypatch.setattr(slices, "find_slices", lambda tags, bad, y, seed: seen.append(bad) or [])
    said = _by_chance(_tags(test, 0), failing, test, 5, 0)
    assert said.tolist() == [False] * 5
    assert all(torch.equal(bad, failing) for bad in seen), "all of one class fail, in any order"
