"""Labels of people: read with care, and the truth they amount to."""

import numpy as np
import pytest
import torch

from hardcase.errors import Problem
from hardcase.judges.calibration import read_people


def arrays(count=6, **changes):
    given = {
        "images": np.zeros((count, 8, 8), dtype=np.uint8),
        "expected": np.full(count, 2),
        "predicted": np.arange(count) % 3,
        "generator": np.array([f"g{i % 2}" for i in range(count)]),
        "rater1": np.array([2, 2, 1, -1, -1, 0])[:count],
        "rater2": np.array([2, 1, 1, -1, 2, 2])[:count],
    }
    return {**given, **changes}


def read(given):
    return read_people(given, where="labels.npz", shape=(1, 8, 8), classes=3)


def test_truth_is_what_both_say_and_the_rest_is_split():
    people = read(arrays())
    assert people.x.shape == (6, 1, 8, 8)
    assert people.label_kept.tolist() == [1, -1, 0, 0, -1, -1]
    assert people.valid.tolist() == [1, 1, 1, 0, -1, 1]
    assert people.confirmed.tolist() == [True, False, False, False, False, False]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"images": np.zeros((6, 9, 9), dtype=np.uint8)}, "was made for"),
        ({"images": np.zeros((6, 8, 8))}, "float64"),
        ({"rater1": np.full(6, 3)}, "rater1 runs from 3 to 3"),
        ({"expected": np.full(6, -1)}, "expected runs from -1"),
        ({"rater2": np.zeros(5)}, "rater2 5"),
    ],
)
def test_what_does_not_fit_is_refused(changes, word):
    with pytest.raises(Problem, match=word):
        read(arrays(**changes))


def test_a_missing_array_is_named_with_the_format():
    given = arrays()
    del given["generator"]
    with pytest.raises(Problem, match="generator") as raised:
        read(given)
    assert "rater2" in str(raised.value)


def test_colour_images_may_have_their_channels_last():
    given = arrays(images=np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8))
    people = read_people(given, where="x", shape=(3, 8, 8), classes=3)
    assert torch.equal(people.x[0, 1], torch.from_numpy(given["images"][0, :, :, 1]))
