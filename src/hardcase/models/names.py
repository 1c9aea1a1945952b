"""Classes belong to the model: names of folders, numbers, words and ImageNet synsets are mapped to
a network's outputs.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from hardcase.cache import cache_folder, write_atomically
from hardcase.data.files import LabelledSet
from hardcase.errors import HardcaseError, reading
from hardcase.models.pretrained import CLASSES
from hardcase.tensors import constant

_WORDS = (
    ("airplane", "aeroplane"),
    ("motorcycle", "motorbike"),
    ("couch", "sofa"),
    ("tv", "tvmonitor", "tv monitor"),
    ("dining table", "diningtable"),
    ("potted plant", "pottedplant"),
    ("bicycle", "biyclce"),  # as one widespread list of names spells it
)
SAME_OBJECT = {word: tuple(w for w in words if w != word) for words in _WORDS for word in words}
"""COCO's and Pascal VOC's words for the same objects."""
SYNSET = re.compile(r"(?<![a-z0-9])n\d{8}(?!\d)")


@dataclass(frozen=True, slots=True)
class ClassMap:
    """The output of every class of the data, and whether synset, name or number decided it."""

    data: tuple[str, ...]
    model: tuple[str, ...]
    outputs: tuple[int, ...]
    how: tuple[str, ...]

    def __str__(self) -> str:
        """A line per class, for people."""
        width = max((len(name) for name in self.data), default=0)
        rows = zip(self.data, self.outputs, self.how)
        return "\n".join(
            f"{name:<{width}} -> {at:4d} {self.model[at]} ({how})" for name, at, how in rows
        )

    def apply(self, images: LabelledSet) -> LabelledSet:
        """The images under the model's classes."""
        if images.classes != self.data:
            raise HardcaseError(
                f"this mapping was made for {len(self.data)} other classes than {images.name} has."
            )
        mapped = replace(images, y=torch.tensor(self.outputs)[images.y], classes=self.model)
        return folded(mapped)


def class_map(
    data: Sequence[str],
    model: Sequence[str],
    *,
    synsets: Sequence[str] = (),
    lemmas: Mapping[int, Sequence[str]] | None = None,
) -> ClassMap:
    """Map the classes of a data set to the outputs of a model.

    Args:
        data: Names of the data's classes: folders, words, numbers, or ``n01440764_tench``.
        synsets: The WordNet synset of every output, where known.
        lemmas: Further names of outputs.
    """
    names = tuple(model)
    tables = {
        "synset": {synset: at for at, synset in enumerate(synsets)},
        "name": _by_name(names, lemmas or {}),
    }
    matches = [_find(name, tables, len(names)) for name in data]
    missing = [name for name, at in zip(data, matches) if at is None]
    if len(missing) == len(data) and len(data) == len(names):
        return ClassMap(tuple(data), names, tuple(range(len(names))), ("position",) * len(names))
    if missing:
        raise _unmatched(missing, data, names)
    pairs = [pair for pair in matches if pair is not None]
    outputs = tuple(at for at, _ in pairs)
    twice = next((at for at, count in Counter(outputs).items() if count > 1), None)
    if twice is not None:
        first, second = [repr(name) for name, at in zip(data, outputs) if at == twice][:2]
        what = f"{first} and {second} both mean the model's output {twice}, {names[twice]!r}."
        raise HardcaseError(what)
    return ClassMap(tuple(data), names, outputs, tuple(how for _, how in pairs))


def _find(name: str, tables: Mapping[str, Mapping[str, int]], count: int) -> tuple[int, str] | None:
    synset = SYNSET.search(name.lower())
    if synset and synset[0] in tables["synset"]:
        return tables["synset"][synset[0]], "synset"
    for form in chain(_forms(name), *(SAME_OBJECT.get(form, ()) for form in _forms(name))):
        if form in tables["name"]:
            return tables["name"][form], "name"
    if re.fullmatch(r"\d{1,6}", name) and int(name) < count:
        return int(name), "number"
    return None


def _by_name(known: Sequence[str], lemmas: Mapping[int, Sequence[str]]) -> dict[str, int]:
    """Every name of an output; a name that two outputs share matches neither, unless it is a first
    name."""
    further: dict[str, set[int]] = {}
    for at, words in lemmas.items():
        for word in words:
            further.setdefault(_plain(word), set()).add(at)
    for at, name in enumerate(known):
        for part in name.split(","):
            further.setdefault(_plain(part), set()).add(at)
    table = {word: next(iter(places)) for word, places in further.items() if len(places) == 1}
    return {**table, **{_plain(name): at for at, name in enumerate(known)}}


