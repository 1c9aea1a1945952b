"""ImageNet's 1,000 classes: the WordNet synset and the name of each, in the order of the outputs.

They are read out of an installed ``timm`` (which is not imported), or out of its package, once, and
kept in the cache.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardcase.cache import cache_folder, write_atomically
from hardcase.errors import Problem, reading
from hardcase.models.pretrained.catalogue import CLASSES

__all__ = ["ImageNetClass", "imagenet"]

COUNT = 1000
SYNSET = re.compile(r"n\d{8}")


@dataclass(frozen=True, slots=True)
class ImageNetClass:
    """An output of an ImageNet network, as ``n01440764`` and ``tench``, and all its names."""

    synset: str
    name: str
    lemmas: tuple[str, ...] = ()


def cache_file() -> Path:
    return cache_folder() / "data" / "imagenet-classes.json"


def imagenet(*, offline: bool = False, fetch: bool = True) -> tuple[ImageNetClass, ...]:
    """The classes in the order of the outputs; with `fetch`, from the package if need be."""
    path = cache_file()
    if path.exists():
        return _kept(path)
    installed = _installed()
    if installed is not None:
        return _keep(parse(installed))
    if not fetch:
        raise Problem(
            "the names of ImageNet's classes are not on this machine.",
            fix="hardcase fetch model resnet50-imagenet, or pip install timm",
        )
    from hardcase.models.pretrained.fetching import obtain

    with tempfile.TemporaryDirectory(prefix="hardcase-") as place:
        files = obtain(CLASSES, Path(place), offline=offline)
        return _keep(parse(files))


def parse(files: Mapping[str, Path]) -> tuple[ImageNetClass, ...]:
    """From a list of synsets in output order, and a table of their lemmas."""
    order = files["imagenet_synsets.txt"].read_text(encoding="utf-8").split()
    table = dict[str, tuple[str, ...]]()
    for line in files["imagenet_synset_to_lemma.txt"].read_text(encoding="utf-8").splitlines():
        synset, _, words = line.partition("\t")
        table[synset] = tuple(word.strip() for word in words.split(",") if word.strip())
    if len(order) != COUNT or not all(SYNSET.fullmatch(synset) for synset in order):
        raise Problem(f"the list of synsets has {len(order)} entries instead of {COUNT}.")
    firsts = [table.get(synset, (synset,))[0] for synset in order]
    count = Counter(firsts)
    return tuple(
        ImageNetClass(
            synset,
            first if count[first] == 1 else f"{first} ({synset})",
            table.get(synset, ()),
        )
        for synset, first in zip(order, firsts)
    )


def _installed() -> dict[str, Path] | None:
    found = importlib.util.find_spec("timm")
    places = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    for place in places:
        files = {name: place / "data" / "_info" / name for name in CLASSES.files}
        if all(path.is_file() for path in files.values()):
            return files
    return None


def _keep(rows: tuple[ImageNetClass, ...]) -> tuple[ImageNetClass, ...]:
    text = json.dumps([[row.synset, row.name, list(row.lemmas)] for row in rows], indent=0)
    write_atomically(cache_file(), text.encode())
    return rows


def _kept(path: Path) -> tuple[ImageNetClass, ...]:
    with reading(f"{path} cannot be read", fix=f"delete {path}"):
        rows = json.loads(path.read_text(encoding="utf-8"))
        classes = tuple(ImageNetClass(synset, name, tuple(lemmas)) for synset, name, lemmas in rows)
    if len(classes) != COUNT:
        raise Problem(
            f"{path} holds {len(classes)} classes instead of {COUNT}.", fix=f"delete {path}"
        )
    return classes
