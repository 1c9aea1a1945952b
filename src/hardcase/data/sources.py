"""From the words that name a data set to its images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hardcase.cache import named_path
from hardcase.data.files import (
    ImageSet,
    LabelledSet,
    Stream,
    content_hashes,
    peeked,
    split_by_content,
)
from hardcase.data.own import OwnData, numbered
from hardcase.data.public import PublicSet, public_part
from hardcase.errors import Problem, choice, guarded
from hardcase.registry import Part, options_of, parts, resolve
from hardcase.tensors import to_tensor
from hardcase.types import Images


def describe(images: Images) -> dict[str, Any]:
    """Name, split, counts, shape, hash, and under ``notes`` what a user should know before testing
    with it.

    Args:
        images: Any labelled images.
    """
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
            f"all {len(images)} images belong to one class, {present[0]!r}: accuracy and confusions"
            " say little."
        )
    elif empty:
        notes.append(
            f"{len(empty)} of {len(counts)} classes have no images: {', '.join(empty[:10])}."
        )
    if len(images) and int(images.x.max()) == int(images.x.min()):
        notes.append("all pixels have the same value.")
    return notes


SPLITS = ("train", "test")
Choices = Mapping[str, tuple[str, ...]]


def load(spec: str, *, split: str = "test", offline: bool = False) -> Images:
    """The images that `spec` names.

    Data of one's own that comes without a split is divided 80 : 20 by content, always in the same
    way; with ``?split=all`` either split is everything. Labels that count from 1 are said by
    ``?first=1``. The name of the images is `spec`, which loads them again.

    Args:
        spec: ``mnist5k`` or another public set, ``folder:PATH``, ``npz:PATH``, ``parquet:PATH``,
            ``run:RUN``, or ``file.py:name``: a function that returns `Images`, or a pair of them
            for training and testing.
        split: ``train`` or ``test``.
        offline: Touch no network.

    Raises:
        Problem: If there are no such data, or they cannot be read.
    """
    if split not in SPLITS:
        raise choice("split", split, SPLITS)
    tasks = {name.partition(":")[0]: row.facts.get("task") for name, row in parts("data").items()}
    kind, colon, _ = spec.partition(":")
    task = tasks.get(kind.partition("?")[0])
    if task is not None:
        raise Problem(
            f"{spec} has no one class for each image.",
            "It is for detectors, taggers and segmenters.",
            fix=f"--task {task}",
        )
    if colon and kind in readers():
        found, wanted = opened(spec, split)
        return part_of(found.images.images(), found.divided, wanted, spec.partition("?")[0])
    text, _, query = spec.partition("?")
    if text not in parts("data") and ".py:" not in text:
        raise _unknown(spec)
    part = resolve("data", text)
    with guarded(f"data {spec}"):
        supplied: object = part()
    if isinstance(supplied, PublicSet):
        (x, y), content = public_part(supplied, split, offline=offline)
        ids = numbered(f"{spec}/{split}", len(y))
        images = Images(to_tensor(x), to_tensor(y), ids, supplied.classes, spec, split)
        if content:
            images._known["hash"] = content  # nothing is hashed twice
        return images
    wanted = spec_options(text, {"split": ("all",)}, query).get("split", split)
    return _divided(spec, supplied, wanted)


MANY = 2_000
"""Files up to which a set is decoded whole: 300 MB of photographs of 224 pixels."""


def large(spec: str, split: str, *, most: int = MANY) -> Stream | None:
    """One split of a folder or table of many files, never decoded whole; None for other data."""
    if spec.partition(":")[0] not in ("folder", "csv"):
        return None
    found, part = opened(spec, split)
    if not isinstance(found.images, Stream) or len(found.images) <= most:
        return None
    return part_of(replace(peeked(found.images), name=spec), found.divided, part, spec)


def readers() -> dict[str, Part]:
    """The forms of data of one's own by the word before their path: ``folder:PATH`` and others."""
    every = parts("data").items()
    own = [(name, part) for name, part in every if ":" in name and "task" not in part.facts]
    return {name.partition(":")[0]: part for name, part in own}


