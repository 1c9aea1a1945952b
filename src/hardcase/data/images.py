"""`images_of`: labelled images from whatever a user has them in.

Data sets and loaders of torch, Hugging Face data sets, arrays, lists of images, folders and CSV
tables become `Images` (all in memory) or a `Stream` (decoded when asked for).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hardcase.data import sources as named
from hardcase.data.formats import Array, Bytes, content_hashes, split_by_content
from hardcase.data.own import (
    class_names,
    from_one,
    listed,
    natural,
    to_nchw,
    to_tensor,
    to_uint8,
)
from hardcase.data.sizing import Sizing, decoded, pixels_of
from hardcase.data.streams import Stream
from hardcase.errors import Problem
from hardcase.types import Images

IMAGE_KEYS = (
    "image",
    "img",
    "images",
    "pixel_values",
    "x",
    "picture",
    "path",
    "file",
    "filename",
    "file_name",
)
LABEL_KEYS = (
    "label",
    "labels",
    "fine_label",
    "y",
    "class",
    "target",
    "targets",
    "category",
    "expected",
)
MANY = 2_000
"""Files up to which a set is decoded whole: 300 MB of photographs of 224 pixels."""
PEEKED = 64
"""Images, evenly spread, that say whether a set is grey or has colour."""


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
    """Labelled images from `data`, decoded and of one size.

    Args:
        data: `Images`, a `Stream`, the name of a data set (``folder:photos``, ``mnist5k``), a CSV
            file of paths and labels, a torch ``Dataset`` or ``DataLoader``, a Hugging Face
            ``Dataset``, a pair (images, labels), an array, or a list of images, paths or
            (image, label) pairs.
        labels: One class number or name for each image, where `data` has none.
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
    if isinstance(data, Images):
        return data
    if isinstance(data, Stream):
        return data.images()
    sizing = Sizing(resize=resize, crop=crop)
    if (
        isinstance(data, tuple)
        and len(data) == 2
        and labels is None
        and len(data[0]) == len(data[1])
    ):
        first, second = data
        return images_of(
            first, second, classes=classes, resize=resize, crop=crop, name=name, split=split
        )
    if isinstance(data, DataLoader | IterableDataset):
        return _walked(data, classes, name, split)
    if isinstance(data, np.ndarray | Tensor):
        return _arrays(data, labels, classes, name, split)
    if isinstance(data, str) and not sizing and not data.endswith(".csv") and "resize=" not in data:
        return named.load(data, split=split)
    return stream_of(
        data, labels, classes=classes, resize=resize, crop=crop, name=name, split=split
    ).images()


def is_lazy(data: Any) -> bool:
    """Whether `stream_of` reads it: it has rows that can be asked for one by one."""
    if isinstance(data, tuple | DataLoader | IterableDataset | np.ndarray | Tensor | Images):
        return False
    return not isinstance(data, Stream)


def stream_of(
    data: Any,
    labels: Any = None,
    *,
    classes: Sequence[str] = (),
    resize: int = 0,
    crop: int = 0,
    name: str = "images",
    split: str = "test",
) -> Stream:
    """As `images_of`, but nothing is decoded until it is asked for.

    Loaders and iterable data sets have no rows to ask for.
    """
    sizing = Sizing(resize=resize, crop=crop)
    if isinstance(data, str) and data.startswith("folder:"):
        return _folder(data, sizing, split)
    if isinstance(data, str | Path):
        return _table(Path(str(data).removeprefix("csv:")), sizing, classes, name, split)
    if hasattr(data, "features") and hasattr(data, "column_names"):
        return _hugging_face(data, sizing, name, split)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return _torch(data, labels, sizing, classes, name, split)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _list(data, labels, sizing, classes, name, split)
    raise Problem(
        f"a {type(data).__name__} is no kind of labelled images that is known.",
        "Known are data sets and loaders of torch, Hugging Face data sets, arrays, lists of"
        " images, folder:PATH and CSV.",
    )


