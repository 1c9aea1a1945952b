"""Labelled images from the words that name a data set, or from whatever a user has them in.

Data sets and loaders of torch, Hugging Face data sets, arrays, lists of images, folders and CSV
tables become `Images` (all in memory) or a `Stream` (decoded on demand).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hardcase.cache import named_path
from hardcase.data.files import (
    Array,
    Bytes,
    ImageSet,
    LabelledSet,
    Sizing,
    Stream,
    content_hashes,
    decoded,
    peeked,
    pixels_of,
    split_by_content,
)
from hardcase.data.own import (
    IMAGES,
    LABELS,
    PATHS,
    OwnData,
    file_bytes,
    first_key,
    labelled,
    numbered,
    table,
    to_nchw,
    to_uint8,
)
from hardcase.data.public import PublicSet, public_part
from hardcase.errors import HardcaseError, choice, guarded
from hardcase.registry import Part, names, options_of, parts, resolve
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

    A user's data without a split is divided 80 : 20 by content, always in the same
    way; with ``?split=all`` either split is everything. ``?first=1`` declares labels that count
    from 1. The name of the images is `spec`, which loads them again.

    Args:
        spec: ``mnist5k`` or another public set, ``folder:PATH``, ``npz:PATH``, ``parquet:PATH``,
            ``run:RUN``, or ``file.py:name``: a function that returns `Images`, or a pair of them
            for training and testing.
        split: ``train`` or ``test``.
        offline: Touch no network.

    Raises:
        HardcaseError: If there are no such data, or they cannot be read.
    """
    if split not in SPLITS:
        raise choice("split", split, SPLITS)
    rows_by_name = parts("data", spec)
    tasks = {name.partition(":")[0]: row.facts.get("task") for name, row in rows_by_name.items()}
    kind, colon, _ = spec.partition(":")
    task = tasks.get(kind.partition("?")[0])
    if task is not None:
        raise HardcaseError(
            f"{spec} has no one class for each image.",
            "It is for detectors, taggers and segmenters.",
            fix=f"--task {task}",
        )
    if colon and kind in readers(kind):
        opened_set, wanted = opened(spec, split)
        return part_of(
            opened_set.images.images(), opened_set.divided, wanted, spec.partition("?")[0]
        )
    text, _, query = spec.partition("?")
    if text not in rows_by_name and ".py:" not in text:
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
"""Files up to which a set is decoded at once: 300 MB of photographs of 224 pixels."""


def large(spec: str, split: str, *, most: int = MANY) -> Stream | None:
    """A split of a folder or table of many files, never decoded at once; None for other data."""
    if spec.partition(":")[0] not in ("folder", "csv"):
        return None
    opened_set, part = opened(spec, split)
    if not isinstance(opened_set.images, Stream) or len(opened_set.images) <= most:
        return None
    return part_of(replace(peeked(opened_set.images), name=spec), opened_set.divided, part, spec)


def readers(wanted: str = "") -> dict[str, Part]:
    """The forms of a user's data by the word before their path: ``folder:PATH`` and others; of
    those of plug-ins, the `wanted` form.
    """
    every = parts("data", wanted).items()
    readable = [(name, part) for name, part in every if ":" in name and "task" not in part.facts]
    return {name.partition(":")[0]: part for name, part in readable}


def opened(spec: str, split: str) -> tuple[OwnData, str]:
    """Data of the user, ``KIND:PATH?option=value&...``, and which part of it."""
    kind, _, rest = spec.partition(":")
    text, _, query = rest.partition("?")
    reader = readers(kind).get(kind)
    if reader is None:
        raise _unknown(spec)
    if not text:
        raise HardcaseError(f"{spec!r} names no path.", fix=f"{kind}:PATH")
    path = named_path(text)
    options = dict[str, str]()
    if query:
        choices = {name: option.choices for name, option in options_of(reader).items()}
        if not reader.facts.get("undivided"):
            choices |= {"split": ("all",), "first": ("0", "1")}
        options = spec_options(f"{kind}:", choices, query)
    if not path.exists():
        raise HardcaseError(
            f"{path} does not exist.",
            f"Looked from {Path.cwd()}.",
            fix=f"{kind}:PATH with a path that exists",
        )
    part = options.pop("split", split)
    if reader.facts.get("undivided"):
        part = "all"
    first = options.pop("first", "0")
    with guarded(f"data {spec}"):
        opened_data: OwnData = reader(path, part, **options)
    if first == "1":  # labels that count from 1
        classes = opened_data.images.classes
        if classes == tuple(map(str, range(len(classes)))):
            classes = classes[1:]
        images = replace(opened_data.images, y=opened_data.images.y - 1, classes=classes)
        opened_data = replace(opened_data, images=images)
    where = str(path)
    if opened_data.divided and part != "all":
        where = f"the {part} part of {path}"
    check_labels(opened_data.images, where)
    return replace(opened_data, images=replace(opened_data.images, name=spec, split=part)), part


