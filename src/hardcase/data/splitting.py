"""One fixed division into train and test for data that comes without one."""

from __future__ import annotations

import hashlib

import numpy as np

from hardcase.data.formats import Bytes, Labels

TEST_SHARE = 0.2


def split_rows(x: Bytes, y: Labels, split: str) -> Labels:
    """The rows of one split: in each class, the fifth of the images with the lowest content hashes is the test part.

    Only pixels and labels count: names, order and place on the disk do not move an image, and equal images of a class are
    never divided. Every class has at least one test image; a class of a single image has no other.
    """
    hashes = np.array([hashlib.sha256(image.tobytes()).hexdigest() for image in x], dtype="S64")
    test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        _, order = np.unique(hashes[rows], return_inverse=True)
        different = int(order.max()) + 1
        test[rows] = order < max(1, round(TEST_SHARE * different))
    return np.flatnonzero(test if split == "test" else ~test).astype(np.int64)