def _labelled(
    given: Sequence[Any], classes: Sequence[str], count: int, name: str
) -> tuple[Int[Tensor, " n"], tuple[str, ...]]:
    """Class numbers and names from numbers or names."""
    if len(given) != count:
        raise Problem(
            f"{name}: {count} images, but {len(given)} labels.", fix="one label for each image"
        )
    if all(isinstance(each, int | np.integer) and not isinstance(each, bool) for each in given):
        y = np.asarray(given, dtype=np.int64)
        names = class_names(y, list(classes) or None)
    elif all(isinstance(each, str) for each in given):
        names = tuple(classes) or tuple(sorted(set(given), key=natural))
        number = {each: at for at, each in enumerate(names)}
        strange = [each for each in given if each not in number]
        if strange:
            raise Problem(
                f"{name}: label {strange[0]!r} is none of the {len(names)} classes given."
            )
        y = np.asarray([number[each] for each in given], dtype=np.int64)
    else:
        kinds = sorted({type(each).__name__ for each in given})
        raise Problem(f"{name}: labels are {', '.join(kinds)}; whole numbers or names are needed.")
    if count and (y.min() < 0 or y.max() >= len(names)):
        raise Problem(
            f"{name}: labels run from {y.min()} to {y.max()} for {len(names)} classes.",
            "Labels count from 0.",
            fix="labels - 1, if they count from 1",
        )
    return torch.from_numpy(y), names


def _arrays(
    x: Array | Tensor, labels: Any, classes: Sequence[str], name: str, split: str
) -> Images:
    if labels is None:
        raise Problem(f"{name}: an array of images needs labels.", fix="images_of(images, labels)")
    array = x.detach().cpu().numpy() if isinstance(x, Tensor) else x
    pixels = to_nchw(to_uint8(array, name), name)
    y, names = _labelled(_plain_labels(labels), classes, len(pixels), name)
    ids = tuple(f"{name}/{number:05d}" for number in range(len(pixels)))
    return Images(to_tensor(pixels), y, ids, names, name, split)


def _plain_labels(labels: Any) -> list[Any]:
    if isinstance(labels, Tensor | np.ndarray):
        if labels.ndim != 1:
            raise Problem(
                f"labels have shape {tuple(labels.shape)}; one for each image is needed.",
                fix="labels.argmax(1)",
            )
        return list(labels.tolist())
    return list(labels)


def _walked(data: Iterable[Any], classes: Sequence[str], name: str, split: str) -> Images:
    """The batches of a loader, or the items of an iterable data set,
    read once from beginning to end.
    """
    source = getattr(data, "dataset", data)
    undo = _undo(source)
    pixels = list[Bytes]()
    labels = list[Any]()
    for item in data:
        x, y = _pair(item, name)
        array = np.asarray(x.detach().cpu() if isinstance(x, Tensor) else x)
        single = array.ndim < 4 and not isinstance(data, DataLoader)
        pixels.append(to_nchw(to_uint8(undo(array[None] if single else array), name), name))
        labels += [y] if single else _plain_labels(y)
    if not pixels:
        raise Problem(f"{name} holds no images.")
    numbers = [int(each) if not isinstance(each, str) else each for each in labels]
    return _arrays(np.concatenate(pixels), numbers, classes or _own_classes(source), name, split)


def _pair(item: Any, name: str) -> tuple[Any, Any]:
    """Image and label of an item or a batch."""
    if isinstance(item, Mapping):
        return item[_key(item, IMAGE_KEYS, name)], item[_key(item, LABEL_KEYS, name)]
    if isinstance(item, Sequence) and len(item) >= 2:
        return item[0], item[1]
    raise Problem(f"{name}: an item is a {type(item).__name__}; an image and its label are needed.")


def _key(table: Iterable[str], known: Sequence[str], name: str) -> str:
    present = list(table)
    found = next((key for key in known if key in present), None)
    if found is None:
        raise Problem(
            f"{name} has no {' or '.join(known[:3])}; it has {', '.join(map(str, present))}."
        )
    return found


def _own_classes(source: Any) -> tuple[str, ...]:
    return tuple(map(str, getattr(source, "classes", ()) or ()))