def opened(spec: str, split: str) -> tuple[OwnData, str]:
    """Data of the user's own, ``KIND:PATH?option=value&...``, and which part of it."""
    kind, _, rest = spec.partition(":")
    text, _, query = rest.partition("?")
    reader = readers().get(kind)
    if reader is None:
        raise _unknown(spec)
    if not text:
        raise Problem(f"{spec!r} names no path.", fix=f"{kind}:PATH")
    path = named_path(text)
    options = dict[str, str]()
    if query:
        choices = {name: option.choices for name, option in options_of(reader).items()}
        if not reader.facts.get("undivided"):
            choices |= {"split": ("all",), "first": ("0", "1")}
        options = spec_options(f"{kind}:", choices, query)
    if not path.exists():
        raise Problem(
            f"{path} does not exist.",
            f"Looked from {Path.cwd()}.",
            fix=f"{kind}:PATH with a path that exists",
        )
    part = options.pop("split", split)
    if reader.facts.get("undivided"):
        part = "all"
    first = options.pop("first", "0")
    found: OwnData = reader(path, part, **options)
    if first == "1":  # labels that count from 1
        classes = found.images.classes
        if classes == tuple(map(str, range(len(classes)))):
            classes = classes[1:]
        images = replace(found.images, y=found.images.y - 1, classes=classes)
        found = replace(found, images=images)
    where = str(path)
    if found.divided and part != "all":
        where = f"the {part} part of {path}"
    check_labels(found.images, where)
    return replace(found, images=replace(found.images, name=spec, split=part)), part


def check_labels(images: ImageSet, where: str) -> None:
    """The errors that any data can have: nothing in it, or labels that no class has."""
    if not len(images):
        raise Problem(
            f"{where} holds no images.", fix="hardcase list data shows what each kind of data needs"
        )
    y, count = images.y, len(images.classes)
    wrong = ((y < 0) | (y >= count)).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        fix = "correct the labels, or name all classes"
        if y.min() == 1 and y.max() == count:
            fix = "?first=1 after the path: these labels count from 1"
        raise Problem(
            f"{where}: {len(wrong)} of {len(y)} labels lie outside the {count} classes;"
            f" {images.id[first]} has label {int(y[first])}.",
            f"Labels count from 0 to {count - 1}.",
            fix=fix,
        )


def spec_options(what: str, known: Choices, query: str) -> dict[str, str]:
    """The options after the question mark."""
    options = {}
    for word in filter(None, query.split("&")):
        key, _, value = word.partition("=")
        if key not in known:
            raise choice(f"option of {what}", key, tuple(known))
        if known[key] and value not in known[key]:
            raise choice(f"value of ?{key}=", value, known[key])
        options[key] = value
    return options


def _divided(spec: str, supplied: object, split: str) -> Images:
    """One split of what a function of the user's returned."""
    pair = [supplied]
    if isinstance(supplied, tuple | list) and len(supplied) == len(SPLITS):
        pair = list(supplied)
    images = [each for each in pair if isinstance(each, Images)]
    if len(images) < len(pair):
        raise Problem(
            f"{spec} returned {type(supplied).__name__}; it must return hardcase.Images, "
            "or a pair of them for training and testing."
        )
    own = [
        Images(each.x.cpu(), each.y.cpu(), each.id, each.classes, spec, split) for each in images
    ]
    for each in own:
        check_labels(each, spec)
    if len(own) == 1:
        return part_of(own[0], False, split, spec)
    if split != "all":
        return own[SPLITS.index(split)]
    return replace(
        own[0],
        x=torch.cat([each.x for each in own]),
        y=torch.cat([each.y for each in own]),
        id=tuple(name for each in own for name in each.id),
    )


def part_of(images: LabelledSet, divided: bool, part: str, where: str) -> LabelledSet:
    """One part of images: of those without a split of their own by their content."""
    if divided or part == "all":
        return images
    shards = images.shards() if isinstance(images, Stream) else [images.images()]
    hashes = np.concatenate([content_hashes(shard.x.numpy()) for shard in shards])
    rows = split_by_content(hashes, images.y.numpy(), part)
    if not len(rows):
        raise Problem(
            f"the {part} part of {where} is empty: no class has more than one image.",
            "Without a split of its own, a fifth of each class (at least one image) is for"
            " testing.",
            fix=f"{where}?split=all uses everything for both",
        )
    # mypy sees the union of both kinds here
    return images.take(torch.from_numpy(rows))  # type: ignore[return-value]


def _unknown(spec: str) -> Problem:
    known = tuple(parts("data"))
    path = named_path(spec)
    if not path.exists():
        return choice("data set", spec, (*known, "file.py:name"))
    kind = "folder" if path.is_dir() else path.suffix.lstrip(".")
    return Problem(
        f"{spec!r} is a path; say what kind of data it is.",
        f"known: {', '.join(known)}",
        fix=f"--data {kind}:{spec}",
    )
