"""From the words that name a data set to its images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch

from hardcase.cache import named_path
from hardcase.catalogue import options_of
from hardcase.data.formats import Labels, split_rows
from hardcase.data.own import LabelledArrays, check, from_one, numbered, to_images
from hardcase.data.public import PublicSet, public_part
from hardcase.errors import Problem, choice
from hardcase.registry import Part, parts, resolve
from hardcase.types import Images
from hardcase.usercode import guarded

# What an image set holds, and what about it deserves a warning.


def describe(images: Images) -> dict[str, Any]:
    """Name, split, counts, shape, hash, and under ``notes`` what a user should know before testing
    with it.

    Args:
        images: Any labelled images.

    Example:
        >>> import hardcase as hc
        >>> from hardcase.testing.toys import toy_images, toy_subject
        >>> hc.data.describe(toy_images(8))["name"]
        'toy'
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


# From the words that name a data set to its images.

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

    Example:
        >>> import hardcase as hc
        >>> images = hc.data.load("mnist5k", split="test")
        >>> len(images.classes)
        10
    """
    if split not in SPLITS:
        raise choice("split", split, SPLITS)
    if spec.partition(":")[0] in readers() and ":" in spec:
        return _read(spec, split)
    text, _, query = spec.partition("?")
    if text not in parts("data") and ".py:" not in text:
        raise _unknown(spec)
    part = resolve("data", text)
    made = part() if part.facts.get("fetched") else _supplied(spec, part)
    if isinstance(made, PublicSet):
        x, y = public_part(made, split, offline=offline)
        table = LabelledArrays(
            x=x, y=y, id=numbered(f"{spec}/{split}", len(y)), classes=made.classes
        )
        return to_images(table, name=spec, split=split)
    wanted = _options(text, {"split": ("all",)}, query).get("split", split)
    return _divided(spec, made, wanted)


def readers() -> dict[str, Part]:
    """The forms of data of one's own by the word before their path: ``folder:PATH`` and others."""
    every = parts("data").items()
    return {name.partition(":")[0]: part for name, part in every if ":" in name}


def parse(spec: str) -> tuple[str, Path, dict[str, str]]:
    """``KIND:PATH?option=value&...`` in its parts."""
    kind, colon, rest = spec.partition(":")
    known = readers()
    if not colon or kind not in known:
        raise _unknown(spec)
    text, _, query = rest.partition("?")
    if not text:
        raise Problem(f"{spec!r} names no path.", fix=f"{kind}:PATH")
    choices = {name: option.choices for name, option in options_of(known[kind]).items()}
    if not known[kind].facts.get("undivided"):
        choices |= {"split": ("all",), "first": ("0", "1")}
    return kind, named_path(text), _options(f"{kind}:", choices, query)


def read_own(kind: str, path: Path, options: Mapping[str, str], part: str) -> LabelledArrays:
    """The train part, the test part or all of the user's own data."""
    words = {name: word for name, word in options.items() if name != "first"}
    table: LabelledArrays = readers()[kind](path, part, **words)
    if options.get("first") == "1":
        table = replace(table, **from_one(table.y, table.classes))
    check(table, f"the {part} part of {path}" if table.divided and part != "all" else str(path))
    if not table.divided and part != "all":
        table = table.take(_part_rows(table, part, f"{kind}:{path}"))
    return table


def _read(spec: str, split: str) -> Images:
    """Data of the user's own, in one of the forms that have readers."""
    kind, path, options = parse(spec)
    if not path.exists():
        raise Problem(
            f"{path} does not exist.",
            f"Looked from {Path.cwd()}.",
            fix=f"{kind}:PATH with a path that exists",
        )
    part = options.pop("split", split)
    part = "all" if readers()[kind].facts.get("undivided") else part
    return to_images(read_own(kind, path, options, part), name=spec, split=part)


def _options(what: str, known: Choices, query: str) -> dict[str, str]:
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


def _supplied(spec: str, part: Part) -> object:
    with guarded(f"data {spec}"):
        made: object = part()
    return made


def _divided(spec: str, made: object, split: str) -> Images:
    """One split of what a function of the user's returned."""
    if isinstance(made, Images):
        table = _table(made, spec)
        if split != "all":
            table = table.take(_part_rows(table, split, spec))
    elif _is_pair(made):
        pair = [_table(images, spec) for images in made]
        table = _joined(pair) if split == "all" else pair[SPLITS.index(split)]
    else:
        raise Problem(
            f"{spec} returned {type(made).__name__}; it must return hardcase.Images, "
            "or a pair of them for training and testing."
        )
    return to_images(table, name=spec, split=split)


def _is_pair(made: object) -> TypeGuard[Sequence[Images]]:
    if not isinstance(made, tuple | list) or len(made) != len(SPLITS):
        return False
    return all(isinstance(one, Images) for one in made)


def _table(images: Images, where: str) -> LabelledArrays:
    table = LabelledArrays(
        x=images.x.cpu().numpy(), y=images.y.cpu().numpy(), id=images.id, classes=images.classes
    )
    check(table, where)
    return table


def _joined(pair: Sequence[LabelledArrays]) -> LabelledArrays:
    return LabelledArrays(
        x=np.concatenate([table.x for table in pair]),
        y=np.concatenate([table.y for table in pair]),
        id=tuple(name for table in pair for name in table.id),
        classes=pair[0].classes,
    )


def _part_rows(table: LabelledArrays, part: str, where: str) -> Labels:
    """The rows of one split of data without a split of their own."""
    rows = split_rows(table.x, table.y, part)
    if not len(rows):
        raise Problem(
            f"the {part} part of {where} is empty: no class has more than one image.",
            "Without a split of its own, a fifth of each class (at least one image) is for"
            " testing.",
            fix=f"{where}?split=all uses everything for both",
        )
    return rows


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