def _undo(source: Any) -> Callable[[Array], Array]:
    """What takes a data set's own normalisation back, so that images are in 0..1 again;
    nothing where it has none.
    """
    steps = getattr(getattr(source, "transform", None), "transforms", ()) or ()
    last = next((step for step in steps if hasattr(step, "mean") and hasattr(step, "std")), None)
    if last is None:
        return lambda array: array
    mean = np.asarray(last.mean, dtype=np.float32).reshape(-1, 1, 1)
    std = np.asarray(last.std, dtype=np.float32).reshape(-1, 1, 1)
    return lambda array: np.clip(array * std + mean, 0, 1)


def _item_pixels(item: Any, sizing: Sizing, where: str, undo: Callable[[Array], Array]) -> Bytes:
    """Any single image as H x W or H x W x 3."""
    if isinstance(item, Image.Image):
        return pixels_of(item, sizing, where)
    if isinstance(item, bytes):
        return decoded(item, sizing, where)
    if isinstance(item, str | Path):
        return decoded(_bytes(Path(item)), sizing, where)
    if isinstance(item, Mapping) and isinstance(item.get("bytes"), bytes):
        return decoded(item["bytes"], sizing, where)
    if isinstance(item, Tensor | np.ndarray):
        array = np.asarray(item.detach().cpu() if isinstance(item, Tensor) else item)
        whole = to_nchw(to_uint8(undo(array)[None], where), where)[0]
        flat = whole[0] if len(whole) == 1 else whole.transpose(1, 2, 0)
        return (
            pixels_of(Image.fromarray(np.ascontiguousarray(flat)), sizing, where)
            if sizing
            else flat
        )
    raise Problem(f"{where} is a {type(item).__name__}; an image, an array or a path is needed.")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Problem(f"cannot read the image {path}: {error.strerror or error}.") from error


def _torch(
    data: Any, labels: Any, sizing: Sizing, classes: Sequence[str], name: str, split: str
) -> Stream:
    """A map-style data set.

    Labels are read from ``targets`` or ``samples`` if it has them, else from every item once.
    """
    undo = _undo(data)
    samples = getattr(data, "samples", None)
    known = labels if labels is not None else getattr(data, "targets", None)
    if known is None and samples is not None:
        known = [target for _, target in samples]
    if known is None:
        known = [_pair(data[row], name)[1] for row in range(len(data))]
    numbers = [int(each) if not isinstance(each, str) else each for each in _plain_labels(known)]
    y, names = _labelled(numbers, classes or _own_classes(data), len(data), name)

    def called(row: int) -> str:
        return (
            f"{name}/{Path(samples[row][0]).name}" if samples is not None else f"{name}/{row:05d}"
        )

    def read(row: int) -> Bytes:
        item = data[row]
        image = (
            item
            if labels is not None and not isinstance(item, tuple | list | Mapping)
            else _pair(item, name)[0]
        )
        return _item_pixels(image, sizing, called(row), undo)

    return _stream(read, y, names, called, name, split)


def _hugging_face(data: Any, sizing: Sizing, name: str, split: str) -> Stream:
    image = _key(data.column_names, IMAGE_KEYS, name)
    label = _key(data.column_names, LABEL_KEYS, name)
    stated = getattr(data.features[label], "names", None) or ()
    y, names = _labelled(list(data[label]), list(map(str, stated)), len(data), name)

    def called(row: int) -> str:
        return f"{name}/{row:05d}"

    def read(row: int) -> Bytes:
        return _item_pixels(data[row][image], sizing, called(row), lambda array: array)

    return _stream(read, y, names, called, name, split)


def _list(
    data: Sequence[Any], labels: Any, sizing: Sizing, classes: Sequence[str], name: str, split: str
) -> Stream:
    """Images, arrays or paths with labels beside them, or pairs of the two."""
    items = list(data)
    if labels is None:
        pairs = [_pair(item, name) for item in items]
        items = [image for image, _ in pairs]
        labels = [label for _, label in pairs]
    numbers = [
        each.item() if isinstance(each, Tensor | np.generic) else each
        for each in _plain_labels(labels)
    ]
    y, names = _labelled(numbers, classes, len(items), name)

    def called(row: int) -> str:
        item = items[row]
        return f"{name}/{Path(item).name if isinstance(item, str | Path) else f'{row:05d}'}"

    def read(row: int) -> Bytes:
        return _item_pixels(items[row], sizing, called(row), lambda array: array)

    return _stream(read, y, names, called, name, split)


