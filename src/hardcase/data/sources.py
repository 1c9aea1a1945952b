"""From the words that name a data set to its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from hardcase.cache import named_path
from hardcase.data.formats import split_rows
from hardcase.data.own import (
    Table,
    check,
    numbered,
    read_folder,
    read_npz,
    read_parquet,
    read_run,
    to_images,
)
from hardcase.data.public import PUBLIC, public_part
from hardcase.errors import Problem, choice
from hardcase.types import Images

# --- What an image set holds, and what about it deserves a warning.


def describe(images: Images) -> dict[str, Any]:
    """Name, split, counts, shape, hash, and under ``notes`` what a user should know before testing with it."""
    counts = torch.bincount(images.y, minlength=len(images.classes)).tolist()
    return {
        "name": images.name,
        "split": images.split,
        "images": len(images),
        "shape": list(images.x.shape[1:]),
        "classes": list(images.classes),
        "per_class": dict(zip(images.classes, counts)),
        "hash": images.hash,
        "notes": _notes(images, counts),
    }


def _notes(images: Images, counts: list[int]) -> list[str]:
    present = [name for name, count in zip(images.classes, counts) if count]
    empty = [name for name, count in zip(images.classes, counts) if not count]
    notes = []
    if len(present) == 1:
        notes.append(
            f"all {len(images)} images belong to one class, {present[0]!r}: accuracy and confusions say little."
        )
    elif empty:
        notes.append(
            f"{len(empty)} of {len(counts)} classes have no images: {', '.join(empty[:10])}."
        )
    if len(images) and int(images.x.max()) == int(images.x.min()):
        notes.append("all pixels have the same value.")
    return notes


# --- From the words that name a data set to its images.

SPLITS = ("train", "test")


def _read_csv(path: Path, options: dict[str, str], split: str) -> Table:
    from hardcase.data.readers import read_csv

    return read_csv(path, options, split)


Reader = Callable[[Path, dict[str, str], str], Table]
READERS: Mapping[str, Reader] = {
    "folder": read_folder,
    "npz": read_npz,
    "parquet": read_parquet,
    "run": read_run,
    "csv": _read_csv,
}
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "folder": {"labels": ("folder", "prefix"), "split": ("all",), "resize": (), "crop": ()},
    "csv": {"split": ("all",), "resize": (), "crop": ()},
    "npz": {"split": ("all",)},
    "parquet": {"split": ("all",)},
    "run": {},
}


def load(spec: str, *, split: str = "test", offline: bool = False) -> Images:
    """The images that `spec` names: ``mnist5k``, ``mnist``, ``fashion``, ``cifar10``, ``emnist``, ``folder:PATH``,
    ``npz:PATH``, ``parquet:PATH`` or ``run:RUN``.

    Data of one's own that comes without a split is divided 80 : 20 by content, always in the same way; with ``?split=all``
    either split is everything. With `offline` no network is touched. The name of the images is `spec`, which loads them again.
    """
    if split not in SPLITS:
        raise choice("split", split, SPLITS)
    if spec in PUBLIC:
        x, y = public_part(PUBLIC[spec], split, offline=offline)
        table = Table(
            x=x, y=y, id=numbered(f"{spec}/{split}", len(y)), classes=PUBLIC[spec].classes
        )
        return to_images(table, name=spec, split=split)
    kind, path, options = parse(spec)
    if not path.exists():
        raise Problem(
            f"{path} does not exist.",
            f"Looked from {Path.cwd()}.",
            fix=f"{kind}:PATH with a path that exists",
        )
    part = "all" if kind == "run" else options.get("split", split)
    return to_images(read_own(kind, path, options, part), name=spec, split=part)


def read_own(kind: str, path: Path, options: dict[str, str], part: str) -> Table:
    """The train part, the test part or all of the user's own data."""
    table = READERS[kind](path, options, part)
    check(table, f"the {part} part of {path}" if table.divided and part != "all" else str(path))
    if not table.divided and part != "all":
        table = table.take(split_rows(table.x, table.y, part))
        if not len(table.y):
            raise Problem(
                f"the {part} part of {path} is empty: no class has more than one image.",
                "Without a split of its own, a fifth of each class (at least one image) is for testing.",
                fix=f"{kind}:{path}?split=all uses everything for both",
            )
    return table


def parse(spec: str) -> tuple[str, Path, dict[str, str]]:
    """``KIND:PATH?option=value&...`` in its parts."""
    kind, colon, rest = spec.partition(":")
    if not colon or kind not in READERS:
        raise _unknown(spec)
    text, _, query = rest.partition("?")
    if not text:
        raise Problem(f"{spec!r} names no path.", fix=f"{kind}:PATH")
    options = {}
    for word in filter(None, query.split("&")):
        key, _, value = word.partition("=")
        if key not in OPTIONS[kind]:
            raise choice(f"option of {kind}:", key, tuple(OPTIONS[kind]))
        if OPTIONS[kind][key] and value not in OPTIONS[kind][key]:
            raise choice(f"value of ?{key}=", value, OPTIONS[kind][key])
        options[key] = value
    return kind, named_path(text), options


def _unknown(spec: str) -> Problem:
    known = (*PUBLIC, *(f"{kind}:PATH" for kind in READERS))
    path = named_path(spec)
    if not path.exists():
        return choice("data set", spec, known)
    kind = "folder" if path.is_dir() else path.suffix.lstrip(".")
    return Problem(
        f"{spec!r} is a path; say what kind of data it is.",
        f"known: {', '.join(known)}",
        fix=f"{kind}:{spec}",
    )