def check_labels(images: ImageSet, where: str) -> None:
    """The errors that any data can have: nothing in it, or labels that no class has."""
    if not len(images):
        raise HardcaseError(
            f"{where} holds no images.", fix="hardcase list data shows what each kind of data needs"
        )
    y, count = images.y, len(images.classes)
    wrong = ((y < 0) | (y >= count)).nonzero().flatten()
    if len(wrong):
        first = int(wrong[0])
        fix = "correct the labels, or name all classes"
        if y.min() == 1 and y.max() == count:
            fix = "?first=1 after the path: these labels count from 1"
        raise HardcaseError(
            f"{where}: {len(wrong)} of {len(y)} labels lie outside the {count} classes;"
            f" {images.id[first]} has label {int(y[first])}.",
            f"Labels count from 0 to {count - 1}.",
            fix=fix,
        )


def spec_options(what: str, choices: Choices, query: str) -> dict[str, str]:
    """The options after the question mark."""
    options = {}
    for word in filter(None, query.split("&")):
        key, _, value = word.partition("=")
        if key not in choices:
            raise choice(f"option of {what}", key, tuple(choices))
        if choices[key] and value not in choices[key]:
            raise choice(f"value of ?{key}=", value, choices[key])
        options[key] = value
    return options


def _divided(spec: str, supplied: object, split: str) -> Images:
    """A split of the result of a user's function."""
    pair = [supplied]
    if isinstance(supplied, tuple | list) and len(supplied) == len(SPLITS):
        pair = list(supplied)
    images = [each for each in pair if isinstance(each, Images)]
    if len(images) < len(pair):
        raise HardcaseError(
            f"{spec} returned {type(supplied).__name__}; it must return hardcase.Images, "
            "or a pair of them for training and testing."
        )
    fitting = [
        Images(each.x.cpu(), each.y.cpu(), each.id, each.classes, spec, split) for each in images
    ]
    for each in fitting:
        check_labels(each, spec)
    if len(fitting) == 1:
        return part_of(fitting[0], False, split, spec)
    if split != "all":
        return fitting[SPLITS.index(split)]
    return replace(
        fitting[0],
        x=torch.cat([each.x for each in fitting]),
        y=torch.cat([each.y for each in fitting]),
        id=tuple(name for each in fitting for name in each.id),
    )


def part_of(images: LabelledSet, divided: bool, part: str, where: str) -> LabelledSet:
    """A part of images: without a split by their content."""
    if divided or part == "all":
        return images
    shards = images.shards() if isinstance(images, Stream) else [images.images()]
    hashes = np.concatenate([content_hashes(shard.x.numpy()) for shard in shards])
    rows = split_by_content(hashes, images.y.numpy(), part)
    if not len(rows):
        raise HardcaseError(
            f"the {part} part of {where} is empty: no class has more than one image.",
            "Without a split of its own, a fifth of each class (at least one image) is for"
            " testing.",
            fix=f"{where}?split=all uses everything for both",
        )
    # mypy sees the union of both kinds here
    return images.take(torch.from_numpy(rows))  # type: ignore[return-value]


def _unknown(spec: str) -> HardcaseError:
    kinds = names("data")
    path = named_path(spec)
    if not path.exists():
        return choice("data set", spec, [*kinds, "file.py:name"])
    kind = "folder" if path.is_dir() else path.suffix.lstrip(".")
    return HardcaseError(
        f"{spec!r} is a path; say what kind of data it is.",
        f"known: {', '.join(kinds)}",
        fix=f"--data {kind}:{spec}",
    )


# Images that a user has as objects.

IMAGE_KEYS = (*IMAGES, *PATHS)