def _forms(name: str) -> tuple[str, ...]:
    """The name, and the name without the numbers and synsets that folders carry in front."""
    bare = SYNSET.sub("", name.lower())
    short = re.sub(r"^[\W_]*(n?\d+[\W_]+)+", "", bare)
    return _plain(name), _plain(bare), _plain(short)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.lower()).strip()


def _unmatched(missing: Sequence[str], data: Sequence[str], known: Sequence[str]) -> HardcaseError:
    near = get_close_matches(_plain(missing[0]), [_plain(name) for name in known], n=1)
    hints = [f"Near to {missing[0]!r} is {name!r}." for name in near]
    return HardcaseError(
        f"{len(missing)} of {len(data)} classes of the data are none of the model's {len(known)}: "
        f"{_first([repr(name) for name in missing])}.",
        f"The model's are {_first(known)}.",
        *hints,
        fix="name the class folders as the model names its outputs, or number them by output",
    )


def _first(names: Sequence[str], count: int = 5) -> str:
    """The first names of a list, and whether there are more."""
    more = [" …"] * (len(names) > count)
    return "".join([", ".join(names[:count]), *more])


def map_between(data: Sequence[str], model: Sequence[str]) -> ClassMap | None:
    """The mapping from a data set's classes to a model's, by all names of either.

    None if the model names no outputs, or both name the same classes in the same order.
    """
    if not model or tuple(data) == tuple(model):
        return None
    imagenet = _imagenet_names(tuple(model))
    return class_map(data, model, synsets=[*imagenet], lemmas=dict(enumerate(imagenet.values())))


def aligned(images: LabelledSet, model: Sequence[str]) -> LabelledSet:
    """The images under the classes of a model, or as they are where nothing has to be mapped."""
    mapping = map_between(images.classes, model)
    if mapping is None:
        return folded(images)
    return mapping.apply(images)