def _table(path: Path, sizing: Sizing, classes: Sequence[str], name: str, split: str) -> Stream:
    """A CSV file with a column of paths (relative to it) and a column of labels."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"{path} cannot be read as CSV: {error}.") from error
    if not rows:
        raise Problem(f"{path} holds no rows.", fix="a first line with the words path,label")
    where = _key(rows[0], [key for key in IMAGE_KEYS if key not in ("x",)], str(path))
    what = _key(rows[0], LABEL_KEYS, str(path))
    own = [row for row in rows if "split" not in row or row["split"] in (split, "")]
    every = [row[what] for row in rows]
    numeric = all(word.isdigit() for word in every) and not classes
    _, names = _labelled(
        [int(word) if numeric else word for word in every], classes, len(rows), str(path)
    )
    labels = [int(row[what]) if numeric else row[what] for row in own]
    files = [path.parent / row[where] for row in own]
    return _list(files, labels, sizing, names, name if name != "images" else path.stem, split)


def _folder(spec: str, sizing: Sizing, split: str) -> Stream:
    """``folder:PATH?resize=224&crop=center``: class folders, or ``labels=prefix`` for names such as
    ``7_photo.png``. Without folders ``train`` and ``test`` of its own, all of it.
    """
    text, _, query = spec.removeprefix("folder:").partition("?")
    options = dict(word.partition("=")[::2] for word in query.split("&") if word)
    own = Sizing.of({key: value for key, value in options.items() if key in ("resize", "crop")})
    part = options.get("split", split)
    found = listed(Path(text).expanduser(), part, options.get("labels", "folder"))
    chosen = own or sizing

    def read(row: int) -> Bytes:
        return decoded(_bytes(found.files[row]), chosen, found.id[row])

    y = torch.from_numpy(found.y)
    return _stream(read, y, found.classes, found.id.__getitem__, spec, split)


def is_divided(path: Path) -> bool:
    """Whether a CSV table has a column ``split``."""
    with path.open(encoding="utf-8-sig") as file:
        return "split" in [word.strip().strip('"') for word in file.readline().split(",")]


def large(spec: str, split: str, *, most: int = MANY) -> Stream | None:
    """One split of a folder or a table of many files, as `sources.load` would give it, without
    decoding more than a shard of it at once; None for other data, and for few files.

    Args:
        spec: What names the data.
        split: ``train`` or ``test``.
        most: Files up to which a set is loaded whole.
    """
    kind = spec.partition(":")[0]
    if kind not in ("folder", "csv"):
        return None
    _, path, options = named.parse(spec)
    part = options.get("split", split)
    sizing = Sizing.of({key: options[key] for key in ("resize", "crop") if key in options})
    if kind == "folder":
        found = listed(path, part, options.get("labels", "folder"))
        if len(found.files) <= most:
            return None
        stream = _folder(spec, sizing, part)
        divided = found.divided
    else:
        stream = _table(path, sizing, (), path.stem, part)
        if len(stream) <= most:
            return None
        divided = is_divided(path)
    stream = replace(stream, name=spec, split=part)
    if options.get("first") == "1":
        stream = replace(stream, **from_one(stream.y, stream.classes))
    if divided or part == "all":
        return stream
    hashes = np.concatenate([content_hashes(shard.x.numpy()) for shard in stream.shards()])
    return stream.take(torch.from_numpy(split_by_content(hashes, stream.y.numpy(), part)))


def _stream(
    read: Callable[[int], Bytes],
    y: Int[Tensor, " n"],
    classes: tuple[str, ...],
    called: Callable[[int], str],
    name: str,
    split: str,
) -> Stream:
    """A stream of all rows; the set is grey if the images that are looked at for it all are."""
    if not len(y):
        raise Problem(f"{name} holds no images.")
    peeked = range(0, len(y), max(1, len(y) // PEEKED))
    channels = 1 if all(read(row).ndim == 2 for row in peeked) else 3
    return Stream(read, torch.arange(len(y)), y, classes, channels, called, name, split)