def images_of(
    data: Any,
    labels: Any = None,
    *,
    classes: Sequence[str] = (),
    resize: int = 0,
    crop: int = 0,
    name: str = "images",
    split: str = "test",
) -> Images:
    """Labelled images from `data`, decoded and of equal size.

    Args:
        data: `Images`, a `Stream`, the name of a data set (``folder:photos``, ``mnist5k``), a CSV
            file of paths and labels, a torch ``Dataset`` or ``DataLoader``, a Hugging Face
            ``Dataset``, a pair (images, labels), an array, or a list of images, paths or
            (image, label) pairs.
        labels: A class number or name for each image, where `data` has none.
        classes: Names of the classes in the order of their numbers, where `data` does not say them.
        resize: See `Sizing`; not for data that is already an array.
        crop: See `Sizing`.
        name: How reports call the data.
        split: Which part of the data this is.

    Example:
        >>> import numpy as np
        >>> images = images_of(np.zeros((4, 8, 8), dtype=np.uint8), [0, 1, 0, 1])
        >>> len(images), tuple(images.x.shape)
        (4, (4, 1, 8, 8))
    """
    if isinstance(data, Images | Stream):
        return data.images()
    pair = isinstance(data, tuple) and len(data) == 2 and labels is None
    if pair and len(data[0]) == len(data[1]):
        data, labels = data
    if isinstance(data, DataLoader | IterableDataset):
        return _walked(data, classes, name, split)
    if isinstance(data, np.ndarray | Tensor):
        return _arrays(data, labels, classes, name, split)
    sizing = Sizing(resize=resize, crop=crop)
    sized = sizing or "resize=" in str(data)
    if isinstance(data, str) and not sized and not data.endswith(".csv"):
        return load(data, split=split)
    return stream_of(data, labels, classes, sizing, name, split).images()


def is_lazy(data: Any) -> bool:
    """Whether `stream_of` reads it: it has rows that can be read one at a time."""
    arrays = (tuple, np.ndarray, Tensor, Images, Stream)
    return not isinstance(data, (*arrays, DataLoader, IterableDataset))


def stream_of(
    data: Any,
    labels: Any = None,
    classes: Sequence[str] = (),
    sizing: Sizing | None = None,
    name: str = "images",
    split: str = "test",
) -> Stream:
    """As `images_of`, but nothing is decoded until it is needed."""
    sizing = sizing or Sizing()
    if isinstance(data, str) and data.startswith("folder:"):
        spec = data
        if sizing and "resize=" not in data and "crop=" not in data:
            where, _, query = data.partition("?")
            spec = f"{where}?{'&'.join(filter(None, [query, str(sizing)]))}"
        opened_data, _ = opened(spec, split)
        assert isinstance(opened_data.images, Stream)
        return peeked(replace(opened_data.images, name=data, split=split))
    if isinstance(data, str | Path):
        path = Path(str(data).removeprefix("csv:"))
        stream = table(path, split, sizing, classes).images
        assert isinstance(stream, Stream)
        title = path.stem if name == "images" else name
        return peeked(replace(stream, name=title, split=split))
    if hasattr(data, "features") and hasattr(data, "column_names"):
        items, labels, classes = _hugging_face(data, name)
    elif isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        items, labels, classes = _torch(data, labels, classes, name)
    elif isinstance(data, Sequence) and not isinstance(data, str | bytes):
        items, labels = _listed(data, labels, name)
    else:
        raise HardcaseError(
            f"a {type(data).__name__} is no kind of labelled images that is known.",
            "Known are data sets and loaders of torch, Hugging Face data sets, arrays, lists of"
            " images, folder:PATH and CSV.",
        )
    y, names = labelled(_plain(labels), classes, len(data), name)
    undo = _undo(data)
    samples = getattr(data, "samples", None) or (data if isinstance(data, Sequence) else ())
    firsts = [item[0] if isinstance(item, tuple | list) and item else item for item in samples]
    files = {row: Path(it).name for row, it in enumerate(firsts) if isinstance(it, str | Path)}

    def called(row: int) -> str:
        return f"{name}/{files.get(row, f'{row:05d}')}"

    def read(row: int) -> Bytes:
        return image_pixels(items(row), sizing, called(row), undo)

    rows = torch.arange(len(y))
    return peeked(Stream(read, rows, torch.from_numpy(y), names, 0, called, name, split))


Items = Callable[[int], Any]
"""The image of a row, in whatever form the data have it."""


def _torch(
    data: Any, labels: Any, classes: Sequence[str], name: str
) -> tuple[Items, Any, Sequence[str]]:
    """A map-style data set; labels from ``targets`` or ``samples``, else from every item once."""

    def image(row: int) -> Any:
        item = data[row]
        if labels is not None and not isinstance(item, tuple | list | Mapping):
            return item
        return _pair(item, name)[0]

    targets = labels
    if targets is None:
        targets = getattr(data, "targets", None)
    if targets is None and hasattr(data, "samples"):
        targets = [target for _, target in data.samples]
    if targets is None:
        targets = [_pair(data[row], name)[1] for row in range(len(data))]
    return image, targets, classes or _class_names(data)


