"""Which files together hold a public data set, and how they become images and labels."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hardcase.data.formats import Part, read_cifar_rows, read_idx_pair, read_json_labels
from hardcase.data.splitting import split_rows

Parts = dict[str, Part]
"""Images and labels of each split."""


@dataclass(frozen=True, slots=True)
class Form:
    """A set of files that together hold a data set, and how to read them. A file may also be gzipped, with ``.gz``."""

    files: tuple[str, ...]
    read: Callable[[Mapping[str, Path]], Parts]


def idx(train: str, test: str, *, first_label: int = 0, turned: bool = False) -> Form:
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    names = {"train": [f"{train}-{kind}" for kind in kinds], "test": [f"{test}-{kind}" for kind in kinds]}

    def read(files: Mapping[str, Path]) -> Parts:
        return {
            split: read_idx_pair(files[images], files[labels], first_label=first_label, turned=turned)
            for split, (images, labels) in names.items()
        }

    return Form((*names["train"], *names["test"]), read)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def batches(suffix: str, read: Callable[[Path], Part]) -> Form:
    train, test = [f"{name}{suffix}" for name in _BATCHES], f"test_batch{suffix}"

    def read_all(files: Mapping[str, Path]) -> Parts:
        parts = [read(files[name]) for name in train]
        return {
            "train": (np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])),
            "test": read(files[test]),
        }

    return Form((*train, test), read_all)


def _read_rows(files: Mapping[str, Path]) -> Parts:
    train = np.concatenate([read_cifar_rows(files[f"{name}.png"]) for name in _BATCHES])
    labels = {split: read_json_labels(files[f"{split}_lables.json"]) for split in ("train", "test")}
    return {"train": (train, labels["train"]), "test": (read_cifar_rows(files["test_batch.png"]), labels["test"])}


PIXEL_ROWS = Form(
    (*(f"{n}.png" for n in _BATCHES), "test_batch.png", "train_lables.json", "test_lables.json"), _read_rows
)


def _read_5k(files: Mapping[str, Path]) -> Parts:
    """784 pixels and the digit in each line."""
    rows = np.loadtxt(io.BytesIO(files["mnist_5k.csv"].read_bytes()), delimiter=",", dtype=np.uint8)
    x, y = np.ascontiguousarray(rows[:, :-1].reshape(-1, 1, 28, 28)), rows[:, -1].astype(np.int64)
    picked = {split: split_rows(x, y, split) for split in ("train", "test")}
    return {split: (x[chosen], y[chosen]) for split, chosen in picked.items()}


DIGITS_5K = Form(("mnist_5k.csv",), _read_5k)