def _imagenet_names(model: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """All names of ImageNet's classes by synset, if these are ImageNet's and the names are
    installed."""
    rows = imagenet_if_known(len(model))
    names = [{_plain(word) for word in (row.synset, row.name, *row.lemmas)} for row in rows]
    same = sum(_plain(name.split(",")[0]) in words for name, words in zip(model, names))
    return {row.synset: row.lemmas for row in rows if same > COUNT / 2}


# ImageNet's classes that mean the same thing: to be given one for the other is no failure. Some of
# the 1,000 classes are one thing under two names, or a thing and its WordNet parent, and the
# photographs of both show the same (Beyer et al. 2020; Northcutt, Jiang and Chuang 2021; Vasudevan
# et al. 2022). Such outputs are read as one: the first of a group has the greatest of their scores,
# and labels of the others are the first's.

SAME: dict[tuple[str, str], str] = {
    ("bathtub", "tub"): "a bathtub is a tub (WordNet parent)",
    ("breastplate", "cuirass"): "armour of the chest (parents: armor plate, body armor)",
    ("cassette player", "tape player"): "a cassette player is a tape player (WordNet parent)",
    ("corn", "ear"): "the photographs of ear are of corn (parents: cereal, fruit)",
    ("laptop", "notebook"): "portable computers (one WordNet parent)",
    ("maillot", "maillot tank suit"): "swimsuits; WordNet's first maillot are tights",
    ("missile", "projectile"): "missile is a name of both in WordNet",
    ("sunglass", "sunglasses"): "WordNet's sunglass is a lens; the photographs are of sunglasses",
}
"""Groups by the first name of each class, and what WordNet says of them."""

Groups = tuple[tuple[int, ...], ...]


def same_outputs(classes: Sequence[str]) -> Groups:
    """The outputs of a network that mean the same, where its classes are ImageNet's."""
    if len(classes) != COUNT:
        return ()
    first = [name.partition(",")[0].replace("_", " ").strip().lower() for name in classes]
    groups = (
        tuple(at for at, name in enumerate(first) if name in words) for words in map(set, SAME)
    )
    return tuple(group for group in groups if len(group) > 1)


def merged(logits: Float[Tensor, "m k"], groups: Groups) -> Float[Tensor, "m k"]:
    """Scores in which each group is a single class, its first; the others have the least score."""
    width = max(map(len, groups))
    # a short group repeats its last member
    members = tuple(group + group[-1:] * (width - len(group)) for group in groups)
    others = tuple(other for group in groups for other in group[1:])
    first, *rest = (constant(column, torch.int64, logits.device) for column in zip(*members))
    best = logits.index_select(1, first)
    for column in rest:
        best = torch.maximum(best, logits.index_select(1, column))
    least = logits.amin(1, keepdim=True).expand(-1, len(others))
    lost = constant(others, torch.int64, logits.device)
    return logits.index_copy(1, first, best).index_copy(1, lost, least)


def folded(images: LabelledSet) -> LabelledSet:
    """The images with the labels of a group's first class."""
    groups = same_outputs(images.classes)
    if not groups:
        return images
    to = torch.arange(len(images.classes))
    for first, *others in groups:
        to[others] = first
    return replace(images, y=to[images.y])


# ImageNet's 1,000 classes: the WordNet synset and the name of each, in the order of the outputs.
# They are read out of an installed ``timm`` (which is not imported), or out of its package, once,
# and kept in the cache.

COUNT = 1000


@dataclass(frozen=True, slots=True)
class ImageNetClass:
    """An output of an ImageNet network, as ``n01440764`` and ``tench``, and all its names."""

    synset: str
    name: str
    lemmas: tuple[str, ...] = ()


def imagenet_cache() -> Path:
    return cache_folder() / "data" / "imagenet-classes.json"


def imagenet(*, offline: bool = False, fetch: bool = True) -> tuple[ImageNetClass, ...]:
    """The classes in the order of the outputs; with `fetch`, from the package if need be."""
    if imagenet_cache().exists():
        return _kept(imagenet_cache())
    installed = _installed()
    if installed is not None:
        return _keep(parse_imagenet(installed))
    if not fetch:
        raise HardcaseError(
            "the names of ImageNet's classes are not on this machine.",
            fix="hardcase fetch model resnet50-imagenet, or pip install timm",
        )
    from hardcase.models.fetching import obtain

    with tempfile.TemporaryDirectory(prefix="hardcase-") as place:
        files = obtain(CLASSES, Path(place), offline=offline)
        return _keep(parse_imagenet(files))


def imagenet_if_known(outputs: int) -> tuple[ImageNetClass, ...]:
    """The classes, for a network of as many outputs, if they are on this machine."""
    try:
        return imagenet(fetch=False) if outputs == COUNT else ()
    except HardcaseError:
        return ()


def parse_imagenet(files: Mapping[str, Path]) -> tuple[ImageNetClass, ...]:
    """From a list of synsets in output order, and a table of their lemmas."""
    order = files["imagenet_synsets.txt"].read_text(encoding="utf-8").split()
    lines = files["imagenet_synset_to_lemma.txt"].read_text(encoding="utf-8").splitlines()
    table = {
        synset: tuple(word.strip() for word in words.split(",") if word.strip())
        for synset, _, words in (line.partition("\t") for line in lines)
    }
    if len(order) != COUNT or not all(SYNSET.fullmatch(synset) for synset in order):
        raise HardcaseError(f"the list of synsets has {len(order)} entries instead of {COUNT}.")
    firsts = [table.get(synset, (synset,))[0] for synset in order]
    count = Counter(firsts)
    names = [
        first if count[first] == 1 else f"{first} ({synset})"
        for synset, first in zip(order, firsts)
    ]
    return tuple(
        ImageNetClass(synset, name, table.get(synset, ())) for synset, name in zip(order, names)
    )


def _installed() -> dict[str, Path] | None:
    spec = importlib.util.find_spec("timm")
    if spec is None or not spec.origin:
        return None
    files = {name: Path(spec.origin).parent / "data/_info" / name for name in CLASSES.files}
    return files if all(path.is_file() for path in files.values()) else None


def _keep(rows: tuple[ImageNetClass, ...]) -> tuple[ImageNetClass, ...]:
    text = json.dumps([[row.synset, row.name, list(row.lemmas)] for row in rows], indent=0)
    write_atomically(imagenet_cache(), text.encode())
    return rows


def _kept(path: Path) -> tuple[ImageNetClass, ...]:
    with reading(f"{path} cannot be read", fix=f"delete {path}"):
        rows = json.loads(path.read_text(encoding="utf-8"))
        if len(rows) != COUNT:
            raise ValueError(f"{len(rows)} classes instead of {COUNT}")
        return tuple(ImageNetClass(synset, name, tuple(lemmas)) for synset, name, lemmas in rows)