def _hugging_face(data: Any, name: str) -> tuple[Items, Any, Sequence[str]]:
    image = first_key(data.column_names, IMAGE_KEYS, name)
    label = first_key(data.column_names, LABELS, name)
    stated = getattr(data.features[label], "names", None) or ()
    return lambda row: data[row][image], list(data[label]), [str(each) for each in stated]


def _listed(data: Sequence[Any], labels: Any, name: str) -> tuple[Items, Any]:
    """Images, arrays or paths with labels, or pairs of the two."""
    if labels is not None:
        return data.__getitem__, labels
    pairs = [_pair(item, name) for item in data]
    return lambda row: pairs[row][0], [label for _, label in pairs]


def _arrays(
    x: Array | Tensor, labels: Any, classes: Sequence[str], name: str, split: str
) -> Images:
    if labels is None:
        raise HardcaseError(
            f"{name}: an array of images needs labels.", fix="images_of(images, labels)"
        )
    pixels = to_nchw(to_uint8(_numpy(x), name), name)
    y, names = labelled(_plain(labels), classes, len(pixels), name)
    ids = numbered(name, len(pixels))
    return Images(to_tensor(pixels), torch.from_numpy(y), ids, names, name, split)


def _numpy(x: Any) -> Array:
    return np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)


def _plain(labels: Any) -> list[Any]:
    """Labels as numbers and names of Python."""
    if isinstance(labels, Tensor | np.ndarray):
        if labels.ndim != 1:
            raise HardcaseError(
                f"labels have shape {tuple(labels.shape)}; one for each image is needed.",
                fix="labels.argmax(1)",
            )
        labels = labels.tolist()
    return [each.item() if isinstance(each, Tensor | np.generic) else each for each in labels]


def _walked(data: Iterable[Any], classes: Sequence[str], name: str, split: str) -> Images:
    """The batches of a loader, or the items of an iterable data set, read once."""
    source = getattr(data, "dataset", data)
    undo = _undo(source)
    pixels = list[Bytes]()
    labels = list[Any]()
    for item in data:
        x, y = _pair(item, name)
        array = _numpy(x)
        if array.ndim < 4 and not isinstance(data, DataLoader):
            array = array[None]
            y = [y]
        pixels.append(to_nchw(to_uint8(undo(array), name), name))
        labels += _plain(y)
    if not pixels:
        raise HardcaseError(f"{name} holds no images.")
    return _arrays(np.concatenate(pixels), labels, classes or _class_names(source), name, split)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    """Image and label of an item or a batch."""
    if isinstance(item, Mapping):
        keys = dict(item)
        return item[first_key(keys, IMAGE_KEYS, name)], item[first_key(keys, LABELS, name)]
    if isinstance(item, Sequence) and len(item) >= 2:
        return item[0], item[1]
    raise HardcaseError(
        f"{name}: an item is a {type(item).__name__}; an image and its label are needed."
    )


def _class_names(source: Any) -> tuple[str, ...]:
    return tuple(map(str, getattr(source, "classes", ()) or ()))


def _undo(source: Any) -> Callable[[Array], Array]:
    """The inverse of a data set's normalisation, so that images are in 0..1 again."""
    steps = getattr(getattr(source, "transform", None), "transforms", ()) or ()
    last = next((step for step in steps if hasattr(step, "mean") and hasattr(step, "std")), None)
    if last is None:
        return np.asarray
    mean = np.asarray(last.mean, dtype=np.float32).reshape(-1, 1, 1)
    std = np.asarray(last.std, dtype=np.float32).reshape(-1, 1, 1)
    return lambda array: np.clip(array * std + mean, 0, 1)


def image_pixels(
    item: Any, sizing: Sizing, where: str, undo: Callable[[Array], Array] = np.asarray
) -> Bytes:
    """Any single image as H x W or H x W x 3."""
    if isinstance(item, Image.Image):
        return pixels_of(item, sizing, where)
    if isinstance(item, Mapping):
        item = item.get("bytes")
    if isinstance(item, str | Path):
        item = file_bytes(Path(item))
    if isinstance(item, bytes):
        return decoded(item, sizing, where)
    if isinstance(item, Tensor | np.ndarray):
        pixels: Bytes = to_nchw(to_uint8(undo(_numpy(item))[None], where), where)[0]
        flat: Bytes = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
        if not sizing:
            return flat
        return pixels_of(Image.fromarray(np.ascontiguousarray(flat)), sizing, where)
    raise HardcaseError(
        f"{where} is a {type(item).__name__}; an image, an array or a path is needed."
    )
