from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hardcase.data.formats import split_rows


def make(labels: list[int], contents: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(contents, np.uint8).reshape(-1, 1, 1, 1).repeat(4, axis=2), np.array(
        labels, np.int64
    )


rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=60)


@settings(max_examples=60, deadline=None)
@given(rows, st.randoms(use_true_random=False))
def test_the_split_is_whole_disjoint_and_blind_to_order(
    pairs: list[tuple[int, int]], random
) -> None:
    x, y = make(*map(list, zip(*pairs)))
    train, test = split_rows(x, y, "train"), split_rows(x, y, "test")
    assert sorted([*train, *test]) == list(range(len(y)))
    content = [(int(label), int(image[0, 0, 0])) for label, image in zip(y, x)]
    assert not {content[i] for i in train} & {content[i] for i in test}
    assert {content[i][0] for i in test} == set(y.tolist())
    order = np.array(random.sample(range(len(y)), len(y)))
    assert sorted(order[split_rows(x[order], y[order], "test")]) == list(test)


def test_a_fifth_of_every_class_is_for_testing() -> None:
    x, y = make([0] * 100 + [1] * 50 + [2] * 3 + [3], [*range(100), *range(50), *range(3), 7])
    assert np.bincount(y[split_rows(x, y, "test")]).tolist() == [20, 10, 1, 1]
    assert np.bincount(y[split_rows(x, y, "train")]).tolist() == [80, 40, 2]


def test_the_split_never_changes() -> None:
    """Stored runs name their seeds by it."""
    x, y = make([0] * 20, list(range(20)))
    by_hash = sorted(range(20), key=lambda i: hashlib.sha256(bytes([i] * 4)).digest())
    assert split_rows(x, y, "test").tolist() == sorted(by_hash[:4]) == [1, 12, 18, 19]
